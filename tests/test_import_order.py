"""The order of the folders: a module imports only from those above it, and heavy packages only where they belong."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import torchpbp

PACKAGE = Path(torchpbp.__file__).parent
ROOT = PACKAGE.parent

ORDER: tuple[tuple[str, ...], ...] = (
    ("errors",),
    ("distributed", "grouping", "lazy", "precision", "settings"),
    ("io",),
    ("graph",),
    ("inputs",),
    ("features", "contract"),
    ("exact",),
    ("planning",),
    ("inference",),
    ("moments",),
    ("learning",),
    ("models",),
    ("baselines",),
    ("neural",),
    ("classifier",),
    ("datasets",),
    ("plotting",),
    ("experiments",),
    ("cli",),
    ("__main__",),
    ("train",),
)
"""Data flows downward. A new folder is placed here before it is used; files of one folder may import each other."""

LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}

UPWARD = {
    ("exact/network.py", "models"): "DiscreteNetwork.to_pbp() returns a PBP model",
    ("io.py", "models"): "load() reads files of every class",
    ("io.py", "baselines"): "load() reads files of every class",
    ("io.py", "exact"): "load() reads files of every class",
    ("io.py", "classifier"): "load() reads files of every class",
    ("models/saved_pbp.py", "neural"): "PBP model files rebuild the package's own encoders",
}
"""(file, part that it names in a string and loads by importlib) -> why it may do so although the part is below it."""

ALLOWED = {
    "hydra": {"experiments", "train"},
    "omegaconf": {"experiments", "train"},
    "lightning": {"datasets", "neural", "experiments"},
    "matplotlib": {"graph", "plotting", "experiments"},
}
"""Which parts may import a package at all."""

FILES = sorted([*PACKAGE.rglob("*.py"), ROOT / "train.py"])


def part_of(path: Path) -> str:
    """The folder or top-level module a file belongs to; '' for the package itself."""
    if path.parent == ROOT:
        return path.stem
    first = path.relative_to(PACKAGE).parts[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


def imports(path: Path, top_level_only: bool = False) -> Iterator[tuple[int, str]]:
    """(line, full dotted name) of everything a file imports, wherever in the file it does so."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import; write the full name"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def named_modules(path: Path) -> Iterator[tuple[int, str]]:
    """(line, name) of every string that is the name of a module, as in tables for importlib, and beginnings of f-strings given to it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and re.fullmatch(r"torchpbp(\.\w+)+", str(node.value)):
            file = ROOT / str(node.value).replace(".", "/")
            if file.is_dir() or file.with_suffix(".py").is_file():
                yield node.lineno, str(node.value)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            text = node.args[0]
            first = text.values[0] if isinstance(text, ast.JoinedStr) else None
            if isinstance(first, ast.Constant) and str(first.value).startswith("torchpbp."):
                yield node.lineno, str(first.value)


def test_every_part_has_its_place():
    unplaced = {part_of(p) for p in FILES} - set(LEVEL) - {""}
    assert not unplaced, (
        f"{sorted(unplaced)} have no place in ORDER: say in tests/test_import_order.py what they may import"
    )


def test_modules_import_from_above_only():
    wrong, used = [], set()
    for path in FILES:
        part = part_of(path)
        if not part:
            continue  # torchpbp/__init__.py gathers the public names
        for line, name in imports(path):
            if name.split(".")[0] != "torchpbp":
                continue
            source = name.split(".")[1]
            if source not in LEVEL:  # a public name such as torchpbp.PBP loads everything, so only the top may do it
                if LEVEL[part] < LEVEL["experiments"]:
                    wrong.append(f"{path}:{line} imports torchpbp.{source}; name the module it is defined in")
            elif LEVEL[source] > LEVEL[part]:
                wrong.append(f"{path}:{line}: {part} imports {name} from below it")
        for line, name in named_modules(path):
            source = name.split(".")[1]
            exception = (path.relative_to(ROOT).as_posix().removeprefix("torchpbp/"), source)
            if exception in UPWARD:
                used.add(exception)
            elif LEVEL.get(source, len(ORDER)) > LEVEL[part]:
                wrong.append(f"{path}:{line}: {part} names {name}, which is below it")
    wrong += [f"UPWARD: {exception} is no longer needed" for exception in UPWARD.keys() - used]
    assert not wrong, "\n".join(wrong)


def test_heavy_packages_stay_where_they_belong():
    wrong = []
    for path in FILES:
        part = part_of(path)
        for line, name in imports(path):
            package = name.split(".")[0].replace("pytorch_lightning", "lightning")
            if part not in ALLOWED.get(package, {part}):
                wrong.append(f"{path}:{line}: {part or 'torchpbp'} imports {package}")
        at_once = {name.split(".")[0] for _, name in imports(path, top_level_only=True)}
        if part in ("graph", "plotting") and "matplotlib" in at_once:
            wrong.append(f"{path} imports matplotlib when it is loaded; drawing does so when it draws")
    assert not wrong, "\n".join(wrong)


# -- what is loaded, and when ------------------------------------------------------------------------------------------

HEAVY = ("hydra", "lightning", "matplotlib", "omegaconf", "pandas", "pytorch_lightning", "scipy.stats", "sklearn")
"""Packages that take long to import; each is loaded when it is first needed."""


def loaded_after(code: str) -> set[str]:
    """The heavy packages that a fresh interpreter has loaded after running the code."""
    code += f"\nimport sys\nprint([m for m in {HEAVY} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    return set(ast.literal_eval(result.stdout.splitlines()[-1]))


@pytest.mark.slow
def test_importing_the_library_loads_no_heavy_package():
    assert not loaded_after("import torchpbp")
    heavy = ("MLP", "PBPModule", "WeightAverage", "GenerativeClassifier", "plotting")
    others = [name for name in torchpbp.__all__ if name not in heavy]
    assert not loaded_after(f"from torchpbp import {', '.join(others)}")
    assert loaded_after("from torchpbp import GenerativeClassifier") == {"pandas", "scipy.stats", "sklearn"}
    assert "lightning" in loaded_after("from torchpbp import MLP")


@pytest.mark.slow
def test_the_help_of_the_program_loads_no_experiment():
    loaded = loaded_after("import torchpbp.experiments.run")
    assert loaded <= {"hydra", "omegaconf"}
    assert "hydra" in loaded


@pytest.mark.slow
def test_tensors_are_learned_from_without_pandas():
    code = """
