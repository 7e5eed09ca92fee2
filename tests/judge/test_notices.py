"""Whether anybody acted on the notice that a node will be taken."""

from typing import Any

import pytest
from judging import SAVES, Bend, acted_as, bending, together, verdict
from mutants.bent import JOB
from scorecards import assert_verdict
from simulator import Logs, Outage, clocks, simulate

from harness.judge.score import Scorecard
from harness.judge.verdict import Verdict

NOTICE_NS = 200_000_000
ASKED: dict[str, Any] = {"notices": {}}
EXIT = {"event": "process.exit", "node": "node1", "incarnation": 1, "rank": 1, "code": 0}
IGNORED = "nobody acted on the notice of fault1: no save and no exit in the "


def judged(*bends: Bend, expect: dict[str, Any] = ASKED) -> Scorecard:
    return verdict(simulate(JOB, [Outage(17, "node", victim=1)], seed=5), together(reclaimed, *bends), expect)


def reclaimed(logs: Logs) -> None:
    """The node is lost as it was, but a notice was given two steps before."""
    injected = acted_as(logs, "preemption", notice_ns=NOTICE_NS, preempts=True, may=["kill"])
    del injected["kills"]
    taken = {"event": "fault.taking", "fault": injected["fault"], "node": "node1"} | clocks(injected)
    injected |= clocks(injected, -NOTICE_NS)
    logs.put(taken)


@bending
def beside(logs: Logs, /, event: str, **told: Any) -> None:
    """One such line while the notice ran."""
    lines = next(iter(logs.trainers(rank=0)))
    lines.append({"event": event} | told | clocks(logs.told("fault.injected"), 1000))
    lines.sort(key=lambda line: line["mono_ns"])


def test_an_ignored_notice_is_told_and_fails_where_it_is_bounded() -> None:
    card = judged(expect={})
    assert_verdict(card, Verdict.PASS, IGNORED)
    assert card.reasons[0].count("until node1 went") == 1
    assert card.scores["notices"] == {"given": 1, "ignored": 1}
    assert_verdict(judged(), Verdict.FAIL, f"notices.max_ignored: {IGNORED}")
    assert judged(expect={"notices": {"max_ignored": 1}}).verdict is Verdict.PASS


def test_a_job_that_saves_and_leaves_at_once_has_acted() -> None:
    def leaves(logs: Logs) -> None:
        given = logs.told("fault.injected")["mono_ns"]
        for name in [name for name, lines in logs.items() if lines[0]["mono_ns"] > given and "trainer" in name]:
            del logs[name]
        for lines in logs.trainers():
            lines[:] = [line for line in lines if line["mono_ns"] <= given]

    card = judged(leaves, beside("checkpoint.committed", step=17, kind="emergency"))
    [told] = [line for line in card.expectations if line.name == "notices.max_ignored"]
    assert (told.observed, told.verdict) == ("0 of 1", Verdict.PASS)


@pytest.mark.parametrize(
    "act",
    [
        beside("notice", source="signal"),
        beside("checkpoint.started", step=17),
        lambda logs: logs.put(EXIT | clocks(logs.told("fault.injected"), 1000)),
    ],
)
def test_whoever_tells_of_it_saves_or_leaves_has_acted(act: Bend) -> None:
    card = judged(act)
    assert not any("notice" in reason for reason in card.reasons), card.reasons
    assert "notices" not in judged(act, expect={}).scores


def before_the_first_step(logs: Logs) -> None:
    logs.told("fault.injected")["mono_ns"] = min(line["mono_ns"] for line in logs.all("step")) - 1


@pytest.mark.parametrize("bend", [lambda logs: logs.lose(*SAVES), before_the_first_step])
def test_nobody_is_accused_who_could_not_be_seen_to_act(bend: Bend) -> None:
    card = judged(bend)
    assert IGNORED not in " ".join(card.reasons)
    assert any(each.startswith("notices.max_ignored: no") for each in card.reasons), card.reasons
