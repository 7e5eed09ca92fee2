"""A load of damaged bytes without a word is proved; its healthy neighbours are not accused."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from judging import Logs, fault_free_of, trainers, verdict
from simulator import Job, Outage, simulate

from harness.judge.facts.restarts import PassedOver
from harness.judge.facts.saves import Damage
from harness.judge.questions.restarts import _damage_never_met
from harness.judge.score import Scorecard, Verdict
from harness.judge.verdict import Code
from harness.timeline.lineage import NEVER

JOB = Job(nodes=2, steps=80, every=10)
KILL = [Outage(37, "rank", victim=1)]
FAULT_FREE = fault_free_of(JOB)
SAID = "resumed from the checkpoint that `rot` damaged, and did not report the damage"
SOURCE = "/run/checkpoints/step-00000030"


def restores(logs: Logs) -> list[dict[str, Any]]:
    return [
        line for lines in trainers(logs) for line in lines if line.get("event") == "restored" and line["step"] == 30
    ]


def rotten(logs: Logs, since_ns: int = 2_000_000, **changed: Any) -> None:
    """A fault damages the checkpoint of step 30 shortly before the kill."""
    kill = next(line for line in logs["harness"] if line.get("event") == "fault.injected")
    stamp = {key: kill[key] - since_ns for key in ("mono_ns", "wall_ns")}
    told = {"path": "checkpoints/step-00000030/__0_0.distcp", "checkpoint": "checkpoints/step-00000030", "step": 30}
    told |= {"names": ["step-00000030"], "copies": 0, "part": "tensor", "how": "bit_flip", "tensor_bytes": 1}
    lines = [
        {"event": "fault.injected", "kind": "checkpoint_corruption", "kills": False, "spoils": True, "targets": []},
        {"event": "fault.damaged"} | {key: value for key, value in (told | changed).items() if value is not None},
        {"event": "fault.effect", "measured": 1, "expected": 1, "unit": "bytes changed", "ok": True},
        {"event": "fault.healed"},
    ]
    at = logs["harness"].index(kill)
    logs["harness"][at:at] = [stamp | {"fault": "rot"} | line for line in lines]


def sourced(logs: Logs, source: str | None = SOURCE, **more: Any) -> None:
    for line in restores(logs):
        line |= ({"source": source} if source else {}) | more
        if source is None:
            line.pop("source", None)


def published(logs: Logs, sha256: str) -> None:
    """The harness saw the checkpoint between the damage and the restore."""
    at = next(number for number, line in enumerate(logs["harness"]) if line.get("event") == "fault.damaged")
    found = logs["harness"][at]
    found["sha256"] = "left"
    stamp = {key: found[key] + 1_000_000 for key in ("mono_ns", "wall_ns")}
    told = {"event": "checkpoint.published", "path": found["checkpoint"], "sha256": sha256}
    after = next(n for n, line in enumerate(logs["harness"]) if line["mono_ns"] > stamp["mono_ns"])
    logs["harness"].insert(after, stamp | told)


def told_anew(logs: Logs) -> None:
    """Rank 0 says that it saved the checkpoint once more, between the damage and the restore."""
    damage = next(line for line in logs["harness"] if line.get("event") == "fault.damaged")
    lines = next(lines for lines in trainers(logs) if lines[0]["rank"] == 0)
    at = next(n for n, line in enumerate(lines) if line["mono_ns"] > damage["mono_ns"] + 1_000_000)
    stamp = {key: damage[key] + 1_000_000 for key in ("mono_ns", "wall_ns")}
    lines[at:at] = [
        stamp | {"event": f"checkpoint.{what}", "step": 30, "path": SOURCE} for what in ("started", "committed")
    ]


def judged(*bends: Callable[[Logs], object]) -> Scorecard:
    def bend(logs: Logs) -> None:
        for each in bends:
            each(logs)

    return verdict(simulate(JOB, KILL, seed=5), bend, fault_free=FAULT_FREE)


def test_the_history_restores_step_30() -> None:
    logs = simulate(JOB, KILL, seed=5).logs()
    assert restores(logs)


@pytest.mark.parametrize(
    "bends",
    [
        (rotten, sourced),
        (rotten, lambda logs: sourced(logs, None)),
        (rotten, lambda logs: sourced(logs, f"{SOURCE}/model.pt")),
        (lambda logs: rotten(logs, copies=1), sourced),
        (rotten, sourced, lambda logs: published(logs, "left")),
        (rotten, lambda logs: sourced(logs, fallback=[{"source": "step-00000040", "reason": "cut"}])),  # of another one
    ],
)
def test_it_is_proved(bends: tuple[Callable[[Logs], object], ...]) -> None:
    card = judged(*bends)
    assert card.verdict is Verdict.FAIL and SAID in " ".join(card.reasons), card.reasons


@pytest.mark.parametrize(
    "bends",
    [
        (lambda logs: rotten(logs, tensor_bytes=0), sourced),
        (lambda logs: rotten(logs, step=20), sourced),
        (rotten, lambda logs: sourced(logs, "/run/checkpoints/last.ckpt")),
        (lambda logs: rotten(logs, copies=1), lambda logs: sourced(logs, None)),
        (rotten, lambda logs: sourced(logs, fallback=[{"source": "step-00000030", "reason": "damaged"}])),
        (rotten, lambda logs: sourced(logs, fallback=[{"reason": "one was damaged"}])),
        (lambda logs: rotten(logs, step=None, names=None), sourced),
        (rotten, sourced, lambda logs: published(logs, "another")),
    ],
)
def test_a_neighbour_is_not_accused(bends: tuple[Callable[[Logs], object], ...]) -> None:
    card = judged(*bends)
    assert SAID not in " ".join(card.reasons), card.reasons


def test_the_trainers_word_for_a_new_save_is_enough_where_the_harness_does_not_look() -> None:
    card = judged(rotten, sourced, told_anew)
    assert SAID not in " ".join(card.reasons), card.reasons


def test_a_new_save_that_the_harness_should_have_seen_is_not_believed() -> None:
    card = judged(rotten, sourced, told_anew, lambda logs: published(logs, "left"))
    assert card.verdict is Verdict.INCONCLUSIVE
    assert SAID in card.reasons[0] and "had saved that anew, and the harness did not see it" in card.reasons[0]


def test_damage_after_the_restore_accuses_nobody() -> None:
    card = judged(lambda logs: rotten(logs, since_ns=-60_000_000_000), sourced)
    assert SAID not in " ".join(card.reasons), card.reasons


def test_a_commit_that_is_told_late_does_not_make_the_damaged_checkpoint_a_new_one() -> None:
    def told_late(logs: Logs) -> None:
        damage = next(line for line in logs["harness"] if line.get("event") == "fault.damaged")
        for lines in trainers(logs):
            for line in lines:
                if line.get("event") == "checkpoint.committed" and line["step"] == 30:
                    line |= {key: damage[key] + 1_000_000 for key in ("mono_ns", "wall_ns")}
            lines.sort(key=lambda line: line["mono_ns"])

    assert SAID in " ".join(judged(rotten, sourced, told_late).reasons)


def test_damage_that_no_restart_could_meet_proves_nothing() -> None:
    card = judged(lambda logs: rotten(logs, step=20), sourced)
    text = "the checkpoint that `rot` damaged was never needed: the job went on from a newer one"
    assert (card.verdict, card.reasons[0]) == (Verdict.INCONCLUSIVE, text)


@pytest.mark.parametrize(
    ("steps", "states", "passed_over", "met"),
    [
        ([30], [(20, 40)], [], False),
        ([30], [(20, 30)], [], True),
        ([30], [(20, 40), (30, 20)], [], True),  # a later one may have found it
        ([30], [(9, 20), (20, 40)], [], False),
        ([30], [(10, 40)], [], True),  # no restart came after it: that is another thing
        ([30], [(11, 40)], [], False),
        ([30], [], [], True),
        ([None], [(20, 40)], [], True),
        ([30], [(20, 40)], [PassedOver(None, "/run/step-30/model.pt")], True),
        ([30], [(20, 40)], [PassedOver(None, "/run/step-35")], False),
        ([30], [(20, 40)], [PassedOver(30, "")], True),
        ([30], [(20, 40)], [PassedOver(30, "/run/step-35"), PassedOver(35, "")], False),
        ([30, 40], [(20, 40)], [], True),  # one of two is enough
        ([30, 35], [(20, 40)], [], False),
        ([], [(20, 40)], [], True),
    ],
)
def test_who_may_have_met_what_was_damaged(
    steps: list[int | None], states: list[tuple[int, int]], passed_over: list[PassedOver], met: bool
) -> None:
    """At 10 the saves of these steps were damaged. `states`: when something was restored, and of which step."""
    damage = [
        Damage("rot", 10, NEVER, NEVER, step, frozenset({f"step-{step}"}), False, 1, "cut", "a") for step in steps
    ]
    restored = [(SimpleNamespace(at=at), step) for at, step in states]
    restart = SimpleNamespace(states=restored, passed_over=passed_over)
    evidence: Any = SimpleNamespace(saves=SimpleNamespace(damage={"rot": damage}), restarts=[restart])
    text = "the checkpoint that `rot` damaged was never needed: the job went on from a newer one"
    found = [(each.code, each.words) for each in _damage_never_met(evidence)]
    assert found == ([] if met else [(Code.FAULT_DAMAGE_NEVER_MET, text)])


@pytest.mark.parametrize(("step", "accused"), [(0, True), (10, True), (20, False)])
def test_damage_to_one_checkpoint_excuses_no_older_one_than_the_one_before(step: int, accused: bool) -> None:
    def goes_back(logs: Logs) -> None:
        for line in restores(logs):
            line |= {"step": step, "source": "scratch" if not step else f"step-{step:08}"}

    card = judged(rotten, goes_back)
    said = f"resumed from step {step} and gave no reason, though a checkpoint of step 20 had been committed"
    assert (said in " ".join(card.reasons)) is accused, card.reasons
