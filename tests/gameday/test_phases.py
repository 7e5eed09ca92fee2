"""The phases of an outage that is going on, in the report's words."""

from __future__ import annotations

import pytest

from harness.gameday.outage_phases import Span, newest_word, phase_now, phases_of
from harness.gameday.steady import Waste
from harness.report.words import PHASE_MEANING
from harness.run.live import LiveProgress, Worker

S = 10**9


def outage(*words: str) -> list[Span]:
    """Each lasts a second."""
    return [Span(word, number * S, (number + 1) * S) for number, word in enumerate(words)]


RESTART = ("training", "rendezvous", "exiting", "startup", "rendezvous", "restore", "restored", "training")


def test_a_restart_is_told_in_the_reports_words() -> None:
    told = phases_of(outage(*RESTART), None, node_taken=False)
    assert told == [
        ("detect", 1.0),
        ("teardown", 2.0),
        ("startup", 1.0),
        ("rendezvous", 1.0),
        ("restore", 1.0),
        ("first_step", 1.0),
        ("recompute", 1.0),
    ]
    assert {phase for phase, _ in told} <= set(PHASE_MEANING)


def test_launchers_wait_for_a_node_that_was_taken() -> None:
    told = phases_of(outage("training", "exiting", "rendezvous", "startup", "rendezvous"), None, node_taken=True)
    assert [phase for phase, _ in told] == ["detect", "teardown", "reschedule", "startup", "rendezvous"]


@pytest.mark.parametrize(
    ("words", "recovered_s", "expected"),
    [
        (("training",), None, [("detect", 1.0)]),
        (("training",), 0.25, [("detect", 0.25), ("running", 0.75)]),  # a slow rank: steps go on
        (("training", "startup", "training"), 2.5, [("detect", 1.0), ("startup", 1.0), ("recompute", 0.5), ("running", 0.5)]),
        (("training", "startup", "training"), 0.5, [("detect", 0.5), ("running", 0.5), ("startup", 1.0), ("recompute", 1.0)]),
    ],
)  # fmt: skip
def test_training_is_told_by_what_was_lost_and_regained(
    words: tuple[str, ...], recovered_s: float | None, expected: list[tuple[str, float]]
) -> None:
    recovered_ns = None if recovered_s is None else round(recovered_s * S)
    assert phases_of(outage(*words), recovered_ns, node_taken=False) == expected


def progress(phase: str, *workers: Worker, furthest: int = 0, last_step_s: float = 0) -> LiveProgress:
    known = dict(enumerate(workers))
    complete = min((worker.last_step for worker in workers), default=0)
    return LiveProgress(
        known,
        len(workers),
        complete_step=complete,
        furthest_step=max(furthest, complete),
        last_step_ns=round(last_step_s * S),
        phase=phase,
    )


def worker(last_step: int, restored: int | None, since_s: float = 0) -> Worker:
    return Worker("node0", 1, 7, round(since_s * S), last_step, restored)


def test_a_state_that_every_rank_has_back_is_restored() -> None:
    assert newest_word(progress("restore", worker(40, 40), worker(40, 40))) == "restored"
    assert newest_word(progress("restore", worker(40, 40), worker(0, None))) == "restore"
    assert newest_word(progress("restore", worker(55, 40), worker(55, 40))) == "restore", "it goes back once more"


@pytest.mark.parametrize(
    ("phase", "last_step", "since_s", "standing", "expected"),
    [
        ("training", 90, 1, False, "running"),
        ("training", 40, 1, False, "recompute"),
        ("training", 90, 1, True, "standing_still"),
        ("rendezvous", 90, 1, False, "restarting"),
        ("rendezvous", 0, 6, False, "rendezvous"),
        ("exiting", 90, 1, False, "teardown"),
        ("starting", 0, 1, False, "startup"),
        ("validate", 90, 1, False, "validate"),
    ],
)
def test_the_phase_that_everybody_sees(
    phase: str, last_step: int, since_s: float, standing: bool, expected: str
) -> None:
    known = progress(phase, worker(last_step, None, since_s), furthest=90, last_step_s=5)
    assert phase_now(known, standing) == expected


def test_what_is_wasted_stays_wasted() -> None:
    progress, waste = LiveProgress(), Waste(begin_ns=0, begin_step=0, usual_ns=S / 10, gpus=2)
    told = []
    for second, step in ((10, 50), (20, 50), (30, 300), (40, 400)):  # slower, none, then faster than usual
        progress.furthest_step = step
        told.append(waste.gpu_seconds(progress, second * S))
    assert told == [10.0, 30.0, 30.0, 30.0]
