"""Healthy runs in all weathers: none may be accused. Each is a whole run, judged as scenarios are judged."""

from dataclasses import replace
from typing import Any

import pytest
from judging import EXPECT, Bend, by_a_command, fault_free_of, verdict
from simulator import Job, Logs, Outage, change, clocks, simulate, steps

from harness.judge.verdict import Verdict
from harness.report import figures as figures_of

pytestmark = pytest.mark.slow  # hundreds of runs
QUIET = Job(nodes=2, ranks_per_node=2, steps=60, every=8)
WEATHER: dict[str, dict[str, Any]] = {
    "quiet": {},
    "noisy host": {"noise": 0.2},
    "pauses": {"pauses": 0.04},
    "slow disk": {"disk_ms": 400},
    "all of it, on clocks of its own": {"noise": 0.2, "pauses": 0.04, "disk_ms": 400, "foreign_clocks": True},
}
STORIES: dict[str, list[Outage]] = {
    "nothing happens": [],
    "a rank is killed, its last line torn": [Outage(21, "rank", victim=1, torn=True)],
    "a node is lost and replaced": [Outage(21, "node", victim=1)],
    "a node is reclaimed with a notice": [Outage(21, "notice", victim=0)],
    "a node is lost while the job comes back": [Outage(13, "rank"), Outage(19, "node", victim=1, again="restore")],
}
STORIES |= {
    "a rank is replaced in process": [Outage(21, "replica", victim=1)],
    "the first rank is replaced in process, and later another": [
        Outage(17, "replica", victim=0),
        Outage(13, "replica", victim=1),
    ],
    "a replica in process, then a restart of all": [Outage(9, "replica", victim=1), Outage(21, "rank")],
}
FAULT_FREE = fault_free_of(QUIET)
SMALLER = {"recovery_time": {"max": "60s"}, "loss_continuity": {"mode": "exact"}}
UNDISTURBED = {"loss_continuity": {"mode": "exact"}, "wasted_gpu_hours": {"max_percent_by_faults": 0}}
UNDISTURBED |= {"metrics": {"max_false_alarms": 0, "checkpoint_success_min": 100, "steps_rolled_back_max": 0}}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("weather", WEATHER)
def test_a_healthy_run_is_not_accused(weather: str, story: str, seed: int) -> None:
    history = simulate(replace(QUIET, **WEATHER[weather]), STORIES[story], seed)
    card = verdict(history, expect=EXPECT if STORIES[story] else UNDISTURBED, fault_free=FAULT_FREE)
    assert card.verdict is Verdict.PASS, card.reasons
    assert figures_of.scores(card)["recovery_time"]["degraded"] == []
    assert len(figures_of.scores(card)["recovery_time"]["episodes"]) == len(history.truth.episodes)


def bare(logs: Logs) -> None:
    by_a_command(logs)
    logs.lose("rendezvous", "restored")


@pytest.mark.parametrize("agents", [True, False])
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("bend", [lambda logs: None, bare])
@pytest.mark.parametrize("seed", range(3))
def test_survivors_without_a_node_are_a_smaller_world(seed: int, bend: Bend, victim: int, agents: bool) -> None:
    history = simulate(replace(QUIET, agents=agents), [Outage(21, "departure", victim=victim)], seed)
    card = verdict(history, bend, SMALLER, FAULT_FREE)
    assert card.verdict is Verdict.PASS, card.reasons
    assert [epoch.size for epoch in card.evidence.run.epochs] == [4, 2]


@pytest.mark.parametrize("told", [True, False])
def test_ranks_may_be_given_anew_to_survivors(told: bool) -> None:
    """Rank 0 is lost; rank 1 takes its number, and the newcomer becomes rank 1."""
    history = simulate(Job(nodes=2, steps=40, every=10), [Outage(17, "replica", victim=0)], 3)

    def renumbered(logs: Logs) -> None:
        logs.trainers(rank=0, life=-1)[0][0]["rank"] = 1
        if not told:
            by_a_command(logs)
            logs.lose("restored")

    card = verdict(history, renumbered, EXPECT)
    assert card.verdict is Verdict.PASS, card.reasons
    assert [len(epoch.processes) for epoch in card.evidence.run.epochs] == [2, 2]


