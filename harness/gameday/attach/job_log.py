"""Stores the log of a job that somebody else started, and compares repeated steps with their first execution."""

from __future__ import annotations

import pathlib
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.campaign import own_log
from harness.errors import UsageError
from harness.judge.facts import repeated_steps
from harness.judge.verdict import Verdict
from harness.judge.weighing import answer
from harness.trainers.readers.contract import Reader

SAME = {Verdict.PASS: True, Verdict.FAIL: False}
BYTES_MAX = 64 * 2**20  # most bytes of one node


class JobLog:
    """Stores the log lines of each node in `folder/<node>.log`. Lines are lost if a node logs too many lines between
    two calls of `add`."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._before: dict[str, list[str]] = {}

    def add(self, tails: Mapping[str, Sequence[str]], last: bool = False) -> None:
        """Appends the log lines that the previous call did not have. Omits each node's last line, which may be
        incomplete, unless `last` is True."""
        for node, tail in tails.items():
            lines = list(tail if last else tail[:-1])
            before = self._before.get(node, [])
            longest = min(len(before), len(lines))  # most lines that both may share
            known = next((count for count in range(longest, 0, -1) if before[-count:] == lines[:count]), 0)
            new = lines[known:]
            self._before[node] = lines
            path = self._folder / f"{urllib.parse.quote(node or 'job', safe=' ')}.log"
            if new and not (path.exists() and path.stat().st_size > BYTES_MAX):
                with path.open("a") as file:
                    file.writelines(f"{line}\n" for line in new)


def done_again(folder: pathlib.Path, reader: Reader) -> Iterator[dict[str, Any]]:
    """Yields a record for each restart after which a node repeated steps. The field `same` of a record is True if the
    repeated steps equal their first execution, and `None` if no comparison is possible."""
    for path in sorted(folder.glob("*.log")):
        try:
            own = own_log.executed([path], reader)
            compared = repeated_steps.compared(repeated_steps.done_again(own.told))
            judged = [(SAME.get(answer(each)), each.words) for each in compared]
            answers = [*judged, *((None, doubt) for doubt in own.doubts)] if judged else []
        except UsageError as error:  # the strikes are over; their report counts without this
            answers = [(None, str(error))]
        for same, text in answers:
            yield {"what": "done_again", "node": urllib.parse.unquote(path.stem), "same": same, "text": text}
