"""A section of a page: words, and maybe a table. Wings have some for the report of a run."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Section:
    """Words and maybe a table, whose columns but the first are numbers unless `all_text`. `top`: for the page's top."""

    title: str
    words: Sequence[str] = ()
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    all_text: bool = False
    top: str = ""