import torch
from torchpbp import DiscreteNetwork, PBP, PBPLayer, templates
truth = DiscreteNetwork.random(templates.naive_bayes(3), seed=1)
model = PBP(truth.graph).fit(truth.sample(500, seed=0))
model.posterior("x1", {"x2": torch.tensor([0, 1])})
model.posteriors({"x2": [0, -1]})
model.sample(3, seed=0)
PBPLayer(model)({"x2": torch.tensor([0, 1])})
"""
    assert not loaded_after(code)
    assert loaded_after(code + "model.diagnostics()") == {"pandas"}


def test_every_public_name_is_loaded_from_where_it_is_defined():
    assert set(torchpbp.__all__) == {*torchpbp.MODULE_OF, "errors", "plotting"}
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    (for_types,) = [node for node in tree.body if isinstance(node, ast.If)]
    known_to_types = {a.name: n.module for n in ast.walk(for_types) if isinstance(n, ast.ImportFrom) for a in n.names}
    assert {name: m for name, m in known_to_types.items() if m != "torchpbp"} == torchpbp.MODULE_OF
    assert all(getattr(torchpbp, name) is not None for name in torchpbp.__all__)
    assert set(torchpbp.__all__) <= set(dir(torchpbp))
    assert torchpbp.features.complete_table is not None  # subpackages are found as well
    with pytest.raises(AttributeError, match="has no attribute 'PBPP'"):
        _ = torchpbp.PBPP
