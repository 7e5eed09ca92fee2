"""Which deaths a fault accounts for: its targets, and what follows from their end; nothing else."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judging import Bend, bending, struck, together, verdict
from simulator import Job, Logs, Outage, change, clocks, find, put, remove, simulate

from harness.evidence import deaths
from harness.judge.guarantees import end_explained
from harness.judge.score import Scorecard
from harness.judge.verdict import Verdict

JOB = Job(nodes=2, steps=40, every=10)
KILL = Outage(17, "rank", victim=1)
NOTICE = Outage(17, "notice", victim=1)
CRASH = Outage(17, "crash")
NODE = Outage(17, "node", victim=1)
MS = 10**6


def judged(bend: Bend, *outages: Outage, job: Job = JOB) -> Scorecard:
    return verdict(simulate(job, outages, seed=5), bend)


def unexplained(card: Scorecard) -> list[str]:
    """What is said of them, without where and when."""
    run = card.evidence.run
    found = [deaths.describe_alike([death], run.begin) for death in deaths.unexplained(run, deaths.ends_of(run))]
    assert card.metrics["deaths_unexplained"] == len(found)
    assert any(text.startswith("unexplained death") for text in card.reasons) == bool(found)
    left = any("without a notice" in text for text in card.reasons)  # that is a breach of its own
    assert left or card.verdict in (Verdict.INCONCLUSIVE, Verdict.INVALID) or not found
    return [text.partition(" at ")[0] for text in found]


def exits(logs: Logs, node: int) -> list[dict[str, Any]]:
    lines = [line for name, lines in logs.items() if name.startswith(f"agent-node{node}") for line in lines]
    return sorted((line for line in lines if line.get("event") == "worker.exit"), key=lambda line: line["mono_ns"])


@bending
def at_work(logs: Logs, /, begin: int, end: int, **what: Any) -> None:
    """A fault that kills nobody is at work on node 0 from `begin` to `end`, counted from the first rank's exit."""
    at = min(line["mono_ns"] for node in (0, 1) for line in exits(logs, node))
    target = [{"node": "node0", "incarnation": 1, "rank": None}]
    struck(logs, "slow", at + begin, healed=at + end, targets=target, **what)


@bending
def with_codes(logs: Logs, *codes: int) -> None:
    for rank, code in enumerate(codes):
        exits(logs, rank)[0]["code"] = code


def segfaults(*ranks: int) -> Bend:
    return lambda logs: [exits(logs, rank)[0].update(code=-11) for rank in ranks]


def nothing(logs: Logs) -> None:
    pass


def of_both(logs: Logs) -> None:
    logs.told("fault.injected")["targets"].append({"node": "node0", "incarnation": 1, "rank": 0})


def error_of(rank: int) -> Bend:
    """That worker says that it ends over an error, not over the loss of a peer."""
    return lambda logs: find(logs.trainers(rank=rank, life=0)[0], "exiting").update(reason="error")


def dies_before_the_kill(logs: Logs) -> None:
    exits(logs, 0)[0]["mono_ns"] = logs.told("fault.injected")["mono_ns"] - 1
    logs.lose("exiting", rank=0, life=0)


def crashes_before_anybody_left(logs: Logs) -> None:
    exits(logs, 0)[0].update(code=1, mono_ns=logs.told("fault.injected")["mono_ns"] + 10)


def leaves_early(logs: Logs) -> None:
    exits(logs, 0)[0]["mono_ns"] = logs.told("fault.injected")["mono_ns"] + 10


def back_of(logs: Logs) -> int:
    return int(next(line["mono_ns"] for line in logs.harness if line.get("incarnation") == 2))


@bending
def leaves_before_it_came(logs: Logs, code: int) -> None:
    exits(logs, 0)[1].update(code=code, mono_ns=back_of(logs) - 1)
    logs.lose("exiting", rank=0, life=1)


