"""Savers where each rank tells of its own part: one checkpoint, which is whole with the last part."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judging import SAVES, Bend, bending, bent, together, verdict
from mutants.bent import JOB
from scorecards import assert_verdict
from simulator import Logs, Outage, change, clocks, find, put, simulate

from harness.judge.score import Scorecard
from harness.judge.verdict import Verdict
from harness.timeline import save_events
from harness.timeline.save_events import COMMITTED, PART, STARTED, SaveWorld

EARLY = [Outage(12, "rank", victim=1)]  # right after the save of step 10, back to it


def by_each_rank(logs: Logs, apart_ns: int = 1000) -> None:
    """Rank 1 begins and commits each checkpoint, too, a moment after rank 0."""
    for mine, other in zip(logs.trainers(rank=0), logs.trainers(rank=1), strict=True):
        put(other, *(line | clocks(line, apart_ns) for line in mine if line.get("event") in SAVES))


@bending
def in_files(logs: Logs, tensors: str = "of rank {}") -> None:
    """Each rank saves a file of its own, and restores it."""
    by_each_rank(logs)
    for rank in (0, 1):
        for line in (line for lines in logs.trainers(rank=rank) for line in lines):
            told = {"content": f"whole:{line.get('step')}.{rank}"}
            if line.get("event") == COMMITTED:
                line |= told | {"path": _part(line["step"], rank), "tensors": tensors.format(rank)}
            elif line.get("event") == "restored" and line["step"]:
                line |= told | {"source": _part(line["step"], rank), "saved": told["content"]}


def _part(step: int, rank: int) -> str:
    return f"/store/save{step}/part{rank}.pt"


PARTS = [_part(10, 0), _part(10, 1)]


@bending
def takes(logs: Logs, /, rank: int, **told: object) -> None:
    """Rank 1 restores the part of this rank, or of several."""
    restored = find(logs.last_lives()[1], "restored")
    step = restored["step"]
    content = f"whole:{step}.{rank}"
    restored.update({"source": _part(step, rank), "content": content, "saved": content, **told})


def never_committed(*steps: int) -> Bend:
    return lambda logs: logs.lose(COMMITTED, step=steps, rank=1, life=0)


def from_scratch(logs: Logs) -> None:
    """The second lives say that they restored step 0, and did steps 1 to 10 again before the others."""
    for rank, lines in enumerate(logs.last_lives()):
        restored = find(lines, "restored")
        restored.update(step=0, source="scratch")
        no_waits = {"data_ns": 0, "checkpoint_ns": 0, "sync_ns": 0}
        again = [
            line | clocks(restored, number * 1000) | {"begin_ns": restored["mono_ns"] + number * 1000 - 900} | no_waits
            for number, line in enumerate(logs.steps(1, 10, rank=rank, life=0), 1)
        ]
        lines[lines.index(restored) + 1 : lines.index(restored) + 1] = again


def never_saves_again(logs: Logs) -> None:
    logs.lose(COMMITTED, STARTED, rank=0, life=-1)
    logs.lose(COMMITTED, STARTED, rank=1, life=-1)


def judged(*bends: Bend, outages: list[Outage] = EARLY, usual: Bend = by_each_rank) -> Scorecard:
    expect = {"recovery_time": {"max": "60s"}}
    return verdict(simulate(JOB, outages, seed=5), together(*bends), expect, bent(JOB, usual))


def accused(card: Scorecard) -> bool:
    return any("had been committed" in reason for reason in card.reasons)


def test_a_checkpoint_in_parts_is_one() -> None:
    card = judged(by_each_rank)
    assert card.verdict is Verdict.PASS, card.reasons
    events = [(e["event"], e["step"], e["rank"]) for e in card.evidence.run.checkpoints if e["event"] != STARTED]
    assert events == [(each, step, rank) for step in (10, 20, 30, 40) for rank, each in enumerate((PART, COMMITTED))]
    assert card.metrics["checkpoints_committed"] == 4 and card.metrics["checkpoints_failed"] == 0
    assert card.evidence.run.committers == {2: 2}


def test_each_part_is_held_against_its_own() -> None:
    assert_verdict(judged(in_files()), Verdict.PASS)
    assert_verdict(judged(in_files(), takes(1, content="whole:another")), Verdict.INCONCLUSIVE, first="no longer holds")
    assert_verdict(judged(in_files(), takes(1, source="/elsewhere/part1.pt")), Verdict.PASS)


def test_a_rank_that_restores_the_part_of_another_one_fails() -> None:
    card = judged(in_files(), takes(0))
    assert card.verdict is Verdict.FAIL
    assert card.reasons[0] == "rank 1 restored rank 0's part of the checkpoint of step 10", card.reasons


def test_what_every_rank_saves_alike_is_anybodys() -> None:
    for innocent in (together(in_files("of all"), takes(0)), together(in_files(), takes(0, parts=PARTS))):
        assert_verdict(judged(innocent), Verdict.PASS)


def test_a_checkpoint_must_be_taken_once_its_last_part_is_committed() -> None:
    cut = judged(by_each_rank, never_committed(10), from_scratch)
    assert not accused(cut) and cut.verdict is Verdict.PASS, cut.reasons
    assert accused(judged(by_each_rank, from_scratch))
    one_commits = never_committed(10, 20, 30, 40)
    assert not accused(judged(by_each_rank, one_commits, usual=one_commits)), "one commits for all"
    assert accused(judged(from_scratch))


def test_how_many_commit_may_be_known_from_the_fault_free_run_alone() -> None:
    history = simulate(JOB, EARLY, seed=5)
    bend = together(by_each_rank, never_committed(10), from_scratch, never_saves_again)
    assert accused(verdict(history, bend, {}))
    card = verdict(history, bend, {}, fault_free=bent(JOB, by_each_rank, seed=5))
    assert card.evidence.run.committers == {2: 2} and not accused(card)


# Two ranks that write one file


def one_file(logs: Logs, **told: object) -> None:
    """Both ranks write one file, which takes 1 ms, into the run's folder. `told`: what rank 1 tells otherwise."""
    by_each_rank(logs)
    for rank in (0, 1):
        for line in [line for lines in logs.trainers(rank=rank) for line in lines if line.get("event") in SAVES]:
            line["path"] = f"/reports/{logs.plan['run_id']}/checkpoints/step-{line['step']}.pt"
            if line["event"] == COMMITTED:
                line |= {"files": [f"step-{line['step']}.pt"], "write_ns": 1_000_000, "content": "a"}
            line |= told if rank else {}
    for line in logs.all(COMMITTED):
        seen = {"path": f"checkpoints/step-{line['step']}.pt", "step": line["step"], "bytes": 1}
        logs.put({"event": "checkpoint.published"} | seen | clocks(line, 500_000))


