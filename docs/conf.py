"""Sphinx configuration of the site; ``python scripts/build_docs.py`` builds it.

Pages are plain Markdown, which GitHub shows as well. Notebooks are copied beside them and rendered from their stored outputs.
Everything that a page loads is part of the site, so it works without a network.
"""

from __future__ import annotations

import re
import shutil
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError
from sphinx.transforms import SphinxTransform

import torchpbp

HERE = Path(__file__).parent
PLACES = {
    "../README.md": "tutorials/00_quickstart.md",
    "../CONTRIBUTING.md": "contributing.md",
    "../benchmarks/README.md": "benchmarks.md",
}
"""Links of pages to files outside of docs -> pages of the site."""
CITATION = re.compile(r"\[(PBP|JT|NG|MP|OEM|TSR)\b[^\]]*\]")
"""Citations such as [PBP eq. 3]; their keys are headings of references.md."""
STARRED = re.compile(r"(?<=[ (])\*(?=\w*(shape|table)\b)")
"""A star of a shape such as (rows, *shape), which is no emphasis."""
TRAILING = re.compile(r"^(:ivar \w+)_:")
NOTEBOOK = re.compile(r"`notebooks/(\w+)\.ipynb`")

project = "torchpbp"
author = copyright = "The torchpbp authors"
release = version = torchpbp.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["figures"]
nitpicky = True
nitpick_ignore_regex = [(r"py:.*", r"(?!torchpbp).*")]  # names of other packages

# Pages and notebooks
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_fence_as_directive = {"math"}  # as on GitHub
myst_heading_anchors = 3
nb_execution_mode = "off"
mathjax_path = "mathjax/tex-chtml.js"

# Docstrings
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # attributes of classes are no entries of their own
autodoc_default_options = {"members": True, "inherited-members": True, "member-order": "bysource"}
autodoc_inherit_docstrings = False
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
add_module_names = False
toc_object_entries_show_parents = "hide"

# Appearance
html_theme = "furo"
html_title = f"torchpbp {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
pygments_style, pygments_dark_style = "friendly", "monokai"
copybutton_prompt_text = ">>> "


def collect_tutorials(app: Sphinx) -> None:
    """Write README's quickstart and the notebooks into the source folder, where Sphinx reads them."""
    shutil.rmtree(HERE / "tutorials", ignore_errors=True)
    (HERE / "tutorials").mkdir()
    for notebook in sorted((HERE.parent / "notebooks").glob("*.ipynb")):
        shutil.copy(notebook, HERE / "tutorials")
    text = (HERE.parent / "README.md").read_text(encoding="utf-8").partition("## Quickstart\n")[2].partition("\n## ")[0]
    if not text:
        raise ExtensionError("README.md has no section 'Quickstart'.")
    text = text.replace("](docs/", "](../").replace("](notebooks/README.md)", "](01_first_latent_graph.ipynb)")
    (HERE / "tutorials" / "00_quickstart.md").write_text(f"# Quickstart\n{text}", encoding="utf-8")


def link_within_site(app: Sphinx, name: str, source: list[str]) -> None:
    """Let links to files outside of docs lead to their pages."""
    for file, page in PLACES.items():
        source[0] = source[0].replace(f"]({file}", f"]({page}")
    if "/" not in name:
        source[0] = NOTEBOOK.sub(r"[\g<0>](tutorials/\1.ipynb)", source[0])
        source[0] = source[0].replace("](../notebooks/", "](tutorials/")


class Citations(SphinxTransform):
    """Let citations in pages and docstrings lead to the references."""

    default_priority = 500

    def apply(self, **options: Any) -> None:
        page = self.app.builder.get_relative_uri(self.env.docname, "references")
        for text in list(self.document.findall(nodes.Text)):
            parent = text.parent
            if isinstance(parent, (nodes.FixedTextElement, nodes.literal, nodes.reference, addnodes.pending_xref)):
                continue
            parts: list[nodes.Node] = []
            end = 0
            for found in CITATION.finditer(text):
                link = nodes.reference("", found[0], internal=True)
                link["refuri"] = f"{page}#{found[1].lower()}"
                parts += [nodes.Text(text[end : found.start()]), link]
                end = found.end()
            if parts:
                parent.replace(text, [*parts, nodes.Text(text[end:])])


class ApiLinks(SphinxTransform):
    """Let the first mention of each public name on a page lead to its entry."""

    default_priority = 500

    def apply(self, **options: Any) -> None:
        names = {name for name in torchpbp.__all__ if not isinstance(getattr(torchpbp, name), ModuleType)}
        for text in [] if self.env.docname.startswith("api/") else list(self.document.findall(nodes.literal)):
            name = text.astext()
            if name in names and not isinstance(text.parent, (nodes.reference, nodes.title)):
                names.remove(name)
                link = addnodes.pending_xref(
                    refdomain="py", reftype="obj", reftarget=f"torchpbp.{name}", refdoc=self.env.docname
                )
                text.replace_self(link)
                link += text


def find_documented(
    app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, content: nodes.Element
) -> nodes.Element | None:
    """Resolve a name by the object behind it: names are documented once, under the path that users import.

    Types in signatures that have no page stay plain text; other names without one are an error.
    """
    if node.get("refdomain") != "py" or not node["reftarget"].startswith("torchpbp."):
        return None
    found = imported(node["reftarget"])
    entries = env.domains.python_domain.objects
    entry = next((e for name, e in entries.items() if found is not None and imported(name) is found), None)
    if entry is not None:
        link = nodes.reference("", "", content, internal=True)
        link["refuri"] = f"{app.builder.get_relative_uri(node['refdoc'], entry.docname)}#{entry.node_id}"
        return link
    parent = node.parent
    while parent is not None and not isinstance(parent, addnodes.desc_signature):
        parent = parent.parent
    return content if parent is not None else None


@cache
def imported(name: str) -> object | None:
    """The object of a dotted name, or None."""
    found: object = torchpbp
    for part in name.split(".")[1:]:
        found = getattr(found, part, None)
    return found


def escape_names(app: Sphinx, what: str, name: str, thing: object, options: Any, lines: list[str]) -> None:
    """Stars of shapes are no emphasis, and attributes with a trailing underscore, such as classes_, no references."""
    lines[:] = [TRAILING.sub(r"\1\\_:", STARRED.sub(r"\\*", line)) for line in lines]


def skip_foreign(app: Sphinx, what: str, name: str, member: object, skip: bool, options: Any) -> bool | None:
    """Leave out members that are inherited from other packages, such as the methods of nn.Module."""
    function = getattr(member, "fget", member)
    module = getattr(function, "__module__", None) or ""
    return True if what in ("class", "exception") and not module.startswith("torchpbp") else None


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", collect_tutorials)
    app.connect("source-read", link_within_site)
    app.connect("missing-reference", find_documented)
    app.connect("autodoc-skip-member", skip_foreign)
    app.connect("autodoc-process-docstring", escape_names)
    app.add_transform(Citations)
    app.add_transform(ApiLinks)