@bending
def replacement_dies_as_it_comes(logs: Logs, code: int = 1) -> None:
    """Its own arrival is no excuse."""
    back = next(line for line in logs.harness if line.get("incarnation") == 2)
    logs.put({"event": "process.exit", "node": "node1", "incarnation": 2, "code": code} | clocks(back, 10))


def a_lemon(logs: Logs) -> None:
    logs.told("fault.injected").update(sticks=True, may=["kill"])


def successor_crashes(logs: Logs) -> None:
    """During the recovery. Its predecessor was killed; it was started afterwards."""
    killed = exits(logs, 1)[0]
    begin = killed["mono_ns"] + MS
    logs["trainer-short-lived"] = [logs.trainers(rank=1, life=-1)[0][0] | {"pid": 4711, "mono_ns": begin}]
    agent = next(lines for lines in logs.values() if killed in lines)
    put(agent, killed | {"pid": 4711, "code": 1, "mono_ns": begin + MS})


def at_once(logs: Logs) -> None:
    """SIGTERM ends many a trainer at once; its peers' collectives fail long before the node is taken."""
    injected = logs.told("fault.injected")["mono_ns"]
    for rank, code in ((1, -15), (0, 1)):
        exits(logs, rank)[0].update(code=code, mono_ns=injected + 10 + 10 * rank)  # the victim's is seen last
        remove(logs.trainers(rank=rank, life=0)[0], lambda line: line["mono_ns"] > injected)
    change((logs.told("fault.taking"), logs.told("process.exit")), mono_ns=lambda line: line["mono_ns"] + 1000 * MS)


def at_once_without_a_launchers_log(logs: Logs) -> None:
    """ft_launcher tells no exit of a worker: the end of the node's command is seen long after that of the peer."""
    at_once(logs)
    for name in [name for name in logs if name.startswith("agent-")]:
        del logs[name]
    notice = logs.told("fault.injected")
    logs.told("process.exit").update(clocks(notice, 500 * MS), code=1)
    put(logs.trainers(rank=0, life=0)[0], {"event": "exiting", "reason": "peer lost", "code": 1} | clocks(notice, 20))


def struck_before(logs: Logs) -> None:
    """The fault struck, and the job went back in place before the node was lost."""
    back = find(logs.trainers(rank=0)[0], "anomaly")
    logs.told("fault.injected")["mono_ns"] = back["mono_ns"]
    logs.put()


REGROWN = Outage(12, "shrink", victim=1, regrow_after=5)
BACK, LOST = Outage(17, "rollback"), Outage(9, "node", victim=1)
HANG = at_work(-5 * MS, 60_000 * MS, stops=True)
HEALED = at_work(-5 * MS, -1 * MS, stops=True)  # but nobody steps again
DULL = at_work(-5 * MS, 60_000 * MS)  # it only slows
R0, R1 = "rank 0 on node0 ended with exit code ", "rank 1 on node1 ended with exit code "
ERROR = "1, after it reported an error,"


