"""Defines a section of a page. Optional parts of the harness, such as game days, add sections to a run's report."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Section:
    """Paragraphs, and possibly a table with texts in the first column and numbers in the others. With `all_text`, all
    columns of the table hold texts. `top` is a line of text that a report shows at the top of the page."""

    title: str
    words: Sequence[str] = ()
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    all_text: bool = False
    top: str = ""
