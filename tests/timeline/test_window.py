"""Each rehearsal of a log with several is judged by its own window, and the whole job by the whole log."""

import pathlib
import tempfile
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from judging import EXPECT, Bend, bending, expecting, fault_free_of, struck
from scorecards import assert_verdict
from simulator import KINDS, History, Job, Line, Logs, Outage, change, clocks, put, remove, simulate
from whole import stretched

from harness.campaign import ledger_so_far
from harness.errors import UsageError
from harness.evidence.logs import load_evidence, part_of
from harness.judge.score import Evidence, Scorecard, judge
from harness.judge.verdict import Verdict
from harness.log import reading
from harness.node.emitter import TELLS
from harness.report import figures as figures_of
from harness.timeline import timeline, window

JOB = Job(nodes=2, steps=160, every=10)
TWO = [Outage(after=25, kind="rank"), Outage(after=45, kind="node")]
MS = 10**6


def harness_times(logs: Logs, event: str, fault: str) -> list[int]:
    return [line["mono_ns"] for line in logs.harness if line.get("event") == event and line.get("fault") == fault]


def step_ended(logs: Logs, step: int) -> int:
    return max(line["mono_ns"] for line in logs.steps(step, step))


def story(outages: list[Outage], seed: int, job: Job = JOB, expect: Any = None) -> tuple[History, Logs]:
    """Faults are healed right after they act, not at the end of the run as the simulator has it."""
    history = simulate(job, outages, seed)
    logs = expecting(history.logs(), expect or {})
    for line in logs.harness:
        if line.get("event") == "fault.healed":
            line |= clocks(line, harness_times(logs, "fault.effect", line["fault"])[0] + 1 - line["mono_ns"])
    logs.put()
    return history, logs


def rehearse(logs: Logs, name: str, fault: str, begin: int, end: int | None, **told: Any) -> None:
    planned = [each for each in logs.plan["faults"] if each["id"] == fault]
    own = {"faults": planned, "expect": told.pop("expect", EXPECT), "scenario": {"name": name, "title": name}}
    lines: list[tuple[int, Line]] = [(begin, {"event": "plan", "plan": logs.plan | own})]
    lines.append((begin, {"event": "rehearsal.started"}))
    if end is not None:
        lines.append((end, {"event": "rehearsal.finished", "outcome": "settled", "reason": ""} | told))
    offset = logs.harness[0]["wall_ns"] - logs.harness[0]["mono_ns"]
    logs.put(*(line | {"rehearsal": name, "mono_ns": at, "wall_ns": at + offset} for at, line in lines))


def recovered(history: History, number: int) -> int:
    return history.truth.episodes[number].t_regained


def in_sequence(seed: int, outages: list[Outage] = TWO, job: Job = JOB, rest: int = 500 * MS) -> tuple[History, Logs]:
    """`first` until `rest` after its recovery, then `second`."""
    history, logs = story(outages, seed, job)
    for planned, outage in zip(logs.plan["faults"], outages, strict=True):
        if outage.kind in ("node", "notice"):
            planned["targets"] = [{"node_index": outage.victim, "rank": None}]
    between = recovered(history, 0) + rest
    rehearse(logs, "first", "fault1", history.truth.begin + 2, between)
    rehearse(logs, "second", "fault2", between + 1, recovered(history, 1) + 500 * MS)
    return history, logs


def overlapping(*faults: str, outages: list[Outage] = TWO) -> tuple[History, Logs]:
    """`first` and `second` begin together and end together, each with its fault."""
    history, logs = story(outages, 3)
    end = recovered(history, -1) + 500 * MS
    for number, (name, fault) in enumerate(zip(("first", "second"), faults, strict=True)):
        rehearse(logs, name, fault, history.truth.begin + 2 + number, end + number)
    return history, logs


def judged(history: History, logs: Logs, rehearsal: str | None) -> Scorecard:
    with tempfile.TemporaryDirectory() as folder:
        run = window.load(history.write(pathlib.Path(folder), logs), rehearsal)
    evidence = Evidence(run, fault_free_of(JOB), ())
    return judge(evidence if rehearsal is None else part_of(evidence), rehearsal or "job")


