"""docs/events.md: the vocabulary of the event log as a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.log import checked_lines, vocabulary
from harness.log.vocabulary import Event, Field

HEAD = """\
# The event log

Made by `make docs` from `harness/log/vocabulary.py`; a test fails when it is out of date.
`chaos schema --events` prints the same as a JSON Schema.

A run's event log is the folder `events/` of the run. It is all that is judged.

| file | who writes it |
|---|---|
| `events/harness.jsonl` | the harness |
| `events/<node>/<writer>.jsonl` | one process on that node; `control` is the control node |
| `events/<writer>.jsonl` | the same, in older runs |

Each line is one JSON object. The first line is the header; every other line is one event. A line is written by one
`write` to a file that is opened for appending, so that a kill cuts at most the last line.

**Steps.** `step` counts completed optimizer steps: the first one is 1. `restored` with step 20 is followed by step 21.
A checkpoint of step 20 holds the state after 20 steps.

**Numbers that are not finite** are written as the strings `"nan"`, `"inf"` and `"-inf"`.

**What readers ignore:** an event whose name is not listed for its writer's role, and a field that is not listed. `null`
in an optional field of an event is the same as no field; in the header it is refused. Of a key that comes twice in one line, the last one counts.

**What readers refuse:** a listed field with another type or beyond its limits, a required field that is missing, a line
that is not JSON or longer than {line} bytes ({plan} bytes in the harness's file), and anything but a regular file with at
most {file} bytes. The answer names file and line; nothing is judged (exit code 3). One exception: the last line of a
file may be cut.

**Role and node** are told by the place of a file. A header that contradicts its place is refused.
"""
ROLES = {
    "trainer": "Events of a trainer",
    "agent": "Events of a launcher (role `agent`)",
    "harness": "Events of the harness",
}


def page() -> str:
    from harness.log import files

    head = HEAD.format(line=files.LINE_BYTES_MAX, plan=files.PLAN_BYTES_MAX, file=files.FILE_BYTES_MAX)
    return "\n".join([head, *_sections()]).rstrip("\n") + "\n"


def _sections() -> Iterator[str]:
    yield "## The header\n"
    yield from _table(vocabulary.HEADER)
    yield "## Fields of every event\n"
    yield from _table(vocabulary.COMMON)
    for role, title in ROLES.items():
        yield f"## {title}\n"
        for event in vocabulary.EVENTS:
            if event.role == role:
                yield from _event(event)


def _event(event: Event) -> Iterator[str]:
    others = [f"`{role}`" for role in event.roles[1:]]
    also = f" Also written by {' and '.join(others)}." if others else ""
    yield f"### `{event.name}`\n"
    yield f"{event.meaning}{also}\n"
    if event.fields:
        yield from _table(event.fields)


def _table(fields: Sequence[Field]) -> Iterator[str]:
    yield "| field | holds | unit | meaning |"
    yield "|---|---|---|---|"
    yield from _rows(fields, "")
    yield ""


def _rows(fields: Sequence[Field], inside: str) -> Iterator[str]:
    for field in fields:
        name = f"`{inside}{field.name}`" + (" (optional)" if field.optional else "")
        yield f"| {name} | {_holds(field)} | {field.unit} | {_meaning(field)} |"
        yield from _rows(field.fields, f"{inside}{field.name}.")


def _holds(field: Field) -> str:
    return checked_lines.allowed(field)


def _meaning(field: Field) -> str:
    known = ", ".join(f"`{value}`" for value in field.values)
    return field.meaning + (f": {known}" if known and not field.closed else "")
