"""Build the API pages from docstrings: ``python scripts/build_docs.py [folder]``. Needs the extra ``docs`` (pdoc).

Warnings of pdoc, such as names that do not resolve, are errors.
"""

from __future__ import annotations

import importlib
import sys
import types
import warnings
from pathlib import Path

import networkx as nx
import pandas as pd
import pdoc

import torchpbp

PAGES = (
    "torchpbp",
    "torchpbp.graph.templates",
    "torchpbp.datasets",
    "torchpbp.exact.parity",
    "torchpbp.features",
    "torchpbp.contract.latent_model",
    "torchpbp.contract.abilities",
    "torchpbp.inference.density",
    "torchpbp.inference.operator_net",
    "torchpbp.inference.operator_tree",
    "torchpbp.inputs.evidence",
    "torchpbp.inputs.sources",
    "torchpbp.planning.plan",
    "torchpbp.learning",
)
"""Modules with a page; all names of ``torchpbp.__all__`` are on the first."""


def build(folder: Path) -> None:
    """Write the pages.

    Args:
        folder: created if needed.
    """
    for page in map(importlib.import_module, PAGES):
        for name in getattr(page, "__all__", ()):  # some are loaded lazily, which pdoc does not see
            setattr(page, name, getattr(page, name))
    convert = pdoc.docstrings.convert
    pdoc.docstrings.convert = lambda text, *rest: convert(
        text.replace("`~", "`"), *rest
    )  # as in :class:`~torchpbp.PBP`
    for kind in (
        nx.Graph,
        nx.DiGraph,
        pd.Series,
        pd.Index,
    ):  # generic for type checkers, but not when the annotations are evaluated
        kind.__class_getitem__ = classmethod(types.GenericAlias)
    pdoc.render.configure(
        docformat="google", math=True, show_source=False, footer_text=f"torchpbp {torchpbp.__version__}"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=DeprecationWarning)  # of other packages, while they are imported
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", message=r"Error parsing type annotation ForwardRef")  # fields of named tuples
        pdoc.pdoc(*PAGES, output_directory=folder)
    check(folder)


def check(folder: Path) -> None:
    """Raise if a public name is missing from the first page, or a Sphinx role is left in the text."""
    page = (folder / "torchpbp.html").read_text(encoding="utf-8")
    missing = [n for n in torchpbp.__all__ if n not in ("errors", "plotting", "templates") and f'id="{n}"' not in page]
    if missing:
        raise SystemExit(f"{folder / 'torchpbp.html'}: no entry for {', '.join(missing)}.")
    if "`~" in page:
        raise SystemExit(f"{folder / 'torchpbp.html'}: `~ is left in the text.")


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "build/api")
    build(target)
    print(f"Pages: {target / 'index.html'}")