@pytest.mark.parametrize("seed", range(6))
def test_two_in_sequence_are_judged_each_by_its_own_outage(seed: int) -> None:
    history, logs = in_sequence(seed)
    cards = [judged(history, logs, name) for name in ("first", "second")]
    for number, card in enumerate(cards):
        truth, run = history.truth.episodes[number], card.evidence.run
        assert card.verdict is Verdict.PASS, card.reasons
        assert [fault.id for fault in run.faults] == [f"fault{number + 1}"]
        (episode,) = run.episodes
        assert (episode.t_stop, episode.t_regained) == (truth.t_stop, truth.t_regained)
        assert [s.begin for s in run.segments[1:]] == [s.end for s in run.segments[:-1]]
        assert (run.segments[0].begin, run.segments[-1].end) == (run.begin, run.end)
    first, second = (card.evidence.run for card in cards)
    assert first.end <= second.begin or (first.steps.end.max() <= second.steps.end.min())
    assert card_of_job(history, logs).verdict is Verdict.PASS


@pytest.mark.parametrize("kind", ["node", "notice"])
@pytest.mark.parametrize("victims", [(0, 0), (0, 1), (1, 0)])
def test_nodes_keep_their_numbers_when_one_was_replaced_before(kind: str, victims: tuple[int, int]) -> None:
    outages = [Outage(after=after, kind=kind, victim=victim) for after, victim in zip((25, 45), victims, strict=True)]
    history, logs = in_sequence(3, outages)
    for name, victim in zip(("first", "second"), victims, strict=True):
        card = judged(history, logs, name)
        assert card.verdict is Verdict.PASS, card.reasons
        assert [target["node"] for target in card.evidence.run.faults[0].targets] == [f"node{victim}"]
        assert figures_of.metrics(card)["replacements"] == 1


def card_of_job(history: History, logs: Logs) -> Scorecard:
    card = judged(history, logs, None)
    assert len(card.evidence.run.episodes) == len(history.truth.episodes)
    return card


@pytest.mark.parametrize(
    ("names", "item"),
    [
        (("restored",), "what was restored"),
        (("rendezvous", "phase", "agent.rendezvous"), "phases of recoveries"),
        (("checkpoint.started", "checkpoint.committed"), "checkpoints"),
    ],
)
def test_what_was_told_before_the_window_only_is_missing_in_it(names: tuple[str, ...], item: str) -> None:
    history, logs = in_sequence(2)
    since = recovered(history, 0) + 500 * MS
    for name, lines in logs.items():
        if name != "harness":
            remove(lines, lambda line: line.get("event") in names and line["mono_ns"] > since)
    first, second = (judged(history, logs, name) for name in ("first", "second"))
    text = f"evidence is missing: {item}"
    assert first.verdict is Verdict.PASS, first.reasons
    assert second.verdict is not Verdict.PASS
    assert any(reason.startswith(text) for reason in second.reasons), second.reasons


def test_what_there_was_no_occasion_to_tell_in_a_window_is_not_missing() -> None:
    """Nothing ended, started or was due to be saved in it, and no digest of the weights was due."""
    history, logs = story([], 2)
    change((lines[0] for lines in logs.trainers()), tells=list(TELLS))
    rehearse(logs, "calm", "none", step_ended(logs, 101), step_ended(logs, 109), expect={})
    rehearse(logs, "other", "none", step_ended(logs, 120), None)
    card = judged(history, logs, "calm")
    assert card.verdict is Verdict.PASS, card.reasons
    assert {"checkpoints", "restores", "phases"} <= set(figures_of.metrics(card)["tells"])


@pytest.mark.parametrize("seed", range(4))
def test_no_gpu_time_is_in_two_windows_or_none_of_a_sequence(seed: int) -> None:
    """The window of the second begins where the first one's ended, or earlier by the steps that it lost."""
    history, logs = in_sequence(seed)
    cards = {name: judged(history, logs, name) for name in ("first", "second", None)}
    allocated = {n: figures_of.scores(card)["wasted_gpu_hours"]["gpu_seconds_allocated"] for n, card in cards.items()}
    assert 0 < allocated["first"] < allocated[None] and 0 < allocated["second"] < allocated[None]
    lost = [len(c.evidence.run.steps) - int(c.evidence.run.steps.survives.sum()) for c in cards.values()]
    assert lost[0] + lost[1] == lost[2] > 0


