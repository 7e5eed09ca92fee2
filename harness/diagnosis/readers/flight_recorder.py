"""Reads dumps of PyTorch's flight recorder: one file per rank, named by `TORCH_FR_DUMP_TEMP_FILE` and the rank.

This reader takes the format of PyTorch 2.13, as pickle or JSON: `entries` with `process_group`, `collective_seq_id`,
`state` and `retired`. This reader was tried on dumps of PyTorch 2.13 over gloo. As in PyTorch's own analyser, the
suspects in a process group are the ranks whose newest collective is behind that of other ranks. A dump does not tell
when it was written, so the reader's answer has no time. Pickles are read as data: nothing is imported or called.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.diagnosis.answer import SUSPECTS_MAX, Answer, AnswersError, Decision, Kind, Suspect
from harness.diagnosis.readers.contract import AnswerReader, File, json_of, mapping, mappings
from harness.trainers.checkpoints.shared import pickles

_RANK = re.compile(r"(\d{1,6})(\.json)?$")
Newest = dict[int, tuple[int, bool]]  # by rank: the number of its newest collective, and whether that is over


class FlightRecorder(AnswerReader):
    pattern = r".*\d(\.json)?"

    def read(self, files: Sequence[File]) -> Iterator[Answer]:
        groups: dict[str, Newest] = {}
        for file in files:
            rank = _RANK.search(file.name)
            if not rank:
                raise AnswersError(file.name, None, "the name of a dump ends with its rank, as in nccl_trace_rank_3")
            for entry in mappings(_dump(file).get("entries")):
                _note(groups, int(rank[1]), entry)
        return (answer for group, newest in groups.items() if (answer := _answer(group, newest)))

    def answers(self, file: File) -> Iterator[Answer]:
        return self.read([file])


def _dump(file: File) -> Mapping[str, Any]:
    if file.content[:1] == b"{":
        return mapping(json_of(file))
    try:
        return mapping(_plain(pickles.read(file.content), {}))
    except (ValueError, RecursionError) as error:
        raise AnswersError(file.name, None, f"it is no dump of the flight recorder: {error}") from None


def _plain(made: Any, known: dict[int, Any]) -> Any:
    if not isinstance(made, pickles.Made | tuple):
        return made
    if id(made) not in known:
        known[id(made)] = None  # an object that holds itself
        if isinstance(made, tuple) or made.name == "list":
            known[id(made)] = [_plain(each, known) for each in (made if isinstance(made, tuple) else made.items)]
        elif made.name == "dict":
            known[id(made)] = {key: _plain(value, known) for key, value in made.pairs if isinstance(key, str)}
    return known[id(made)]


def _note(groups: dict[str, Newest], rank: int, entry: Mapping[str, Any]) -> None:
    number, group = entry.get("collective_seq_id"), entry.get("process_group")
    if isinstance(number, int) and entry.get("is_p2p") is not True:
        newest = groups.setdefault(str(group[0]) if isinstance(group, list) and group else str(group), {})
        over = entry.get("retired") is True or entry.get("state") == "completed"
        newest[rank] = max(newest.get(rank, (number, over)), (number, over))


def _answer(group: str, newest: Newest) -> Answer | None:
    furthest = max(number for number, _ in newest.values())
    behind = sorted(rank for rank, (number, _) in newest.items() if number < furthest)
    if not behind or (furthest, False) not in newest.values():
        return None
    who = tuple(map(Suspect, behind[:SUSPECTS_MAX]))
    return Answer(Kind.HANG, who, Decision.RESTART_IN_PLACE, f"group {group}: others wait in collective {furthest}")


READER = FlightRecorder
