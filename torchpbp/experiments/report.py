"""report.html: a run on one page that needs no other file."""

from __future__ import annotations

import base64
import importlib.metadata
import io
import os
import platform
import shlex
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from torchpbp.experiments.progress import duration
from torchpbp.experiments.results import Picture, Result, finite
from torchpbp.io import replacing

NAME = "report.html"
PACKAGES = ("torchpbp", "torch", "lightning", "numpy", "pandas", "scikit-learn", "matplotlib", "hydra-core")
MOST_ROWS = 200


def write_report(folder: Path, result: Result, cfg: DictConfig, seconds: float) -> Path:
    """Write the report of a run: main figures first, pictures with captions, tables and settings folded.

    Args:
        folder: of the run.
        result: of the experiment.
        cfg: its settings.
        seconds: duration of the run.
    """
    task = str(cfg.task["_target_"]).rpartition(".")[2]
    title = str(HydraConfig.get().runtime.choices.experiment) if HydraConfig.initialized() else task
    page = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    page.filters["number"] = shortened
    metrics = finite(result.metrics)
    tables = {**({} if result.table is None else {"metrics": result.table}), **result.tables}
    tables |= {
        f"{name}: diagnostics": m.diagnostics() for name, m in result.models.items() if hasattr(m, "diagnostics")
    }
    text = page.get_template("report.html.jinja").render(
        title=title.replace("_", " "),
        when=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        duration=duration(seconds),
        main={name: metrics[name] for name in result.main if name in metrics},
        metrics=metrics,
        text=result.text,
        pictures=[(embedded(picture), picture.caption) for picture in result.pictures.values()],
        tables=[(name, len(t), list(t.columns), t.head(MOST_ROWS).values.tolist()) for name, t in tables.items()],
        facts=facts(),
        settings=OmegaConf.to_yaml(cfg, resolve=True),
        files=sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and p.parent.name != "parts"),
    )
    with replacing(folder / NAME) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return folder / NAME


def facts() -> dict[str, Any]:
    """Everything needed to repeat the run, or to compare its timings."""
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs"
    found = {"command": shlex.join(["python", *sys.argv]), "machine": machine, "threads": torch.get_num_threads()}
    return found | {"python": platform.python_version()} | {p: importlib.metadata.version(p) for p in PACKAGES}


def embedded(picture: Picture) -> str:
    """A picture as a data address."""
    stream = io.BytesIO()
    picture.figure.savefig(stream, format="png", dpi=110)
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode("ascii")


def shortened(value: Any) -> str:
    """A value for a reader: four digits of a fraction, a dash for a missing one."""
    if value is None or value != value:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
