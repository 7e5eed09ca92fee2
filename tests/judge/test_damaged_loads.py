"""A load of damaged bytes without a word is proved; its healthy neighbours are not accused."""

from types import SimpleNamespace
from typing import Any

import pytest
from judging import Bend, bending, fault_free_of, struck, together, verdict
from scorecards import assert_verdict
from simulator import Job, Logs, Outage, change, clocks, put, simulate

from harness.judge.facts.known import By, Word
from harness.judge.facts.restarts import PassedOver, Restore
from harness.judge.facts.saves import Damage
from harness.judge.guarantees import fault_met, restart_sound
from harness.judge.score import Scorecard
from harness.judge.verdict import Verdict
from harness.timeline.lineage import NEVER

JOB = Job(nodes=2, steps=80, every=10)
KILL = [Outage(37, "rank", victim=1)]
FAULT_FREE = fault_free_of(JOB)
SAID = "resumed from the checkpoint that `rot` damaged, and did not report the damage"
SOURCE = "/run/checkpoints/step-00000030"


def restores(logs: Logs) -> list[dict[str, Any]]:
    return [line for line in logs.all("restored") if line["step"] == 30]


def rotten(logs: Logs, since_ns: int = 2_000_000, **changed: Any) -> None:
    """A fault damages the checkpoint of step 30 shortly before the kill."""
    kill, folder = logs.told("fault.injected"), "checkpoints/step-00000030"
    at = kill["mono_ns"] - since_ns
    struck(logs, "rot", at, at, kind="checkpoint_corruption", spoils=True)
    told = {"path": f"{folder}/__0_0.distcp", "checkpoint": folder, "step": 30, "names": ["step-00000030"]}
    told |= {"copies": 0, "part": "tensor", "how": "bit_flip", "tensor_bytes": 1} | changed
    told = {key: value for key, value in told.items() if value is not None}
    logs.put({"event": "fault.damaged", "fault": "rot"} | told | clocks(kill, -since_ns))


def sourced(logs: Logs, source: str | None = SOURCE, **more: Any) -> None:
    for line in restores(logs):
        line |= {"source": source} | more
        if source is None:
            line.pop("source")


@bending
def published(logs: Logs, sha256: str) -> None:
    """The harness saw the checkpoint between the damage and the restore."""
    found = logs.told("fault.damaged")
    found["sha256"] = "left"
    told = {"event": "checkpoint.published", "path": found["checkpoint"], "sha256": sha256}
    logs.put(told | clocks(found, 1_000_000))


def told_anew(logs: Logs) -> None:
    """Rank 0 says that it saved the checkpoint once more, between the damage and the restore."""
    at = clocks(logs.told("fault.damaged"), 1_000_000)
    saves = ("checkpoint.started", "checkpoint.committed")
    put(logs.trainers(rank=0)[0], *({"event": event, "step": 30, "path": SOURCE} | at for event in saves))


def told_late(logs: Logs) -> None:
    """Its commit is: that does not make the damaged checkpoint a new one."""
    for line in logs.all("checkpoint.committed"):
        line |= clocks(logs.told("fault.damaged"), 1_000_000) if line["step"] == 30 else {}
    for lines in logs.trainers():
        put(lines)


def judged(*bends: Bend) -> Scorecard:
    return verdict(simulate(JOB, KILL, seed=5), together(*bends), fault_free=FAULT_FREE)


@pytest.mark.parametrize(
    "bends",
    [
        (rotten, sourced),
        (rotten, lambda logs: sourced(logs, None)),
        (rotten, lambda logs: sourced(logs, f"{SOURCE}/model.pt")),
        (lambda logs: rotten(logs, copies=1), sourced),
        (rotten, sourced, published("left")),
        (rotten, sourced, told_late),
        (rotten, lambda logs: sourced(logs, fallback=[{"source": "step-00000040", "reason": "cut"}])),  # of another one
    ],
)
def test_it_is_proved(bends: tuple[Bend, ...]) -> None:
    assert_verdict(judged(*bends), Verdict.FAIL, SAID)


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
        (rotten, sourced, published("another")),
        (rotten, sourced, told_anew),  # that is enough where the harness does not look
        (lambda logs: rotten(logs, since_ns=-60_000_000_000), sourced),  # after the restore
    ],
)
def test_a_neighbour_is_not_accused(bends: tuple[Bend, ...]) -> None:
    card = judged(*bends)
    assert SAID not in " ".join(card.reasons), card.reasons


@pytest.mark.parametrize(("sealed", "kept", "found"), [(True, 30, 0), (True, 31, 1), (False, 30, 1)])
def test_where_digests_are_right_it_is_enough_to_go_back(sealed: bool, kept: int, found: int) -> None:
    """The restart took step 30, did steps 31 and on, and kept those until step `kept`."""
    damage = Damage("rot", 10, Word(NEVER), NEVER, 30, frozenset(), False, 4, "nan", "x", sealed)
    restore = Restore(0, 0, 20, 30, "", None, "", "new", "old", (), (), (), 31)
    epoch = SimpleNamespace(first=31, kept=kept)
    restart = SimpleNamespace(states=[(restore, 30)], restores=[restore], passed_over=[], epoch=epoch)
    saves = SimpleNamespace(damage={"rot": [damage]})
    evidence: Any = SimpleNamespace(run=SimpleNamespace(uncertainty_ns=0), saves=saves, restarts=[restart, restart])
    words = [each.words for each in restart_sound.breaches(evidence)]
    what = "kept what came of it" if sealed else "did not report the damage"
    text = f"the job resumed from the checkpoint that `rot` damaged, and {what} (nan, 4 bytes of tensors in x)"
    assert words[:1] == [text] * found
    assert len(words) == 3 * found  # and it is not what was saved


def test_what_no_restart_could_meet_or_the_harness_should_have_seen_proves_nothing() -> None:
    card = judged(rotten, sourced, told_anew, published("left"))
    assert card.verdict is Verdict.INCONCLUSIVE
    assert SAID in card.reasons[0] and "had saved that anew, and the harness did not see it" in card.reasons[0]
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
        Damage("rot", 10, Word(NEVER), NEVER, step, frozenset({f"step-{step}"}), False, 1, "cut", "a") for step in steps
    ]
    restored = [(SimpleNamespace(at=at), step) for at, step in states]
    restart = SimpleNamespace(states=restored, passed_over=passed_over, by=By.MISSING)
    evidence: Any = SimpleNamespace(saves=SimpleNamespace(damage={"rot": damage}), restarts=[restart])
    text = "the checkpoint that `rot` damaged was never needed: the job went on from a newer one"
    assert [each.words for each in fault_met.breaches(evidence)] == ([] if met else [text])


@pytest.mark.parametrize(("step", "accused"), [(0, True), (10, True), (20, False)])
def test_damage_to_one_checkpoint_excuses_no_older_one_than_the_one_before(step: int, accused: bool) -> None:
    def goes_back(logs: Logs) -> None:
        change(restores(logs), step=step, source="scratch" if not step else f"step-{step:08}")

    card = judged(rotten, goes_back)
    said = f"resumed from step {step} and gave no reason, though a checkpoint of step 20 had been committed"
    assert (said in " ".join(card.reasons)) is accused, card.reasons
