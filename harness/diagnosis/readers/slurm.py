"""Reads why Slurm drained nodes, from `sinfo --noheader --list-reasons --format='%H|%u|%N|%E'`.

This reader follows the manual of `sinfo`, versions 21.08 to 25.05 (%H time, %u user, %N nodes, %E reason). This reader
was not tried on a real cluster. Slurm prints local times without a time zone; give the zone's offset in hours:
`slurm: {utc_offset_h: 2}`. Slurm's reason is free text: known words in it, such as `timeout`, decide the kind."""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.diagnosis.answer import NAME_MAX, SHOWN_MAX, SUSPECTS_MAX, Answer, AnswersError, Decision, Suspect
from harness.diagnosis.readers.contract import AnswerReader, File, kind_by_words, text

_HOST = r"([^,\[\]]+)(?:\[(\d{1,9}(?:-\d{1,9})?(?:,\d{1,9}(?:-\d{1,9})?)*)\])?"
_HOSTS = re.compile(f"{_HOST}(?:,{_HOST})*")


class Slurm(AnswerReader):
    pattern = r".*\.txt"

    def answers(self, file: File) -> Iterator[Answer]:
        for number, line in enumerate(file.content.decode(errors="replace").splitlines(), 1):
            at, _, names, reason = (field.strip() for field in (*line.split("|", 3), "", "", "")[:4])
            try:
                who = tuple(Suspect(node=name) for name in hosts(names))
            except ValueError as error:
                raise AnswersError(file.name, number, f"{error}; the form is %H|%u|%N|%E") from None
            told = None if at == "Unknown" else at
            yield Answer(kind_by_words(reason), who, Decision.EVICT_NODE, text(reason), self.moment(told, file, number))


def hosts(told: str) -> list[str]:
    """Returns the names in Slurm's host list, such as `gpu[01-03,7],login1`. Raises `ValueError`."""
    found: list[str] = []
    if len(told) <= 10 * NAME_MAX and _HOSTS.fullmatch(told):
        for prefix, ranges in re.findall(_HOST, told):
            for part in ranges.split(",") if ranges else [""]:
                first, _, last = part.partition("-")
                span = range(int(first or 0), int(last or first or 0) + 1)[: SUSPECTS_MAX + 1]
                found += (
                    [f"{prefix}{place:0{len(first)}}"[:NAME_MAX] for place in span] if part else [prefix[:NAME_MAX]]
                )
                if len(found) > SUSPECTS_MAX:
                    raise ValueError(f"{told[:SHOWN_MAX]!r} has more than {SUSPECTS_MAX} hosts")
    if not found:
        raise ValueError(f"{told[:SHOWN_MAX]!r} is no list of hosts, like gpu[01-03,7]")
    return found


READER = Slurm