@pytest.mark.parametrize(
    ("bend", "outages", "found"),
    [
        (nothing, [KILL], []),
        (segfaults(0), [KILL], [f"{R0}-11"]),  # a peer does not get one from a kill,
        (segfaults(1), [KILL], []),  # the target may,
        (together(segfaults(0, 1), of_both), [KILL], []),  # and each of several
        (successor_crashes, [KILL], [f"{R1}1"]),
        (struck_before, [BACK, LOST], []),  # a peer goes with a node that took part in the new world itself
        (struck_before, [BACK, LOST, Outage(3, "crash")], [f"{R0}1", f"{R1}1"]),  # the next world was without it
        (nothing, [KILL, Outage(2, "crash")], [f"{R0}1", f"{R1}1"]),  # they had stepped on in the new world
        (dies_before_the_kill, [KILL], [f"{R0}1"]),
        (nothing, [NOTICE], []),
        (crashes_before_anybody_left, [NOTICE], [f"{R0}1"]),
        (at_once, [NOTICE], []),
        (at_once_without_a_launchers_log, [NOTICE], []),
        (leaves_early, [NOTICE], []),
        (together(leaves_early, lambda logs: logs.lose("notice")), [NOTICE], [f"{R0}75"]),
        (DULL, [CRASH], [f"{R0}1", f"{R1}1"]),
        (HANG, [CRASH], []),
        (HEALED, [CRASH], []),
        (together(HANG, segfaults(0)), [CRASH], [f"{R0}-11"]),
        (together(HANG, error_of(1)), [CRASH], [f"{R1}{ERROR}"]),
        (together(HEALED, error_of(1)), [CRASH], [f"{R1}{ERROR}"]),
        (together(HANG, error_of(0)), [CRASH], []),  # the fault was at work on node 0
        (together(HEALED, error_of(0)), [CRASH], []),
        (together(DULL, error_of(0)), [CRASH], [f"{R0}{ERROR}", f"{R1}1"]),
        (error_of(0), [KILL], [f"{R0}{ERROR}"]),
        (together(error_of(0), of_both), [KILL], []),
        (nothing, [REGROWN], []),  # a node that comes back explains that the job is formed anew
        (leaves_before_it_came(1), [REGROWN], [f"{R0}1"]),
        (leaves_before_it_came(75), [REGROWN], []),  # it left in peace, for a larger world,
        (leaves_before_it_came(75), [REGROWN, Outage(5, "shrink")], []),  # whatever it shrinks to afterwards
        (leaves_before_it_came(74), [REGROWN], [f"{R0}74"]),
        (with_codes(75), [CRASH], [f"{R0}75", f"{R1}1"]),  # the world that came was no larger
        (replacement_dies_as_it_comes(), [NODE], ["the command on node1 ended with exit code 1"]),
        (replacement_dies_as_it_comes(75), [NODE], ["the command on node1 ended with exit code 75"]),
        (together(a_lemon, replacement_dies_as_it_comes(75)), [NODE], []),  # a lemon may be told to leave
        (together(a_lemon, replacement_dies_as_it_comes()), [NODE], ["the command on node1 ended with exit code 1"]),
    ],
)
def test_which_deaths_a_fault_explains(bend: Bend, outages: list[Outage], found: list[str]) -> None:
    card = judged(bend, *outages)
    assert unexplained(card) == found
    if bend is nothing and outages in ([KILL], [NOTICE], [REGROWN]):
        assert card.metrics["deaths"] == (2 if outages == [KILL] else 3), "all are counted"


LATE = ["rank 0 on node0 ended with exit code 75"]


@pytest.mark.parametrize("kills", [True, False])
@pytest.mark.parametrize(
    ("launched_ms", "after_ms", "ended_ms", "found"),
    [(None, -1, None, []), (None, 1, None, LATE), (-2, 1, None, []), (2, 3, None, LATE), (-2, 3, -1, LATE)],
    ids=["started before", "started after", "its first word after", "formed after", "another ended meanwhile"],
)
def test_a_peer_that_was_launched_before_the_targets_end_was_seen_goes_with_it(
    kills: bool, launched_ms: int | None, after_ms: int, ended_ms: int | None, found: list[str]
) -> None:
    """A worker struck as it starts: its peer's launcher is a moment later, and starts one for the same world."""

    def late(logs: Logs) -> None:
        end, peer = exits(logs, 1)[0], exits(logs, 0)[0]
        logs.told("fault.injected").update({} if kills else {"kills": False, "stops": True})
        logs.told("fault.healed")["mono_ns"] = logs.told("fault.injected")["mono_ns"] + 1
        begin = end["mono_ns"] + after_ms * MS
        logs["trainer-late"] = [logs.trainers(rank=0, life=-1)[0][0] | {"pid": 4711, "mono_ns": begin}]
        agent = next(lines for lines in logs.values() if peer in lines)
        agent.append(peer | {"pid": 4711, "code": 75, "mono_ns": max(begin, end["mono_ns"]) + 5 * MS})
        if launched_ms is not None:
            formed = {"event": "agent.rendezvous", "edge": "end", "wall_ns": peer["wall_ns"]}
            agent.append(formed | {"mono_ns": end["mono_ns"] + launched_ms * MS})
        if ended_ms is not None:
            peer["mono_ns"] = end["mono_ns"] + ended_ms * MS
        put(agent)

    assert unexplained(judged(late, KILL)) == found