@pytest.mark.parametrize("seed", range(6))
def test_an_outage_that_two_rehearsals_share_names_both_and_is_one(seed: int) -> None:
    history, logs = story([Outage(after=25, kind="node", again="startup")], seed)
    (truth,) = history.truth.episodes
    strikes = [harness_times(logs, "fault.injected", name)[0] for name in ("fault1", "fault2")]
    rehearse(logs, "first", "fault1", history.truth.begin + 2, truth.t_regained + 600 * MS)
    rehearse(logs, "second", "fault2", (strikes[0] + strikes[1]) // 2, truth.t_regained + 900 * MS)
    for name in ("first", "second", None):
        card = judged(history, logs, name)
        assert card.verdict is Verdict.PASS, card.reasons
        (episode,) = card.evidence.run.episodes
        assert (episode.t_stop, episode.t_regained) == (truth.t_stop, truth.t_regained)
        assert episode.faults == ("fault1", "fault2")
        (told,) = figures_of.scores(card)["recovery_time"]["episodes"]
        assert told["faults"] == ["fault1", "fault2"]


@pytest.mark.parametrize("seed", range(4))
def test_steps_that_were_done_before_the_window_and_lost_in_it_are_in_it(seed: int) -> None:
    """The rehearsal begins just before its fault strikes; the newest checkpoint is older."""
    history, logs = story([Outage(after=48, kind="node")], seed)
    (truth,) = history.truth.episodes
    rehearse(logs, "late", "fault1", truth.t_stop - 1, truth.t_regained + 600 * MS)
    rehearse(logs, "other", "fault2", truth.t_regained + 700 * MS, None)
    run = judged(history, logs, "late").evidence.run
    lost = sorted({int(step) for step in run.steps.step[~run.steps.survives]})
    assert lost == list(range(41, 49))
    assert run.begin <= min(row.begin for row in history.truth.rows if not row.survives)
    assert run.begin in {step_ended(logs, 39), step_ended(logs, 40)}
    assert all((run.steps.step[run.steps.rank == rank].min() == run.steps.step.min()) for rank in (0, 1))


@pytest.mark.parametrize("seed", range(4))
def test_steps_lost_since_an_earlier_outage_do_not_bring_it_into_the_window(tmp_path: pathlib.Path, seed: int) -> None:
    """Both outages go back to the same checkpoint: the second loses the very first step after the first one."""
    outages = [Outage(after=60, kind="rank"), Outage(after=15, kind="rank")]
    history, logs = in_sequence(seed, outages, Job(nodes=2, steps=160, every=50), rest=20 * MS)
    history.write(tmp_path, logs)
    run = window.load(tmp_path, "second")
    assert [episode.faults for episode in run.episodes] == [("fault2",)]
    assert run.steps.step.min() == 51


def test_steps_that_are_counted_anew_after_a_restart_are_joined_in_a_window_too(tmp_path: pathlib.Path) -> None:
    history, logs = in_sequence(1)
    history.write(tmp_path / "told", logs)
    for lines in logs.trainers():
        # A trainer that names the checkpoint it restored by its content alone, and counts its steps from 1 again.
        base = 0
        for line in lines:
            if line.get("event") == "restored" and line["step"]:
                base = line.pop("step")
                line |= {"source": "a checkpoint", "content": f"state {base}"}
            elif line.get("event") == "checkpoint.committed":
                line["content"] = f"state {line['step']}"
            if line.get("event") == "step" or str(line.get("event")).startswith("checkpoint."):
                line["step"] -= base
    history.write(tmp_path / "counted", logs)
    log = window.JobLog(reading.read(tmp_path / "counted" / "events"))
    for name in ("second", "first", "second"):  # no window changes what the next one is cut from
        told, counted = window.load(tmp_path / "told", name), log.window(name)
        assert counted.steps.step.tolist() == told.steps.step.tolist()
        assert counted.progress.step.tolist() == told.progress.step.tolist()


@pytest.mark.parametrize("gap", [None, 130])
def test_a_window_without_a_fault_free_run_begins_where_it_begins(tmp_path: pathlib.Path, gap: int | None) -> None:
    """The steps before it are not missing in it; one that it lacks is."""
    history, logs = story([], 2, expect={"loss_continuity": "off"})
    for lines in logs.trainers():
        remove(lines, lambda line: "loss" in line and line.get("step") == gap)
    rehearse(logs, "calm", "none", step_ended(logs, 101), step_ended(logs, 140), expect={"loss_continuity": "off"})
    rehearse(logs, "other", "none", step_ended(logs, 150), None)
    history.write(tmp_path, logs)
    run = window.load(tmp_path, "calm")
    card = judge(part_of(Evidence(run, None, ())), "calm")
    assert run.steps_before == 101 and run.steps.step.min() == 102
    told = [reason for reason in card.reasons if "never done" in reason]
    assert told == [] if gap is None else told[0].startswith(f"step {gap}:"), card.reasons


@pytest.mark.parametrize("begins", ["before", "in the outage"])
def test_a_window_that_ends_in_an_outage_holds_all_of_it(begins: str) -> None:
    history, logs = story([Outage(after=48, kind="node")], 3)
    (truth,) = history.truth.episodes
    injected = harness_times(logs, "fault.injected", "fault1")[0]
    begin = history.truth.begin + 5 if begins == "before" else injected + 10 * MS
    rehearse(logs, "short", "fault1", begin, (truth.t_first + truth.t_regained) // 2)
    rehearse(logs, "other", "fault2", truth.t_regained + 700 * MS, None)
    card = judged(history, logs, "short")
    assert [(each.t_stop, each.t_regained) for each in card.evidence.run.episodes] == [(truth.t_stop, truth.t_regained)]
    assert card.verdict is Verdict.PASS, card.reasons


def test_two_that_overlap_with_outages_of_their_own_see_both() -> None:
    history, logs = overlapping("fault1", "fault2")
    for name in ("first", "second"):
        card = judged(history, logs, name)
        assert card.verdict is Verdict.PASS, card.reasons
        assert [episode.faults for episode in card.evidence.run.episodes] == [("fault1",), ("fault2",)]


def diverge(first: int, last: int) -> Bend:
    return lambda logs: [line.update(loss=line["loss"] + 0.5) for line in logs.steps(first, last)]


@bending
def lose(logs: Logs, step: int) -> None:
    """The line of a rank that nothing kills with this step is lost on its way."""
    logs.number()
    lines = next(lines for lines in logs.trainers(rank=1) if any(line.get("step") == step for line in lines))
    remove(lines, lambda line: line.get("event") == "step" and line["step"] == step)


def die(logs: Logs, at: int) -> None:
    agent = next(lines for name, lines in logs.items() if name.startswith("agent-node0"))
    line = {"event": "worker.exit", "local_rank": 0, "rank": 0, "pid": 1, "code": -11}
    put(agent, line | clocks(agent[0], at - agent[0]["mono_ns"]))


@pytest.mark.parametrize(
    ("bend", "first", "second"),
    [
        (diverge(12, 14), Verdict.FAIL, Verdict.PASS),
        (diverge(50, 52), Verdict.PASS, Verdict.FAIL),
        (diverge(150, 155), Verdict.PASS, Verdict.PASS),
        (lose(12), Verdict.FAIL, Verdict.PASS),
        (lose(50), Verdict.PASS, Verdict.FAIL),
        (lose(150), Verdict.PASS, Verdict.PASS),
    ],
    ids=[
        f"{what} {where}" for what in ("losses", "lines") for where in ("in the first", "in the second", "after both")
    ],
)
def test_what_went_wrong_in_one_is_not_held_against_the_other(bend: Bend, first: Verdict, second: Verdict) -> None:
    history, logs = in_sequence(2)
    bend(logs)
    assert [judged(history, logs, name).verdict for name in ("first", "second")] == [first, second]
    assert judged(history, expecting(logs, EXPECT), None).verdict is Verdict.FAIL


def loosen(logs: Logs, name: str, mode: str) -> None:
    for line in logs.harness:
        if line.get("event") == "plan" and line.get("rehearsal") == name:
            line["plan"] = line["plan"] | {"expect": EXPECT | {"loss_continuity": {"mode": mode, "max_final_gap": 100}}}


@pytest.mark.parametrize(
    ("mode", "differs", "second"),
    [("final", True, Verdict.INCONCLUSIVE), ("final", False, Verdict.PASS), ("exact", True, Verdict.INCONCLUSIVE)],
)
def test_losses_after_a_rehearsal_that_may_change_them_prove_nothing(mode: str, differs: bool, second: Verdict) -> None:
    history, logs = in_sequence(2)
    loosen(logs, "first", mode)
    if differs:
        diverge(20, JOB.steps)(logs)
    card = judged(history, logs, "second")
    assert card.verdict is second, card.reasons
    text = (
        "rehearsal first changes what"
        if mode == "final"
        else "before this rehearsal's fault struck: see the rehearsals"
    )
    assert (text in card.reasons[0]) is differs


def test_a_later_rehearsal_that_may_change_losses_excuses_none_before() -> None:
    history, logs = in_sequence(2)
    loosen(logs, "second", "final")
    diverge(12, 14)(logs)
    assert judged(history, logs, "first").verdict is Verdict.FAIL


def test_whether_a_fault_acted_is_asked_of_its_own_rehearsal_only() -> None:
    history, logs = overlapping("fault1", "fault2")
    remove(logs.harness, lambda line: line.get("event") == "fault.effect" and line.get("fault") == "fault2")
    first, second = (judged(history, logs, name) for name in ("first", "second"))
    assert first.verdict is Verdict.PASS, first.reasons
    assert second.verdict is Verdict.INVALID
    assert second.reasons == ["fault fault2 was injected, but no effect was measured"]


def test_a_fault_that_two_rehearsals_plan_is_asked_of_both() -> None:
    history, logs = overlapping("fault1", "fault1", outages=TWO[:1])
    logs.harness.remove(logs.told("fault.effect"))
    assert [judged(history, logs, name).verdict for name in ("first", "second")] == [Verdict.INVALID] * 2


@pytest.mark.parametrize("healed", [True, False])
def test_a_fault_that_was_over_before_its_node_was_lost_is_not_named(tmp_path: pathlib.Path, healed: bool) -> None:
    history, logs = story([Outage(after=45, kind="node")], 3)
    places = [{"node": f"node{number}", "incarnation": 1, "rank": None} for number in (0, 1)]
    over = step_ended(logs, 20) if healed else None
    struck(logs, "slow", step_ended(logs, 10), over, targets=places, stops=False, spoils=False)
    (episode,) = timeline.load(history.write(tmp_path, logs)).episodes
    assert episode.faults == (("fault1",) if healed else ("slow", "fault1"))


def test_a_death_that_no_fault_explains_counts_in_its_window_only() -> None:
    history, logs = in_sequence(2)
    die(logs, recovered(history, 0) + 700 * MS)
    cards = {name: judged(history, logs, name) for name in ("first", "second")}
    assert cards["first"].verdict is Verdict.PASS, cards["first"].reasons
    assert cards["second"].verdict is Verdict.INCONCLUSIVE
    assert "unexplained death" in " ".join(cards["second"].reasons)


def test_a_rehearsal_that_was_given_up_fails_and_the_next_one_does_not() -> None:
    history, logs = in_sequence(4)
    for line in logs.harness:
        if line.get("event") == "rehearsal.finished" and line["rehearsal"] == "first":
            line.update(outcome="aborted", reason="the rehearsal took longer than 60 s")
    assert_verdict(judged(history, logs, "first"), Verdict.FAIL, first="the rehearsal took longer than 60 s")
    assert judged(history, logs, "second").verdict is Verdict.PASS


def test_a_fault_that_never_struck_makes_its_rehearsal_invalid() -> None:
    history, logs = in_sequence(1)
    logs.harness[:] = [line for line in logs.harness if line.get("fault") != "fault2"]
    second = judged(history, logs, "second")
    assert "fault fault2 never struck: its trigger never came" in second.reasons
    assert second.verdict is not Verdict.PASS


def test_a_single_rehearsal_to_the_end_is_judged_by_the_whole_log() -> None:
    history = simulate(JOB, TWO[:1], 1)
    logs = expecting(history.logs(), EXPECT)
    before = judged(history, logs, None)
    rehearse(logs, "only", "fault1", history.truth.begin + 1, history.truth.end - 3, outcome="job_ended")
    plans = [line for line in logs.harness if line.get("event") == "plan"]
    remove(logs.harness, lambda line: line in plans[1:])
    for name in ("only", None):
        card = judged(history, logs, name)
        run, other = card.evidence.run, before.evidence.run
        assert (card.verdict, card.scores, card.metrics) == (before.verdict, before.scores, before.metrics)
        assert (run.begin, run.end, len(run.steps)) == (other.begin, other.end, len(other.steps))


def test_a_rehearsal_that_is_not_there_is_named(tmp_path: pathlib.Path) -> None:
    history, logs = in_sequence(1)
    history.write(tmp_path, logs)
    with pytest.raises(UsageError, match="unknown rehearsal 'third'; this run began: first, second"):
        load_evidence(tmp_path, "third")
    simulate(JOB, (), 1).write(tmp_path / "old")
    assert window.load(tmp_path / "old").begin == timeline.load(tmp_path / "old").begin
    with pytest.raises(UsageError, match="this run began: none"):
        window.load(tmp_path / "old", "first")


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=4),
    share=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    outcome=st.sampled_from(["settled", "aborted", "job_ended"]),
)
def test_a_window_anywhere_is_whole(seed: int, kinds: list[str], share: tuple[float, float], outcome: str) -> None:
    """Phases have no gap, GPU time adds up (the ledger asserts it), no outage is cut, and no score crashes."""
    job = Job(nodes=2, steps=60, foreign_clocks=bool(seed % 2))
    history, logs = story([Outage(after=11, kind=kind) for kind in kinds], seed, job)
    length = history.truth.end - history.truth.begin
    begin, end = sorted(history.truth.begin + 3 + int(part * (length - 10)) for part in share)
    rehearse(logs, "some", "fault1", begin, None if outcome == "job_ended" else end, outcome=outcome)
    rehearse(logs, "other", "fault2", begin, None)
    card = judged(history, logs, "some")
    run = card.evidence.run
    if run.begin == run.end:  # after the last step: there is nothing to judge
        assert card.verdict is not Verdict.PASS
        return
    assert [s.begin for s in run.segments[1:]] == [s.end for s in run.segments[:-1]]
    assert (run.segments[0].begin, run.segments[-1].end) == (run.begin, run.end)
    if outcome != "aborted":
        assert all(each.t_regained is not None for each in run.episodes)
    assert not [reason for reason in card.reasons if "crashed" in reason], card.reasons
    whole = {(true.t_stop, true.t_regained) for true in history.truth.episodes}
    assert {(each.t_stop, each.t_regained) for each in run.episodes if each.t_regained is not None} <= whole
    assert run.steps.process.min(initial=0) >= 0 and run.steps.epoch.min(initial=0) >= 0
    assert all(index >= 0 for epoch in run.epochs for index in epoch.processes)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), share=st.floats(0.02, 0.98), noise=st.booleans())
