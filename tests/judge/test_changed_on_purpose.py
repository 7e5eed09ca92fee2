"""A job whose command a fault has changed on purpose is compared with the fault-free run up to the change only."""

from typing import Any

import pytest
from judging import Bend, acted_as, verdict
from scorecards import assert_verdict
from simulator import Job, Logs, Outage, change, simulate

from harness.judge.verdict import Verdict

JOB = Job(nodes=2, steps=60, every=10)
KILL = [Outage(25, "rank", victim=1)]  # back to step 20
CHANGED: dict[str, Any] = {"may": ["kill", "move"], "changes": True}
FAIL, PASS = Verdict.FAIL, Verdict.PASS


def changed(*bends: Bend, **told: Any) -> Bend:
    def bend(logs: Logs) -> None:
        acted_as(logs, "made_up", **CHANGED | told)
        for each in bends:
            each(logs)

    return bend


def times(figure: str, first: int, life: int = -1) -> Bend:
    return lambda logs: [
        change(logs.steps(first, 60, rank=rank, life=life), **{figure: lambda line: line[figure] * 1.5})
        for rank in (0, 1)
    ]


def shifted(logs: Logs) -> None:
    """From the restart on each batch lies a whole batch further back."""
    for rank in (0, 1):
        change(logs.steps(21, 60, rank=rank, life=-1), first=lambda line: line["first"] - line["count"])


@pytest.mark.parametrize(
    ("bend", "found", "said"),
    [
        (times("loss", 21), FAIL, "loss"),  # nothing was changed on purpose
        (changed(times("loss", 21)), PASS, ""),
        (changed(times("loss", 15, life=0)), Verdict.INCONCLUSIVE, "step 15 differs from the fault-free run before"),
        (changed(shifted), FAIL, "16 samples were repeated, first at step 21"),
        (changed(times("lr", 21), shows="lr"), PASS, ""),
        (
            changed(times("loss", 21), shows="lr"),
            FAIL,
            "in all 40 steps since the change after step 20 the learning rate",
        ),
        (changed(), PASS, ""),  # no figure has to show it
    ],
)
def test_losses_count_until_the_change_and_samples_and_restores_beyond_it(
    bend: Bend, found: Verdict, said: str
) -> None:
    card = verdict(simulate(JOB, KILL, seed=5), bend)
    assert_verdict(card, found, said)
    if found is PASS:
        assert card.not_judged["losses after step 20"] == "the configuration was changed on purpose"


def test_by_the_last_losses_alone_none_are_judged() -> None:
    card = verdict(simulate(JOB, KILL, seed=5), changed(times("loss", 1)), {"loss_continuity": {"mode": "final"}})
    assert_verdict(card, PASS, "")
    assert "losses" in card.not_judged