def test_it_does_not_explain_what_came_before_or_long_after_or_was_larger() -> None:
    later = at_work(3_000 * MS, 3_001 * MS, stops=True)
    assert len(unexplained(judged(later, Outage(3, "crash"), job=Job(nodes=2, steps=80)))) == 2
    earlier = judged(at_work(-5 * MS, 60 * MS, stops=True), CRASH, Outage(9, "crash"))
    assert len(unexplained(earlier)) == 2, "those who died the second time had stepped in a new world"

    def leaves(logs: Logs) -> None:
        exits(logs, 0)[1]["code"] = 75
        logs.pop(next(name for name, lines in logs.items() if lines is logs.trainers(rank=1, life=-1)[0]))
        change((line for line in logs.trainers(rank=0, life=-1)[0] if "world_size" in line), world_size=1)

    alone = judged(leaves, Outage(12, "shrink", victim=1), Outage(5, "crash"))
    assert "rank 0 on node0 ended with exit code 75" in unexplained(alone)


@pytest.mark.parametrize(
    ("healed_s", "every", "saved", "found"),
    [(-100, 10, True, 2), (-50, 10, True, 0), (-100, 1000, True, 2), (-100, 10, False, 0)],
    ids=["long survived", "a while ago", "saves nothing", "not saved since"],
)
def test_who_survived_it_for_long_dies_of_something_else(healed_s: int, every: int, saved: bool, found: int) -> None:
    def bend(logs: Logs) -> None:
        at_work((healed_s - 5) * 1000 * MS, healed_s * 1000 * MS, stops=True)(logs)
        healed = logs.told("fault.healed")["mono_ns"]
        for lines in logs.trainers() if not saved else ():
            remove(lines, lambda line: line.get("event") == "checkpoint.committed" and line["mono_ns"] > healed)

    job = Job(nodes=2, steps=40, every=every, step_ms=4000)
    assert judged(bend, Outage(37, "crash"), job=job).metrics["deaths_unexplained"] == found


def test_deaths_that_end_alike_are_told_together_and_three_kinds_are_named() -> None:
    def told(*dead: tuple[str, int | None], code: int | None = 1, error: bool = False, met: str = "") -> str:
        of = enumerate(dead)
        ends = [deaths.End(node, 1, rank, code, (9 - i) * 1000 * MS, 0, (), met, error) for i, (node, rank) in of]
        return deaths.describe_alike(ends, 0)

    assert told(("a", 1), ("b", 0), ("a", 1), error=True, met="Error: lost") == (
        "ranks 0 and 1 died 3 times, the first at 7.00 s, with exit code 1, after they reported an error"
        "; their first error: Error: lost"
    )
    assert told(("a", 3), ("a", 3)) == "rank 3 died 2 times, the first at 8.00 s, with exit code 1"
    assert told(("b", None), ("a", None)) == "the commands on a and b died, the first at 8.00 s, with exit code 1"
    gone = "ranks 0 and 1 disappeared without an exit code, the first before 8.00 s"
    assert told(("a", 0), ("b", 1), code=None) == gone
    many = told(*(("a", rank) for rank in range(9)))
    assert many.startswith("ranks 0, 1, 2, 3, 4, 5, 6 and 2 others died, the first at ")

    def reasons(nodes: int, *codes: int) -> list[str]:
        [reason] = judged(with_codes(*codes), CRASH, job=Job(nodes=nodes, steps=40, every=10)).reasons
        return reason.split("; ")

    kinds = [text.partition(":")[0] for text in reasons(5, 3, 3, 4, 5, 5)]
    assert sorted(kinds) == ["unexplained death", *["unexplained deaths"] * 2]
    assert reasons(5, 3, 4, 5, 6, 7)[-1] == "2 more unexplained deaths"
    assert reasons(4, 3, 4, 5, 6)[-1] == "1 more unexplained death"


