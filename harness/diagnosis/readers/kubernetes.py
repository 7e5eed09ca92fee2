"""Reads conditions and taints of Kubernetes nodes from the output of `kubectl get nodes -o json`.

This reader takes the API `v1` (`NodeCondition`, `Taint`), with the conditions of node-problem-detector and the taints
that Kubernetes and cloud providers document. This reader was not tried on a real cluster. A taint without a time gives
an answer without a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harness.diagnosis.answer import NAME_MAX, Answer, Decision, Kind, Suspect
from harness.diagnosis.readers.contract import AnswerReader, File, json_of, kind_by_words, mapping, mappings, text

_GONE = (Kind.CRASH, Decision.RESTART_ELSEWHERE)
KNOWN: Mapping[str, tuple[Kind, Decision | None]] = {  # by the type of a condition, or the key of a taint
    "Ready": _GONE,
    "MemoryPressure": (Kind.CRASH, None),
    "PIDPressure": (Kind.CRASH, None),
    "DiskPressure": (Kind.STORAGE, None),
    "ReadonlyFilesystem": (Kind.STORAGE, Decision.EVICT_NODE),
    "CorruptDockerOverlay2": (Kind.STORAGE, Decision.EVICT_NODE),
    "NetworkUnavailable": (Kind.NETWORK, Decision.EVICT_NODE),
    "KernelDeadlock": (Kind.HANG, Decision.EVICT_NODE),
    "FrequentKubeletRestart": (Kind.CRASH, None),
    "FrequentContainerdRestart": (Kind.CRASH, None),
    "node.kubernetes.io/not-ready": _GONE,
    "node.kubernetes.io/unreachable": _GONE,
    "node.kubernetes.io/out-of-service": _GONE,
    "aws-node-termination-handler/spot-itn": _GONE,
    "cloud.google.com/impending-node-termination": _GONE,
}
QUIET = ("node.kubernetes.io/unschedulable", "node-role.kubernetes.io/", "nvidia.com/gpu")  # taints without a failure


class Kubernetes(AnswerReader):
    def answers(self, file: File) -> Iterator[Answer]:
        told = mapping(json_of(file))
        for node in mappings(told.get("items")) or [told]:
            name = text(mapping(node.get("metadata")).get("name"), NAME_MAX)
            for key, why, at in (*_conditions(node), *_taints(node)):
                kind, decision = KNOWN.get(key, (kind_by_words(why.replace("-", " ")), None))
                yield Answer(kind, (Suspect(node=name),) if name else (), decision, why, self.moment(at, file))


def _conditions(node: Mapping[str, Any]) -> Iterator[tuple[str, str, object]]:
    for each in mappings(mapping(node.get("status")).get("conditions")):
        key, state = text(each.get("type")), each.get("status")
        if state in (("False", "Unknown") if key == "Ready" else ("True",)):
            yield (
                key,
                text(" ".join((key, text(each.get("reason")), text(each.get("message"))))),
                each.get("lastTransitionTime"),
            )


def _taints(node: Mapping[str, Any]) -> Iterator[tuple[str, str, object]]:
    for each in mappings(mapping(node.get("spec")).get("taints")):
        key = text(each.get("key"))
        if not key.startswith(QUIET):
            yield key, text(f"taint {key}"), each.get("timeAdded")


READER = Kubernetes
