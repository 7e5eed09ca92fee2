"""Sphinx's settings for the docs as a site: `make site`.

The pages stay plain Markdown. Their order and the four parts come from the tables of docs/README.md. The first page is
the README of the project. The site is read without a checkout: a link out of docs/ becomes plain words, and one to a
folder leads to its first page.
"""

import os
import pathlib
import re
import shutil
import tomllib
from collections.abc import Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
project, author = "chaos-harness", "The authors of chaos-harness"
version = release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
extensions = ["myst_parser"]
root_doc = "README"
myst_heading_anchors = 4
html_theme = "furo"

_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]*)([^)\s]*)\)")
_PAGE = re.compile(r"\]\(([\w-]+)(?:\.md)?[)#]")


def contents(text: str) -> Iterator[str]:
    """Returns hidden tables of contents, one for each part of the first page, as MyST writes them."""
    for part in re.split(r"^## ", text, flags=re.M)[1:]:
        title, _, body = part.partition("\n")
        names = dict.fromkeys(_PAGE.findall(body))
        pages = [f"{name}/*" if (DOCS / name).is_dir() else name for name in names]
        yield "\n".join(["", "```{toctree}", ":hidden:", ":glob:", f":caption: {title}", "", *pages, "```", ""])


def link(found: re.Match[str], page: pathlib.Path) -> str:
    """Returns the link as it is on the site, or its words if it leads out of docs/."""
    picture, words, target, anchor = found.groups()
    place = (page.parent / target).resolve()
    if place.is_dir():
        place = next(iter(sorted(place.glob("*.md"))), place)
    if not target or "://" in target:
        return found[0]
    known = picture or (place.is_file() and DOCS in place.parents)
    return f"{picture}[{words}](/{os.path.relpath(place, DOCS)}{anchor})" if known else words


def read(app: Any, name: str, source: list[str]) -> None:
    page = ROOT / "README.md" if name == root_doc else DOCS / f"{name}.md"
    source[0] = _LINK.sub(lambda found: link(found, page), page.read_text())
    if name == root_doc:
        source[0] += "".join(contents((DOCS / page.name).read_text()))


def first_page(app: Any, error: Exception | None) -> None:
    if error is None:
        shutil.copy(pathlib.Path(app.outdir) / f"{root_doc}.html", pathlib.Path(app.outdir) / "index.html")


def setup(app: Any) -> None:
    app.connect("source-read", read)
    app.connect("build-finished", first_page)
