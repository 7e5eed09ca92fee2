"""Reads and validates a run's stored plan, within size limits. Each error in a plan names its file and key."""

import json
import pathlib
from typing import NoReturn

from harness.errors import ScenarioError
from harness.plan.run_plan import Plan
from harness.spec.document import PROBLEMS_MAX, checked, dotted, printable, read_text
from harness.spec.expected_scores import ScoreBounds, wrong_expectations

BYTES_MAX = 32 * 2**20
VALUES_MAX = 2_000_000  # keys and values, counted by what separates them


def load_plan(path: pathlib.Path, scores: ScoreBounds | None = None) -> Plan:
    """Reads a plan from its file. Raises `ScenarioError` for an invalid plan, or `UsageError` for an unreadable
    file."""
    return parse_plan(read_text(path, BYTES_MAX), str(path), scores)


def parse_plan(text: str, source: str, scores: ScoreBounds | None = None) -> Plan:
    if sum(map(text.count, ",[{")) > VALUES_MAX:
        raise ScenarioError([f"{source}: more than the {VALUES_MAX:,} values that are allowed in a plan"])
    try:
        data = json.loads(text, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        raise ScenarioError([f"{source}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}"]) from error
    except (ValueError, RecursionError) as error:
        raise ScenarioError([f"{source}: not valid JSON: {str(error)[:200]}"]) from error
    plan, problems = checked(Plan, data)
    if plan and scores is not None:
        problems = [*wrong_expectations(plan.expect, scores)]
    if plan is None or problems:
        lines = [printable(f"{source}: {dotted(path) or 'the plan'}: {message}") for path, message in problems]
        raise ScenarioError(lines[:PROBLEMS_MAX])
    return plan


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")
