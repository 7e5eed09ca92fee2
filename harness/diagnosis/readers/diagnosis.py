"""Our own neutral form, `diagnosis.jsonl`: one answer a line, as `harness/diagnosis/answer.py` says."""

from __future__ import annotations

from collections.abc import Iterator

from harness.diagnosis.answer import Answer, read_lines
from harness.diagnosis.readers.contract import AnswerReader, File


class Diagnosis(AnswerReader):
    pattern = r".*\.jsonl"

    def answers(self, file: File) -> Iterator[Answer]:
        return read_lines(file.content, file.name)


READER = Diagnosis