@pytest.mark.parametrize(("restored", "spoilt"), [(None, True), (5, True), (6, False)])
def test_who_dies_after_a_checkpoint_was_damaged_may_have_died_of_that(restored: int | None, spoilt: bool) -> None:
    """It was damaged at 5 s, and until then each rank died once. `restored`: what a later one took."""
    rot = SimpleNamespace(id="rot", spoils=True, injected=5 * 1000 * MS)
    taken = None if restored is None else restored * 1000 * MS
    run: Any = SimpleNamespace(begin=0, faults=[rot], processes=[SimpleNamespace(restored=taken)])
    dead = [deaths.End("a", 1, rank, 1, at * 1000 * MS, 0, (), "", False) for rank, at in ((0, 4), (1, 5), (2, 6))]
    before = "unexplained death: rank 0 on a ended with exit code 1 at 4.00 s (no fault explains it)"
    later = "unexplained deaths: ranks 1 and 2 died, the first at 5.00 s, with exit code 1"
    evidence: Any = SimpleNamespace(run=run, deaths_unexplained=dead)
    [told] = [each.words.split("; ") for each in end_explained.breaches(evidence)]
    if spoilt:
        assert told == [before, f"{later} (it came after `rot` had damaged a checkpoint)"]
    else:
        all_of_them = "unexplained deaths: ranks 0, 1 and 2 died, the first at 4.00 s, with exit code 1"
        assert told == [f"{all_of_them} (no fault explains it)"]


@pytest.mark.parametrize("place", [{"rank": 0}, {"node": "node0"}, {"incarnation": 2}])
def test_a_kill_elsewhere_makes_the_dead_rank_a_peer_not_a_target(place: dict[str, Any]) -> None:
    def elsewhere(logs: Logs) -> None:
        logs.told("fault.injected")["targets"][0].update(place)
        exits(logs, 1)[0]["code"] = -11

    assert "rank 1 on node1 ended with exit code -11" in unexplained(judged(elsewhere, KILL))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 3), st.integers(1, 2), st.sampled_from(["rank", "node", "notice"]), st.integers(0, 10**6))
def test_one_death_more_is_always_noticed(nodes: int, ranks: int, kind: str, seed: int) -> None:
    job = Job(nodes=nodes, ranks_per_node=ranks, steps=40, every=6, foreign_clocks=seed % 2 == 0)
    card = verdict(simulate(job, [Outage(12, kind, victim=seed % 3), Outage(12, "crash")], seed))
    assert card.verdict is Verdict.INCONCLUSIVE
    assert card.metrics["deaths_unexplained"] == nodes * ranks


def taken_by_engine(logs: Logs) -> None:
    """The engine takes node 1 at the end of the job; no fault asked it to."""
    last = logs.harness[-1]
    logs.harness.append(last | {"event": "node.released", "node": "node1", "incarnation": 1, "reason": "evicted"})


@bending
def drained(logs: Logs, *sources: str | None) -> None:
    """Both ranks leave as drained ones do; rank 0 tells of a notice of the first source, rank 1 of the second one."""
    for rank, source in enumerate(sources):
        exits(logs, rank)[0]["code"] = 75
        lines = logs.trainers(rank=rank, life=0)[0]
        lines += [lines[-1] | {"event": "notice", "source": source}] if source else []


