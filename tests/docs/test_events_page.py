"""The page on the event log and the JSON Schema say what the readers do."""

from __future__ import annotations

import json
import pathlib
import re

import pytest
from docs.events_page import page
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from harness.cli.main import make_app
from harness.log import vocabulary
from harness.log.events_as_json_schema import json_schema


def test_every_declaration_is_on_the_page() -> None:
    text = page()
    for event in vocabulary.EVENTS:
        assert text.count(f"### `{event.name}`\n") == 1
        assert event.meaning in text


def test_the_command_line_prints_the_schema() -> None:
    printed = CliRunner().invoke(make_app(), ["schema", "--events"])
    assert printed.exit_code == 0
    assert json.loads(printed.stdout) == json.loads(json.dumps(json_schema()))
    Draft202012Validator.check_schema(json.loads(printed.stdout))


@pytest.mark.parametrize("event", vocabulary.EVENTS, ids=lambda event: event.name)
def test_no_field_is_declared_twice(event: vocabulary.Event) -> None:
    names = [field.name for field in (*vocabulary.COMMON, *event.fields)]
    assert len(names) == len(set(names))


def test_whatever_is_written_in_this_project_is_declared() -> None:
    root = pathlib.Path(__file__).resolve().parents[2]
    declared = {event.name for event in vocabulary.EVENTS}
    for folder in ("harness/run", "harness/faults", "reference_trainer"):
        for path in (root / folder).rglob("*.py"):
            written = re.findall(r'(?:emit|_emit|context\.log|self\.log)\(\s*"([a-z_.]+)"', path.read_text())
            assert set(written) <= declared, path
