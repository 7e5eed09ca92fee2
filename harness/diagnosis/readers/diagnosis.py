"""Reads a diagnoser's answers in the harness's own format: one answer per line of `diagnosis.jsonl` (see
`harness/diagnosis/answer.py`).

In an event log, each event `diagnosis` is a diagnoser's answer, given at the event's time `wall_ns`."""

from __future__ import annotations

from collections.abc import Iterator

from harness.diagnosis.answer import Answer, AnswersError, answer_told, read_lines
from harness.diagnosis.readers.contract import AnswerReader, File
from harness.log import checked_lines


class Diagnosis(AnswerReader):
    pattern = r".*\.jsonl"

    def answers(self, file: File) -> Iterator[Answer]:
        of_log = b'"schema"' in file.content.partition(b"\n")[0]
        return _events(file) if of_log else read_lines(file.content, file.name)


def _events(file: File) -> Iterator[Answer]:
    """Yields the answers in an event log. Ignores an incomplete last line, which a killed process can leave."""
    for number, line in enumerate(file.content.splitlines(keepends=True), 1):
        if b'"diagnosis"' in line and line.endswith(b"\n"):
            try:
                record = checked_lines.parse(line)
                if record.get("event") == "diagnosis":
                    record = checked_lines.event(record, "trainer")
                    yield answer_told(record, record.get("wall_ns"))
            except checked_lines.Damaged as damage:
                raise AnswersError(file.name, number, str(damage)) from None


READER = Diagnosis