@pytest.mark.parametrize("told", [True, False])
def test_a_newcomer_tells_what_it_took_from_a_peer_as_it_told_its_start(told: bool) -> None:
    history = simulate(Job(nodes=2, steps=40, every=10), [Outage(17, "replica", victim=1)], 3)
    card = verdict(history, lambda logs: None if told else logs.lose("restored", rank=1, life=-1), EXPECT)
    assert card.verdict is (Verdict.PASS if told else Verdict.INCONCLUSIVE), card.reasons
    assert told or "rank 1 began again with step 18 and did not report what it restored" in card.reasons[0]


def older_loss(logs: Logs) -> None:
    """The weights of another state than was told compute other losses; they are summed over the ranks."""
    change(logs.steps(18), loss=lambda line: line["loss"] * 1.0001)


def older_weights(logs: Logs) -> None:
    change(logs.steps(), weights=lambda line: f"w{line['step']}")
    change(logs.steps(18, rank=1, life=-1), weights=lambda line: f"w{line['step'] - 1}")


def other_content(logs: Logs) -> None:
    change(logs.all("restored", rank=1, life=-1), content="w16", saved="w17")


@pytest.mark.parametrize(
    ("bend", "found"),
    [
        (lambda logs: logs.lose("step", step=[17], rank=1, life=0), ""),  # it died in its update, before its word
        (older_loss, "18"),
        (older_weights, "at step 18 ranks 0, 1 each computed with other weights, and the trainer did not say so"),
        (other_content, "rank 1 took another state from a peer than the peer gave"),
    ],
)
def test_a_newcomer_that_took_another_state_than_it_says_does_not_pass(bend: Bend, found: str) -> None:
    """The peer's state is that of step 17, and no step is lost."""
    history = simulate(Job(nodes=2, steps=40, every=10), [Outage(17, "replica", victim=1)], 3)
    card = verdict(history, bend, EXPECT)
    alone = Verdict.INCONCLUSIVE if bend is other_content else Verdict.FAIL  # nobody else knows what it holds
    assert card.verdict is (alone if found else Verdict.PASS), card.reasons
    assert found in " ".join(card.reasons), card.reasons


def test_a_job_that_shrinks_and_grows_without_a_word() -> None:
    """Told are steps alone: a rank is gone for good, and a newcomer joins the survivor after a while."""
    history = simulate(Job(nodes=2, steps=60, every=10), [Outage(21, "replica", victim=1)], 3)

    def comes_late(logs: Logs) -> None:
        bare(logs)
        logs.lose("step", step=range(40), rank=1, life=-1)
        logs.lose("started", rank=1, life=-1)
        (late,) = logs.trainers(rank=1, life=-1)
        late[0].update(clocks(steps(late)[0], -(10**6)))

    card = verdict(history, comes_late, {"recovery_time": {"max": "60s"}})
    assert [epoch.size for epoch in card.evidence.run.epochs] == [2, 1, 2], card.reasons
    assert card.verdict is Verdict.PASS, card.reasons


@pytest.mark.parametrize("weather", WEATHER)
def test_bad_weather_is_drag_and_not_the_fault_s_doing(weather: str) -> None:
    card = verdict(simulate(replace(QUIET, **WEATHER[weather]), [], 1), expect=UNDISTURBED, fault_free=FAULT_FREE)
    waste = figures_of.scores(card)["wasted_gpu_hours"]
    assert waste["percent_by_faults"] == 0
    dragged = waste["accounts"]["straggler_drag"] > 0.01 * waste["gpu_seconds_allocated"]
    assert dragged == (weather not in ("quiet", "slow disk")), waste["accounts"]
    assert (waste["accounts"]["checkpoint_stall"] > 1) == bool(WEATHER[weather].get("disk_ms"))
