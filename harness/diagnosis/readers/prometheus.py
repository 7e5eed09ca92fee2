"""Reads alerts of Prometheus: a POST of Alertmanager's webhook (version 4), or the response of `/api/v1/alerts`.

This reader follows the documentation of Prometheus 2 and 3 for both formats. This reader was not tried on a real
Prometheus server. An alert's label `kind` decides the kind of failure. Without this label, known words in the alert's
text decide, such as `timeout`. The label `decision` gives the answer's decision. These labels name the suspect: `rank`,
`node` or `instance` (without its port), `gpu`, `device`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from harness.diagnosis.answer import GPU_MAX, NAME_MAX, RANK_MAX, Answer, Suspect
from harness.diagnosis.readers.contract import (
    AnswerReader,
    File,
    decision_of,
    json_of,
    kind_by_words,
    listed,
    mapping,
    text,
    whole,
)

NODES = ("node", "Hostname", "hostname", "host", "nodename", "instance")


class Prometheus(AnswerReader):
    def answers(self, file: File) -> Iterator[Answer]:
        told = mapping(json_of(file))
        alerts = told.get("alerts", mapping(told.get("data")).get("alerts"))
        for alert in listed(alerts, file, "it holds no list of alerts"):
            if alert.get("status", alert.get("state", "firing")) == "firing":
                yield self._answer(file, alert)

    def _answer(self, file: File, alert: Mapping[str, Any]) -> Answer:
        labels, notes = mapping(alert.get("labels")), mapping(alert.get("annotations"))
        told = (labels.get("alertname"), notes.get("summary"), notes.get("description"))
        words, at = text(" ".join(map(text, told))), self.moment(alert.get("startsAt", alert.get("activeAt")), file)
        kind = kind_by_words(text(labels.get("kind")) or words)
        return Answer(kind, _who(labels), decision_of(labels.get("decision")), words, at)


def _who(labels: Mapping[str, Any]) -> tuple[Suspect, ...]:
    node = next((name for each in NODES if (name := text(labels.get(each), NAME_MAX))), "")
    gpu, link = whole(labels.get("gpu"), GPU_MAX), text(labels.get("device"), NAME_MAX)
    suspect = Suspect(whole(labels.get("rank"), RANK_MAX), re.sub(r":\d+$", "", node) or None, gpu, link or None)
    return () if suspect == Suspect() else (suspect,)


READER = Prometheus