TWICE = "ranks 0 and 1 wrote checkpoints/step-10.pt"


def test_two_ranks_that_write_one_file_fail_first() -> None:
    for outages in (EARLY, []):
        card = judged(one_file, outages=outages)
        assert card.verdict is Verdict.FAIL and card.reasons[0].startswith(TWICE), card.reasons
        assert card.reasons[0].endswith("step-10.pt at the same time (4 times, first in the save of step 10)")
    failed = judged(one_file, lambda logs: logs.told("run.finished").update(outcome="failed", reason="exit code 1"))
    assert len(failed.reasons) > 1 and failed.reasons[0].startswith(TWICE), failed.reasons


def own_disks(logs: Logs) -> None:
    """The harness sees the file of neither."""
    one_file(logs)
    logs.harness[:] = [line for line in logs.harness if line.get("event") != "checkpoint.published"]


def outside(logs: Logs) -> None:
    """On a disk of each node, from where one is copied to where the harness sees it."""
    one_file(logs)
    for line in [*logs.all(STARTED), *logs.all(COMMITTED)]:
        line["path"] = f"/scratch/checkpoints/step-{line['step']}.pt"


def of_each_rank(logs: Logs) -> None:
    """A file of its own in one folder: that is no file of two."""
    one_file(logs)
    for rank in (0, 1):
        for line in [line for lines in logs.trainers(rank=rank) for line in lines if line.get("event") in SAVES]:
            folder = line["path"].removesuffix(".pt")
            line["path"] = f"{folder}/{rank}.pt" if line["event"] == STARTED else folder
            line |= {"files": [f"{rank}.pt"]} if line["event"] == COMMITTED else {}


