"""A section of a page: words, and maybe a table. Wings have some for the report of a run."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Section:
    """The first column of the table is text, the others are numbers unless `all_text`. `top`: a sentence that stands
    at the top of the page."""

    title: str
    words: Sequence[str] = ()
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    all_text: bool = False
    top: str = ""
