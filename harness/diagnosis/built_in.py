"""Defines the built-in diagnosers: the harness's own, a trainer's own alarms and diagnoses, and four for comparison.

The diagnosers `right`, `empty`, `rank_0` and `random` show which scores a perfect, a silent, a constant and a random
diagnoser get.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from harness.diagnosis.answer import BROKEN, WORDS_MAX, Answer, Decision, Kind, Suspect, answer_told
from harness.diagnosis.baseline import explain
from harness.diagnosis.injected import Injected, RunTruth
from harness.diagnosis.view import view_of
from harness.log.truth import Place
from harness.timeline.sorted_events import diagnoses

ALARMS = {  # kind of an answer, by the kind of a trainer's `anomaly`; others are no diagnosis
    **dict.fromkeys(("nonfinite", "gradient", "divergence", "data", "data_skew"), Kind.BAD_DATA),
    **dict.fromkeys(("data_wait", "checkpoint_late"), Kind.STORAGE),
    **dict.fromkeys(("straggler", "slow"), Kind.STRAGGLER),
    **dict.fromkeys(("topology", "memory"), Kind.CRASH),
    **{"hang": Kind.HANG, "replica": Kind.CORRUPTION, "out_of_memory": Kind.GPU, "gpu": Kind.GPU},
}


def _baseline(truth: RunTruth, seed: int) -> list[Answer]:
    view = view_of(truth.log)
    return [incident.answer(view) for incident in explain(view)]


def _alarms(truth: RunTruth, seed: int) -> list[Answer]:
    found = []
    for event in (event for writer in truth.log.writers for event in writer.events if event.get("event") == "anomaly"):
        if kind := ALARMS.get(str(event.get("kind"))):
            who = () if event.get("suspect") is None else (Suspect(event["suspect"]),)
            why = str(event.get("detail") or "").partition("\n")[0][:WORDS_MAX]
            found.append(Answer(kind, who, None, why, truth.wall_ns(event["at"])))
    return found


def _told(truth: RunTruth, seed: int) -> list[Answer]:
    return [answer_told(event, truth.wall_ns(event["at"])) for event in diagnoses(truth.log)]


def _right(truth: RunTruth, seed: int) -> list[Answer]:
    return [
        Answer(each.truth.kinds[0], _victims(each), min(each.truth.decisions), "", truth.wall_ns(each.begin))
        for each in truth.faults
        if not each.truth.benign
    ]


def _victims(fault: Injected) -> tuple[Suspect, ...]:
    if fault.truth.place is Place.FILE:
        return tuple(Suspect(file=file) for file in fault.files[:1])
    return () if fault.truth.place is Place.JOB else tuple(Suspect(each.rank, each.node) for each in fault.victims)


def _rank_0(truth: RunTruth, seed: int) -> list[Answer]:
    return [Answer(Kind.CRASH, (Suspect(rank=0),), Decision.RESTART_IN_PLACE)]


def _random(truth: RunTruth, seed: int) -> list[Answer]:
    draw = random.Random(f"{seed} {truth.name}")
    kind, rank = draw.choice((*BROKEN, Kind.NONE)), draw.choice(truth.ranks or [0])
    return [Answer(kind, (Suspect(rank),) if kind is not Kind.NONE else (), draw.choice([*Decision]))]


DIAGNOSERS: Mapping[str, Callable[[RunTruth, int], list[Answer]]] = {
    "baseline": _baseline,
    "alarms": _alarms,
    "told": _told,
    "right": _right,
    "empty": lambda truth, seed: [],
    "rank_0": _rank_0,
    "random": _random,
}
