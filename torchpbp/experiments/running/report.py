"""A run as a page for people: ``python -m torchpbp report outputs/<date_time>``.

train.py writes the same at the end of each run: one file, report.html, that any browser shows and that can be mailed.
"""

from __future__ import annotations

import importlib.metadata
import io
import os
import platform
import shlex
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import yaml
from matplotlib.figure import Figure

from torchpbp.classifier import GenerativeClassifier
from torchpbp.errors import CheckpointError, DataError
from torchpbp.experiments.running import html
from torchpbp.experiments.running.reading import folder_of, read_mapping, read_parsed, read_texts
from torchpbp.files.loading import load
from torchpbp.files.replacing import replacing
from torchpbp.models.pbp import PBP
from torchpbp.plotting import plot_diagnostics, plot_junction_tree
from torchpbp.plotting.diagnostics import separator_table
from torchpbp.plotting.tree_layout import lay_out, tree_size

NAME = "report.html"
PROGRAM = ("torchpbp-train",) if (Path(__file__).parents[2] / "conf").is_dir() else ("python", "train.py")
"""What starts a run: a checkout has its settings beside the package, an installed one inside."""
PACKAGES = ("torchpbp", "torch", "lightning", "numpy", "pandas", "scikit-learn", "matplotlib", "hydra-core")
MOST_ROWS = 200
MOST_MODELS = 12
LARGEST_DRAWN = 60  # cliques of a tree that is drawn, not printed
DPI = 110
PNG, PNG_HEADER = b"\x89PNG\r\n\x1a\n", 24  # how the file begins; bytes up to the width and height
LARGEST_MODEL = 2**28  # bytes of a model file that is opened


def write_report(folder: str | os.PathLike[str], config: str | None = None, seconds: float | None = None) -> Path:
    """Write report.html into the folder of a run: settings, results, pictures, diagnostics of saved models.

    Args:
        folder: of the run; whatever of metrics.json, metrics.csv, PNG and model files it holds is shown.
        config: settings as YAML; those in the folder's .hydra by default.
        seconds: how long the run took, if known.

    Returns:
        Path of the report.

    Raises:
        DataError: no such folder, a file in it that cannot be read, or a report that cannot be written.
    """
    root = folder_of(folder, "the folder of a run, such as outputs/<date_time>")
    settings: dict[str, Any] = {}
    if config is not None:
        settings = yaml.safe_load(config) or {}
    else:
        saved = [p for p in (root / ".hydra" / f"{name}.yaml" for name in ("resolved", "config")) if p.is_file()]
        settings, config = (read_mapping(saved[0]), saved[0].read_text(encoding="utf-8")) if saved else ({}, "")
    title = _title(settings, root)
    when = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    text = html.page(
        title,
        f"{root.name}, report of {when}"
        if seconds is None
        else f"{root.name}, finished {when} after {_duration(seconds)}",
        [
            html.section("Results", *_results(root)),
            html.section("Pictures", *_pictures(root)),
            html.section("Models", *_models(root)),
            html.section("Run", html.pairs(_facts(root, settings, seconds))),
            html.section("Settings", html.code(config) if config else ""),
            html.section("Files", html.table(_files(root))),
        ],
    )
    try:
        with replacing(root / NAME) as temporary:
            temporary.write_text(text, encoding="utf-8", errors="backslashreplace")  # names may be no text
    except OSError as error:
        raise DataError(f"Report: {root / NAME} could not be written: {error.strerror or error}. Make room.") from error
    return root / NAME


def _results(root: Path) -> list[str]:
    """metrics.json, then the table behind it."""
    parts = []
    if (root / "metrics.json").is_file():
        single, tables = html.pivoted(read_mapping(root / "metrics.json"))
        parts += [html.pairs(single), *map(html.table, tables)]
    for path in sorted(p for p in root.glob("*.csv") if p.is_file()):
        frame = read_parsed(
            path, "CSV", partial(pd.read_csv, path), (ValueError,)
        )  # pandas' own errors are ValueErrors
        rows = html.table(frame, MOST_ROWS, path.name)
        parts.append(html.folded(f"{path.name}: {len(frame):,} rows", rows))
    return parts


def _pictures(root: Path) -> list[str]:
    drawn = []
    for path in _visible(root, ".png"):
        content = path.read_bytes()
        if content.startswith(PNG) and len(content) >= PNG_HEADER:
            drawn.append(html.picture(content, path.relative_to(root).as_posix()))
    return [html.pictures(drawn)]


