"""A checkpoint matrix as a table: Markdown for people, plain values for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.report.words import one_line


@dataclass(frozen=True)
class MatrixRow:
    """One cell, in words. `step`: what was restored."""

    kind: str
    part: str
    file: str
    came: str
    step: int | None
    detail: str
    seconds: float

    @property
    def result(self) -> str:
        return f"{self.came} to step {self.step}" if self.came == "fell back" else self.came


def to_json(head: dict[str, Any], rows: Sequence[MatrixRow]) -> dict[str, Any]:
    """Stable: `schema` grows with every change of meaning."""
    return {"schema": 1, **head, "cells": [{**vars(row), "seconds": round(row.seconds, 1)} for row in rows]}


def to_markdown(title: str, facts: Sequence[str], rows: Sequence[MatrixRow]) -> str:
    lines = [f"# {one_line(title)}", "", *(f"* {one_line(fact)}" for fact in facts), ""]
    lines += ["| damage | to | file | result | detail |", "|---|---|---|---|---|"]
    for row in rows:
        cells = (row.kind, row.part, row.file, row.result, row.detail)
        lines.append("| " + " | ".join(one_line(cell).replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
