"""Our own neutral form, `diagnosis.jsonl`: one answer a line (see `harness/diagnosis/answer.py`).

In an event log, an answer is the event `diagnosis`, and its `wall_ns` is the answer's time.
"""

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
    """Yields the answers in a file of an event log. A kill may have cut off its last line."""
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