def _visible(root: Path, suffix: str = "") -> list[Path]:
    """Files of the run, without this report and without what Hydra and interrupted runs keep in hidden folders."""
    files = [path for path in sorted(root.rglob(f"*{suffix}")) if path.is_file() and path != root / NAME]
    return [path for path in files if not any(part.startswith(".") for part in path.relative_to(root).parts)]


def _models(root: Path) -> list[str]:
    """Diagnostics of saved PBP models, those of classes too; other models are named only."""
    parts: list[str] = []
    seen: set[str] = set()
    paths = [path for path in _visible(root, ".pt") if path.stat().st_size <= LARGEST_MODEL]
    for path in paths[:MOST_MODELS]:
        try:
            model = load(path)
        except CheckpointError:  # something else that torch wrote, a training state say
            continue
        parts.append(html.heading(f"{path.relative_to(root).as_posix()}: {_description(model)}"))
        if isinstance(model, PBP):
            parts += _diagnostics(model, path.name, seen)
        if isinstance(model, GenerativeClassifier):
            for value, part in list(zip(model.classes_, model.models_, strict=True))[:MOST_MODELS]:
                if isinstance(part, PBP):
                    parts.append(html.heading(f"class {value}"))
                    parts += _diagnostics(part, f"{path.name}, class {value}", seen)
    if len(paths) > MOST_MODELS:
        parts.append(f"<p>{len(paths) - MOST_MODELS} more model files are not shown.</p>")
    return parts


def _description(model: Any) -> str:
    graph = model.graph
    kind = type(model).__name__
    if isinstance(model, GenerativeClassifier):
        kind = f"{kind} with a {type(model.models_[0]).__name__} for each of {len(model.classes_)} classes,"
    return f"{kind} of {len(graph.observed)} observed and {len(graph.latent)} hidden variables"


def _diagnostics(model: PBP, name: str, seen: set[str]) -> list[str]:
    """Table of the separators, pictures of them and of the tree unless an earlier model had the same tree."""
    tree = str(model.tree)
    parts = []
    if tree not in seen:  # the models of ten classes, say, look alike, and drawing takes longer than all the rest
        figure = Figure(figsize=(9.5, 1.3 + 0.27 * min(40, len(model.tree) - 1)), layout="constrained")
        plot_diagnostics(model, ax=figure.subplots())
        parts.append(html.picture(_png(figure), f"separators of {name}", DPI))
    frame = separator_table(model)
    parts.append(html.folded("separators: core groups, instruments, ranks", html.table(frame, MOST_ROWS)))
    if tree not in seen:
        drawn = ""
        if len(model.tree) <= LARGEST_DRAWN:
            figure = Figure(figsize=tree_size(lay_out(model.tree)), layout="constrained")
            plot_junction_tree(model, ax=figure.subplots())
            drawn = html.picture(_png(figure), f"junction tree of {name}", DPI)
        parts.append(html.folded("junction tree", drawn or html.code(tree)))
    seen.add(tree)
    return parts


def _png(figure: Figure) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=DPI)
    return stream.getvalue()


def _facts(root: Path, settings: dict[str, Any], seconds: float | None) -> dict[str, Any]:
    """What one needs to repeat the run, or to compare its timings."""
    overrides = root / ".hydra" / "overrides.yaml"
    facts: dict[str, Any] = {}
    if overrides.is_file():
        facts["command"] = shlex.join([*PROGRAM, *read_texts(overrides)])
    if "seed" in settings:
        facts["seed"] = settings["seed"]
    if seconds is not None:  # written by the run itself, so what holds now held then
        facts["duration"] = _duration(seconds)
        facts["threads"] = torch.get_num_threads()
        facts["machine"] = f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs"
        facts["python"] = platform.python_version()
        facts.update({name: version for name in PACKAGES if (version := _version(name))})
    return facts


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _files(root: Path) -> pd.DataFrame:
    """All files of the run with their sizes."""
    shown = _visible(root)
    sizes = [_size(p.stat().st_size) for p in shown]
    return pd.DataFrame({"file": [p.relative_to(root).as_posix() for p in shown], "size": sizes})


def _title(settings: dict[str, Any], root: Path) -> str:
    model = settings.get("model")
    target = model.get("_target_") if isinstance(model, dict) else None
    name = target.rpartition(".")[2].removeprefix("run_").replace("_", " ") if isinstance(target, str) else ""
    return name[:1].upper() + name[1:] if name else root.name


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _size(number: float) -> str:
    for unit in ("bytes", "KB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} GB"
