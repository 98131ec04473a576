"""Declared settings: what each constraint accepts and rejects, the texts of errors, and settings as plain values."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from torchpbp.errors import ArgumentError
from torchpbp.settings import (
    Constraint,
    Settings,
    between,
    choice,
    drawn_seed,
    either,
    finite,
    flag,
    floating_dtype,
    instance,
    non_negative,
    optional,
    positive,
    seed,
    setting,
    several,
    shortened,
    text,
    whole,
)


@dataclasses.dataclass(frozen=True)
class DescentSettings(Settings):
    steps: int = setting(100, whole(1))
    rate: float = setting(0.1, positive())
    rule: str = setting("adam", choice("adam", "sgd"))
    note: Any = None


@pytest.mark.parametrize(
    ("constraint", "given", "plain"),
    [
        (whole(), 0, 0),
        (whole(1, 3), np.int8(3), 3),
        (whole(), torch.tensor(4), 4),
        (seed(), 2**64 - 1, 2**64 - 1),
        (positive(), 1, 1.0),
        (positive(), np.float32(0.5), 0.5),
        (positive(), torch.tensor(2.0), 2.0),
        (non_negative(), 0, 0.0),
        (finite(), -3, -3.0),
        (between(0, 1), 1, 1.0),
        (flag(), False, False),
        (text(), np.str_("a"), "a"),
        (choice("a", 1, 0.5), np.float64(0.5), 0.5),
        (floating_dtype(), torch.float32, torch.float32),
        (optional(whole()), None, None),
        (optional(whole()), 2, 2),
        (either(choice("auto"), whole(1)), "auto", "auto"),
        (several(whole(1)), [2, np.int64(3)], (2, 3)),
        (several(non_negative(), 2), iter([0, 1]), (0.0, 1.0)),
        (instance(dict), {}, {}),
    ],
)
def test_accepted_values_become_plain(constraint: Constraint, given: Any, plain: Any) -> None:
    value = constraint.check("x", given)
    assert value == plain
    assert type(value) is type(plain)


@pytest.mark.parametrize(
    ("constraint", "given", "message"),
    [
        (whole(), -1, "x: expected a whole number of at least 0, got -1."),
        (whole(1, 3), 4, "x: expected a whole number from 1 to 3, got 4."),
        (whole(), 1.0, "x: expected a whole number of at least 0, got 1.0."),
        (whole(), True, "x: expected a whole number of at least 0, got True."),
        (whole(), "1", "x: expected a whole number of at least 0, got '1'."),
        (whole(), 2**64, "got 18446744073709551616, which is beyond the range of 64-bit numbers."),
        (whole(), torch.ones(2, dtype=torch.int64), "got tensor([1, 1])."),
        (seed(), 2**64, "got 18446744073709551616, which is beyond the range of 64-bit numbers."),
        (seed(), "a", "x: expected a whole number of at least 0, got 'a'."),
        (seed(), None, "got None."),
        (positive(), 0, "x: expected a positive number, got 0."),
        (positive(), float("nan"), "got nan."),
        (positive(), float("inf"), "got inf."),
        (positive(), "1", "got '1'."),
        (positive(), 1j, "got 1j."),
        (positive(), np.complex128(1), "expected a positive number"),
        (positive(), torch.tensor(1 + 0j), "expected a positive number"),
        (positive(), torch.ones(3), "got tensor([1., 1., 1.])."),
        (positive(), torch.ones((), device="meta"), "got tensor(..., device='meta', size=())."),
        (non_negative(), -0.1, "x: expected a non-negative number, got -0.1."),
        (finite(), float("-inf"), "x: expected a finite number, got -inf."),
        (between(0, 1), 1.5, "x: expected a number from 0 to 1, got 1.5."),
        (between(0, 1, ends=False), 1, "x: expected a number between 0 and 1, got 1."),
        (flag(), 1, "x: expected True or False, got 1."),
        (text(), 1, "x: expected a string, got 1."),
        (choice("a", 1), True, "x: expected one of 'a', 1, got True."),
        (choice("a"), ["a"], "x: expected 'a', got ['a']."),
        (floating_dtype(), "float32", "x: expected one of torch.float64, torch.float32, got 'float32'."),
        (optional(positive()), 0, "x: expected None or a positive number, got 0."),
        (either(choice("auto"), whole(1)), "all", "expected 'auto' or a whole number of at least 1, got 'all'."),
        (several(whole(1)), [1, 0], "x: expected a sequence, each a whole number of at least 1, got [1, 0]."),
        (several(whole(1)), "12", "got '12'."),
        (several(whole(1), 2), [1], "x: expected 2 values, each a whole number of at least 1, got [1]."),
        (several(whole(1)), 3, "got 3."),
        (instance(dict, list), 3, "x: expected dict or list, got 3."),
        (instance(dict, expected="names"), 3, "x: expected names, got 3."),
    ],
)
def test_other_values_raise(constraint: Constraint, given: Any, message: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        constraint.check("x", given)
    assert message in str(raised.value)


def test_values_in_errors_are_short() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError

    assert shortened("x" * 300, 10) == "'xxxxxxxxx…"
    assert shortened(Silent()) == "an object of class Silent"


def test_a_seed_is_drawn_for_none_only() -> None:
    torch.manual_seed(0)
    first, second = drawn_seed(None), drawn_seed(None)
    torch.manual_seed(0)
    assert (drawn_seed(None), drawn_seed(7)) == (first, 7)
    assert first != second
    with pytest.raises(ArgumentError, match="seed: expected a whole number of at least 0, got -1"):
        drawn_seed(-1)


def test_settings_are_checked_frozen_and_plain() -> None:
    settings = DescentSettings(steps=np.int64(5), rate=1, note=[1])
    assert settings.to_dict() == {"steps": 5, "rate": 1.0, "rule": "adam", "note": [1]}
    assert type(settings.steps) is int
    assert DescentSettings.from_dict(settings.to_dict()) == settings
    assert DescentSettings.from_dict({}) == DescentSettings()
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.steps = 3  # type: ignore[misc]


def test_invalid_settings_name_the_field() -> None:
    with pytest.raises(ArgumentError, match=r"^rate: expected a positive number, got 0\.$"):
        DescentSettings(rate=0)
    with pytest.raises(ArgumentError, match=r"^steps: expected a whole number of at least 1, got None\.$"):
        DescentSettings.from_dict({"steps": None})
    with pytest.raises(ArgumentError, match=r"Unknown settings \['speed'\]. Known are: steps, rate, rule, note\."):
        DescentSettings.from_dict({"speed": 1})
