"""Events of dlrover: the lines of its `events_RANK_PID.log` in the form JSON (`DLROVER_EVENT_TEXT_FORMATTER=JSON`).

The form is that of its sources of 2025 (`training_event/event.py`, `predefined/dlrover.py`). It was not tried on the
real program. `event_time` is local time without a zone: `dlrover: {utc_offset_h: 8}` names it. Other events and lines
are left out. `node_rank` counts nodes from 0: the suspect is `node` with that number.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from harness.diagnosis.answer import NAME_MAX, RANK_MAX, Answer, Decision, Kind, Suspect
from harness.diagnosis.readers.contract import AnswerReader, File, kind_by_words, mapping, text, whole

EVENTS: dict[str, tuple[Kind | None, Decision | None]] = {  # `None`: the words of its reason decide
    "#process_fail": (Kind.CRASH, None),
    "#process_restart": (Kind.CRASH, Decision.RESTART_IN_PLACE),
    "#worker_no_heartbeat": (Kind.HANG, None),
    "#worker_relaunch": (Kind.CRASH, Decision.RESTART_ELSEWHERE),
    "#fault_detect": (None, None),
    "#job_abortion": (None, Decision.STOP),
    "#job_restart": (None, Decision.RESTART_IN_PLACE),
}


class Dlrover(AnswerReader):
    pattern = r"events_.*\.log"

    def answers(self, file: File) -> Iterator[Answer]:
        for number, line in enumerate(file.content.split(b"\n"), 1):
            try:
                event = mapping(json.loads(line))
            except (ValueError, RecursionError):
                continue
            if (name := text(event.get("name"))) in EVENTS:
                content, (kind, decision) = mapping(event.get("content")), EVENTS[name]
                reason = text(content.get("reason"))
                node = text(content.get("pod_name"), NAME_MAX)
                place = whole(content.get("node_rank", content.get("caused_node_rank")), RANK_MAX)
                node = node or ("" if place is None else f"node{place}")
                who, at = (Suspect(node=node),) if node else (), self.moment(event.get("event_time"), file, number)
                yield Answer(kind or kind_by_words(reason), who, decision, text(f"{name} {reason}"), at)


READER = Dlrover