def one_collective(logs: Logs) -> None:
    """Both tell the folder that they fill together."""
    of_each_rank(logs)
    for line in logs.all(STARTED):
        line["path"] = line["path"].rpartition("/")[0]


def one_after_the_other(logs: Logs, **told: object) -> None:
    one_file(logs, **told)
    for line in logs.all(COMMITTED):
        line["write_ns"] = 1


def test_healthy_saves_of_two_ranks_are_not_accused_unless_their_bytes_differ() -> None:
    for bend in (own_disks, outside, of_each_rank, one_collective, one_after_the_other, by_each_rank):
        card = judged(bend)
        assert not any("wrote /" in reason for reason in card.reasons), (bend.__name__, card.reasons)
    card = judged(lambda logs: one_after_the_other(logs, content="b"))
    assert card.verdict is Verdict.INCONCLUSIVE and "and not the same bytes (4 times" in card.reasons[0], card.reasons


def by_rank_0(logs: Logs) -> None:
    change(logs.all(STARTED), path=lambda line: f"checkpoints/step-{line['step']}")


@bending
def restarted(logs: Logs, /, *events: str, **told: object) -> None:
    """After the restart, rank 1 saves, too, and tells only these events."""
    by_rank_0(logs)
    by_each_rank(logs)
    for life in (0, 1):
        logs.lose(*{*SAVES} - {*(events if life else ())}, rank=1, life=life)
    change(logs.all(*SAVES, rank=1), **told)


@pytest.mark.parametrize(
    ("bend", "usual", "told"),
    [
        (restarted(*SAVES), by_rank_0, True),
        (restarted(COMMITTED, files=["__0_0.distcp"], tensors="other"), by_rank_0, True),
        (restarted(STARTED), by_rank_0, True),
        (restarted(*SAVES), by_each_rank, False),
        (restarted(*SAVES, path=lambda line: f"/own/{line['step']}"), by_rank_0, False),
        (together(restarted(*SAVES), lambda logs: change(logs.all(*SAVES), kind="emergency")), by_rank_0, False),
    ],
)
def test_two_ranks_save_at_one_path_only_if_they_do_without_a_fault(bend: Bend, usual: Bend, told: bool) -> None:
    card = judged(bend, usual=usual)
    text = "ranks 0 and 1 wrote checkpoints/step-20 though only one rank does so without a fault (3 times"
    assert_verdict(card, Verdict.INCONCLUSIVE if told else Verdict.PASS, text * told)


# The rule itself


def told(
    *events: tuple[str, int, int], world: int = 0, ranks: int = 2
) -> tuple[list[dict[str, object]], list[SaveWorld]]:
    """(event, process, step), one a nanosecond."""
    found = [{"event": e, "process": p, "step": s, "at": at} for at, (e, p, s) in enumerate(events)]
    return list(found), [SaveWorld(world, ranks)] * len(found)


def names(*events: tuple[str, int, int], usual: dict[int, int] | None = None, ranks: int = 2) -> list[str]:
    found, places = told(*events, ranks=ranks)
    known = save_events.committers(found, places) if usual is None else usual
    labelled = save_events.labelled(found, places, known)
    return [str(each["event"]).rpartition(".")[2] for each in labelled if each["event"] != STARTED]


