"""Examples in docstrings run as printed, and what a program can import says what it is."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil

import pytest

import torchpbp

MODULES = [
    info.name
    for info in pkgutil.walk_packages(torchpbp.__path__, "torchpbp.")
    if not info.name.endswith(("__main__", "torchpbp.experiments.running.program"))
]


def examples(name: str) -> list[doctest.DocTest]:
    found = doctest.DocTestFinder().find(importlib.import_module(name))
    return [test for test in found if test.examples]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run_as_printed(name: str) -> None:
    runner = doctest.DocTestRunner(verbose=False)
    printed: list[str] = []
    for test in examples(name):
        runner.run(test, out=printed.append)
    assert not runner.failures, "".join(printed)


def test_there_are_examples() -> None:
    with_examples = [name for name in MODULES if examples(name)]
    assert {"torchpbp.models.pbp", "torchpbp.neural.layer", "torchpbp.graph.latent_graph"} <= set(with_examples)


@pytest.mark.parametrize("name", torchpbp.__all__)
def test_public_names_say_what_they_are_and_what_they_take(name: str) -> None:
    public = getattr(torchpbp, name)
    text = inspect.getdoc(public) or ""
    assert text, f"torchpbp.{name} has no docstring"
    if inspect.isclass(public) or inspect.isfunction(public):
        taken = inspect.signature(public).parameters
        silent = [p for p in taken if p not in ("args", "kwargs", "options") and p not in text]
        assert not silent, f"torchpbp.{name}: {silent} are not explained"
