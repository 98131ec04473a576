"""Examples in docstrings run as printed; public names have docstrings that explain their parameters."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil

import torchpbp


def test_examples_run_as_printed() -> None:
    runner, printed, with_examples = doctest.DocTestRunner(verbose=False), [], set()
    for module in pkgutil.walk_packages(torchpbp.__path__, "torchpbp."):
        if module.name.endswith("__main__"):
            continue
        for test in doctest.DocTestFinder().find(importlib.import_module(module.name)):
            runner.run(test, out=printed.append)
            if test.examples:
                with_examples.add(module.name)
    assert not runner.failures, "".join(printed)
    assert {"torchpbp.models.pbp", "torchpbp.neural.layer", "torchpbp.graph.latent_graph"} <= with_examples


def test_public_names_are_documented_with_their_parameters() -> None:
    missing = []
    for name in torchpbp.__all__:
        public = getattr(torchpbp, name)
        text = inspect.getdoc(public) or ""
        if not text:
            missing.append(f"torchpbp.{name} has no docstring")
        elif inspect.isclass(public) or inspect.isfunction(public):
            parameters = set(inspect.signature(public).parameters) - {"args", "kwargs", "options"}
            missing += [f"torchpbp.{name}: {p} is not explained" for p in sorted(parameters) if p not in text]
    assert not missing, "\n".join(missing)
