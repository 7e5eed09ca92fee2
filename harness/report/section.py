"""A section of a page: words, and maybe a table. Wings add sections to the report of a run."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Section:
    """Words, and maybe a table of numbers after a first column of text. `all_text`: no column holds numbers. `top`: the
    section stands at the top of the page."""

    title: str
    words: Sequence[str] = ()
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    all_text: bool = False
    top: str = ""