def test_it_is_whole_when_as_many_committed_as_began_or_as_usual() -> None:
    parts = [(COMMITTED, p, s) for s in (1, 2) for p in (0, 1)]
    assert names(*parts, (COMMITTED, 0, 3)) == ["part", "committed", "part", "committed", "part"]
    events = (STARTED, 0, 1), (STARTED, 2, 1), (COMMITTED, 2, 1), (COMMITTED, 0, 1)
    assert names(*events, usual={4: 4}, ranks=4) == ["part", "committed"], "those who began are waited for"
    three = [(COMMITTED, process, 1) for process in range(3)]
    assert names(*three, usual={4: 4}, ranks=3)[-2:] == ["part", "committed"], "a smaller world has fewer parts"
    assert names((COMMITTED, 0, 1), usual={4: 2}, ranks=2) == ["committed"]
    assert names((COMMITTED, 0, 1), usual={4: 4, 2: 1}) == ["part"], "everyone commits in one world, so in all"
    assert names((COMMITTED, 0, 1), (COMMITTED, 1, 1), usual={2: 2, 3: 1}, ranks=3) == ["part", "part"]
    assert save_events.together({2: 2, 3: 0}, {3: 1, 4: 0}) == {2: 2, 3: 1, 4: 0}
    assert save_events.committers(*told((STARTED, 0, 1))) == {2: 0}
    both = [(COMMITTED, 0, 1), (COMMITTED, 0, 2), ("checkpoint.failed", 0, 3), (COMMITTED, 1, 2), (COMMITTED, 1, 1)]
    assert names(*both) == ["part", "part", "failed", "committed", "committed"], "saves of two steps may overlap"
    again = [(STARTED, 0, 1), (STARTED, 1, 1), (COMMITTED, 0, 1), (STARTED, 0, 1), (STARTED, 1, 1), (COMMITTED, 1, 1)]
    assert names(*again, usual={2: 2}) == ["part", "part"], "one that is made again begins anew"
    assert names(*again, (COMMITTED, 0, 1), usual={2: 2}) == ["part", "part", "committed"]


def test_a_line_that_was_logged_twice_is_no_second_save() -> None:
    for at_once in (True, False):
        events = [(STARTED, 0, 1), (STARTED, 1, 1), (STARTED, 1, 1), (COMMITTED, 0, 1), (COMMITTED, 0, 1)]
        found, places = told(*events)
        found[2]["at"] = found[1]["at"] if at_once else found[2]["at"]
        found[4]["at"] = found[3]["at"]
        commits = [each["event"] for each in save_events.labelled(found, places, {2: 2})][3:]
        assert commits == [PART if at_once else COMMITTED] * 2
    found, places = told((STARTED, 0, 1), (STARTED, 1, 1), (STARTED, 0, 2), (STARTED, 0, 1), (COMMITTED, 0, 1))
    found[2]["at"] = found[3]["at"]
    assert save_events.labelled(found, places, {2: 2})[-1]["event"] == COMMITTED, "two steps are two saves"


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([STARTED, COMMITTED, "checkpoint.failed"]), st.integers(0, 3), st.integers(1, 3)),
        max_size=30,
    ),
    st.integers(1, 4),
)
def test_labels_change_nothing_else_and_stay_when_given_again(events: list[tuple[str, int, int]], ranks: int) -> None:
    found, places = told(*events, ranks=ranks)
    usual = save_events.committers(found, places)
    once = save_events.labelled(found, places, usual)
    assert [each | {"event": before["event"]} for each, before in zip(once, found, strict=True)] == found
    assert all(
        each["event"] == before["event"] or before["event"] == COMMITTED
        for each, before in zip(once, found, strict=True)
    )
    assert save_events.labelled(once, places, usual) == once
    assert save_events.committers(once, places) == usual
    if max(usual.values(), default=1) == 1:
        assert once == found, "one commit is enough where nobody else commits"
