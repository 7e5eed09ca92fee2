"""docs/events.md: the vocabulary of the event log as a page."""

import pathlib
from collections.abc import Iterator, Sequence

from harness.log import checked_lines, files, vocabulary
from harness.log.vocabulary import Event, Field

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "events.md"
ROLES = {
    "trainer": "Events of a trainer",
    "agent": "Events of a launcher (role `agent`)",
    "harness": "Events of the harness",
}


def page() -> str:
    """What is above the first section is written by hand, but for the limits of readers."""
    head = PAGE.read_text().partition("## The header\n")[0]
    for limit in (files.LINE_BYTES_MAX, files.PLAN_BYTES_MAX, files.FILE_BYTES_MAX):
        if f"{limit} bytes" not in head:
            raise ValueError(f"{PAGE}: nothing is said of the limit of {limit} bytes")
    return head + "\n".join(_sections()).rstrip("\n") + "\n"


def _sections() -> Iterator[str]:
    yield "## The header\n"
    yield from _table(vocabulary.HEADER)
    yield "## Fields of every event\n"
    yield from _table(vocabulary.COMMON)
    for role, title in ROLES.items():
        yield f"## {title}\n"
        for event in vocabulary.EVENTS:
            if event.roles[0] == role:
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
