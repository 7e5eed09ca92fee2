r"""Reads lines of any log by a regular expression that the user gives.

    --read "lines: {regex: '(?P<at>\S+) straggler: rank (?P<rank>\d+)', kind: straggler, decision: evict-node}"

The expression can have the named groups `at` (time in ISO 8601), `step`, `kind`, `decision`, `rank`, `node`, `gpu`,
`link`, `file` and `why`. The options `kind` and `decision` apply to lines in which the group with the option's name
matches nothing. If the text of the group `kind` is no kind of failure in `Kind`, known words in the text decide:
`timeout` means a hang.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec
import regex  # unlike `re`, it can be told how long a search may take
from pydantic import AfterValidator, Field

from harness.diagnosis.answer import Answer, AnswersError, Decision, Kind, Suspect
from harness.diagnosis.readers.contract import AnswerReader, File, decision_of, kind_by_words, text

GROUPS = frozenset({"at", "step", "kind", "decision", "why", *Suspect.__struct_fields__})
LINE_CHARS_MAX = 2000  # that are searched: some expressions take the square of a line's length
SEARCH_S_MAX = 0.05
LATE_MAX = 20  # lines whose search may take longer


def _checked(pattern: str) -> str:
    try:
        groups = set(regex.compile(pattern).groupindex)
    except regex.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
    if groups - GROUPS:
        raise ValueError(f"{pattern!r} may have the groups {', '.join(sorted(GROUPS))} and no other")
    return pattern


class Lines(AnswerReader):
    pattern = r".*"

    regex: Annotated[str, Field(max_length=1000), AfterValidator(_checked)]
    kind: Kind = Kind.UNKNOWN
    decision: Decision | None = None

    def answers(self, file: File) -> Iterator[Answer]:
        expression, late = regex.compile(self.regex), 0
        for number, line in enumerate(file.content.decode(errors="replace").splitlines(), 1):
            try:
                if found := expression.search(line[:LINE_CHARS_MAX], timeout=SEARCH_S_MAX):
                    told = {name: value for name, value in found.groupdict().items() if value}
                    yield self._answer(file, number, told)
            except TimeoutError:
                late += 1
                if late > LATE_MAX:
                    raise AnswersError(file.name, number, f"{self.regex!r} takes too long to search") from None

    def _answer(self, file: File, number: int, told: dict[str, str]) -> Answer:
        try:
            who = msgspec.convert({name: told.get(name) for name in Suspect.__struct_fields__}, Suspect, strict=False)
            step = msgspec.convert(told.get("step"), int | None, strict=False)
        except ValueError as error:
            raise AnswersError(file.name, number, str(error)) from None
        kind, decision = kind_by_words(told.get("kind", self.kind)), decision_of(told.get("decision")) or self.decision
        at, why = self.moment(told.get("at"), file, number), text(told.get("why"))
        return Answer(kind, () if who == Suspect() else (who,), decision, why, at, step)


READER = Lines