def test_what_is_given_up_before_its_fault_is_inconclusive_anywhere(seed: int, share: float, noise: bool) -> None:
    """The end of its window falls between two steps, or into one: that is no outage."""
    history, logs = story([], seed, Job(nodes=2, steps=60, noise=0.1 if noise else 0.0))
    end = history.truth.begin + 10 + int(share * (history.truth.end - history.truth.begin))
    planned = {"id": "late", "fault": "rank_kill", "targets": [{"node_index": 0, "rank": 0}]}
    logs.plan["faults"] = [planned]
    rehearse(logs, "waits", "late", history.truth.begin + 2, end, outcome="aborted", reason="it took longer than 1 s")
    card = judged(history, logs, "waits")
    assert card.verdict is Verdict.INCONCLUSIVE, card.reasons
    assert not card.evidence.run.episodes
    assert any("before any fault had struck" in reason for reason in card.reasons)


@pytest.mark.slow
@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    kinds=st.lists(st.sampled_from(["rank", "node", "notice", "replica"]), min_size=1, max_size=3),
    afters=st.lists(st.integers(3, 40), min_size=3, max_size=3),
    shares=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    every=st.sampled_from([5, 25]),
    compared=st.booleans(),
)
@example(seed=0, kinds=["notice", "rank", "rank"], afters=[3, 3, 3], shares=(1.0, 0.0), every=5, compared=True)
def test_a_healthy_job_is_not_accused_in_any_window_with_its_fault(
    seed: int, kinds: list[str], afters: list[int], shares: tuple[float, float], every: int, compared: bool
) -> None:
    """It begins anywhere before its fault, in the recovery from another one too, and ends anywhere after its own."""
    job = Job(nodes=2, steps=150, every=every, foreign_clocks=bool(seed % 2))
    history, logs = story([Outage(after, kind) for after, kind in zip(afters, kinds, strict=False)], seed, job)
    for number, kind in enumerate(kinds):
        if kind in ("node", "notice"):
            planned = logs.plan["faults"][number]
            planned["targets"] = [{"node_index": 0, "rank": None}]
    for number in range(len(kinds)):
        struck = harness_times(logs, "fault.injected", f"fault{number + 1}")[0]
        begin = history.truth.begin + 1 + int(shares[0] * (struck - history.truth.begin - 2))
        end = struck + 1 + int(shares[1] * (history.truth.end - struck - 3))
        rehearse(logs, f"of fault{number + 1}", f"fault{number + 1}", begin, end)
    rehearse(logs, "last", "none", history.truth.end - 1, None)
    with tempfile.TemporaryDirectory() as folder:
        history.write(pathlib.Path(folder), logs)
        for number in range(len(kinds)):
            run = window.load(pathlib.Path(folder), f"of fault{number + 1}")
            card = judge(part_of(Evidence(run, fault_free_of(job) if compared else None, ())), "window")
            assert card.verdict is (Verdict.PASS if compared else Verdict.INCONCLUSIVE), card.reasons
            assert compared or card.reasons == ["loss_continuity.mode: there is no fault-free run to compare with"]


