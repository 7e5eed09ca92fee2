"""Reads events of dlrover from its `events_RANK_PID.log` in JSON (`DLROVER_EVENT_TEXT_FORMATTER=JSON`).

This reader follows dlrover's sources of 2025 (`training_event/event.py`, `predefined/dlrover.py`). This reader was not
tried on the output of a real dlrover. The field `event_time` is local time without a time zone; give the zone's offset
in hours: `dlrover: {utc_offset_h: 8}`. The reader skips events that are not in `EVENTS`, and lines that are not JSON.
If an event has no `pod_name`, the suspect is the node with the event's `node_rank` (counted from 0), such as `node3`.
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