SLOW = at_work(-900 * MS, 60_000 * MS)  # on node 0
SLOWED_BEFORE = at_work(-900 * MS, -800 * MS)


@pytest.mark.parametrize(
    ("sources", "also", "excused"),
    [
        (("signal", "peer"), nothing, False),
        (("peer", "peer"), nothing, False),
        (("ec2", "ec2"), nothing, False),
        (("straggler", "peer"), nothing, False),
        (("straggler", "peer"), SLOW, True),
        (("peer", "straggler"), SLOW, False),  # another node than the slow one
        (("signal", "peer"), SLOW, False),  # nobody takes a slow node
        (("peer", "peer"), SLOW, False),
        (("straggler", "peer"), SLOWED_BEFORE, False),
        (("peer", "ec2"), taken_by_engine, True),
        (("ec2", "peer"), taken_by_engine, True),
        (("straggler", "straggler"), taken_by_engine, False),
    ],
)
def test_only_a_notice_that_somebody_gave_excuses(sources: tuple[str, str], also: Bend, excused: bool) -> None:
    found = unexplained(judged(together(also, drained(*sources)), CRASH))
    assert sorted(found) == ([] if excused else [f"{R0}75", f"{R1}75"])


@pytest.mark.parametrize("notice", [{"notice_ns": 5000 * MS}, {}], ids=["with notice", "without"])
def test_a_job_may_leave_with_0_over_a_notice_that_nobody_tells(notice: dict[str, Any]) -> None:
    def leaves(logs: Logs) -> None:
        for lines in logs.trainers():
            lines[:] = [line for line in lines if line.get("event") != "notice"]
        for end in (exits(logs, rank)[0] for rank in range(2)):
            end["code"] = 0
        logs.told("fault.injected").update({"may": ["kill"], "preempts": True} | notice)

    found = unexplained(judged(leaves, Outage(12, "notice", victim=1)))
    assert sorted(found) == ([] if notice else [f"{R0}0"])


@pytest.mark.parametrize(("later_ns", "found"), [(-1, 1), (0, 1), (1, 0)])
def test_what_dies_after_the_harness_gave_up_was_killed_by_it(later_ns: int, found: int) -> None:
    def given_up(logs: Logs) -> None:
        exits(logs, 1)[0]["code"] = 0
        end = exits(logs, 0)[0]
        end["code"] = -6
        abort = {"event": "abort", "reason": "no step", "wall_ns": end["wall_ns"], "mono_ns": end["mono_ns"] - later_ns}
        logs.put(abort)

    assert judged(given_up, CRASH).metrics["deaths_unexplained"] == found


def test_a_node_and_a_rank_of_it_may_be_struck_at_the_same_instant() -> None:
    def both(logs: Logs) -> None:
        told = logs.told("fault.injected")
        whole = [{"node": told["targets"][0]["node"], "incarnation": 1, "rank": None}]
        struck(logs, "node", told["mono_ns"], targets=whole, kills=True)

    assert unexplained(judged(both, KILL)) == []


@pytest.mark.parametrize(("sealed", "explained"), [(True, True), (False, False)])
def test_who_loaded_a_poisoned_checkpoint_may_die_of_it(sealed: bool, explained: bool) -> None:
    """The crash comes right after the restart, from which on the first kill explains nothing."""
    outages = [Outage(17, "rank", victim=1), Outage(3, "crash", victim=1)]

    def poisoned(logs: Logs) -> None:
        told = logs.told("fault.injected")
        logs.put(
            {
                "event": "fault.damaged",
                "fault": told["fault"],
                "path": "x",
                "step": 10,
                "part": "tensor",
                "tensor_bytes": 4,
            }
            | clocks(told)
            | ({"sealed": True} if sealed else {})
        )

    card = verdict(simulate(Job(nodes=2, steps=40, every=10), outages, 5), poisoned)
    assert bool(card.evidence.deaths_unexplained) is not explained