def stopped_hang(seed: int) -> tuple[History, Logs]:
    """A rank is frozen at step 60, people press Stop after ten seconds, and the job goes on."""
    history = simulate(JOB, [], seed)
    logs = expecting(history.logs(), {})
    begin, end = step_ended(logs, 60), step_ended(logs, 61)
    stretched(logs, begin, end, 10**10 / (end - begin))
    let_go = begin + 10**10 - 20 * MS
    struck(logs, "silence", begin, let_go + 15 * MS, kind="hang", may=["stop"], freezes=True, lasts="60s")
    logs.put({"event": "fault.cancelled", "fault": "silence"} | clocks(logs.told("fault.injected"), let_go - begin))
    logs.plan["faults"] = [{"id": "silence", "fault": "hang", "targets": []}]
    told = {"outcome": "stopped", "reason": "a person pressed stop"}
    rehearse(logs, "silent-hang", "silence", step_ended(logs, 20), let_go + 20 * MS, **told)
    return history, logs


@pytest.mark.parametrize("seed", range(3))
def test_a_hang_that_people_stopped_has_one_answer_and_one_ledger_everywhere(seed: int, tmp_path: pathlib.Path) -> None:
    """Without a fault-free run: the report of the rehearsal, that of the job, and the ledger while it goes on."""
    history, logs = stopped_hang(seed)
    events = history.write(tmp_path, logs)
    cards = {name: judge(Evidence(window.load(events, name)), name or "job") for name in ("silent-hang", None)}
    rehearsal, job = cards["silent-hang"], cards[None]
    assert_verdict(rehearsal, Verdict.INCONCLUSIVE, first="it was stopped: a person pressed stop")
    assert "fault silence was stopped after 9.98 s; its planned duration is 60s" in rehearsal.reasons
    assert job.verdict is Verdict.INCONCLUSIVE and "was stopped after 9.98 s" in job.reasons[0]
    booked = [figures_of.scores(card)["wasted_gpu_hours"] for card in (rehearsal, job)]
    by_faults = {each["gpu_seconds_wasted_by_faults"] for each in booked}
    assert len(by_faults) == 1 and min(by_faults) > 19, "two GPUs stood still for ten seconds"
    live = ledger_so_far.so_far(events, events)
    assert (
        live["wasted_faults"] in by_faults
        and live["wasted_all"] == figures_of.scores(job)["wasted_gpu_hours"]["gpu_seconds_wasted"]
    )
    assert figures_of.scores(rehearsal)["recovery_time"]["seconds"] == pytest.approx(10, rel=0.05)
