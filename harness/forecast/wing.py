"""Adds the section "a week at scale" to the report of a run."""

from __future__ import annotations

from harness.campaign.wings import Wing
from harness.report.run_report import Report
from harness.report.section import Section


def _section(report: Report) -> Section | None:
    from harness.forecast.run_section import section_of  # which the list of runs does without

    return section_of(report)


WING = Wing(section=_section)
