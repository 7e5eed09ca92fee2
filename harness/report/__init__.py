"""Writes the reports of a run: report.json, report.html, report.md and junit.xml."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from harness.log import untrusted_files

if TYPE_CHECKING:
    from harness.judge.score import Scorecard
    from harness.report.run_report import Report
    from harness.report.section import Section


def write_reports(
    scorecard: Scorecard, run_dir: pathlib.Path, sections_of: Callable[[Report], Sequence[Section]] = lambda _: ()
) -> dict[str, pathlib.Path]:
    """Writes the JSON, HTML, Markdown and JUnit reports of a run, and returns their paths by file name. All reports are
    rendered before the first one is written, and each file is replaced atomically."""
    from harness.report import html_page, junit, markdown, run_report  # which the names of things do without
    from harness.report.strict_json import json_text

    report = run_report.from_scorecard(scorecard)
    sections = sections_of(report)
    contents = {
        "report.json": json_text(report.to_json()),
        "report.html": html_page.render(report, scorecard.evidence, sections),
        "report.md": markdown.render(report, sections),
        "junit.xml": junit.render(report),
    }
    return write_files(contents, run_dir)


def write_files(contents: Mapping[str, str], folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Writes files durably, each atomically, and returns their paths by name. Invalid Unicode becomes `?`."""
    for name, text in contents.items():
        untrusted_files.replace(folder.resolve(), name, text.encode("utf-8", errors="replace"), durable=True)
    return {name: folder / name for name in contents}
