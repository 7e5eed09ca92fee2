"""Each check of a preflight, on what nodes may tell: what is wrong is named with its node, link and rank; what is well is
not; and what was not told is no pass."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import judging
import pytest
from mutants.bent import JOB, begins_anew_without_a_word
from simulator import Line, Logs, Outage, change, simulate

from harness.faults.contract import Target
from harness.judge.score import Evidence, judge
from harness.judge.verdict import Verdict
from harness.plan.run_plan import Plan, PlannedFault, When
from harness.preflight.checks.contract import Judged, Reduced, Seen, Told, check_names, load_check, odd_ones

GBIT = 1e9 / 8


def plan(nodes: int = 3, ranks: int = 1, faults: Sequence[PlannedFault] = (), **workload: Any) -> Plan:
    rest = {"run_id": "r", "seed": 1, "backend": "local", "scenario": {"name": "s", "title": "t"}, "faults": faults}
    size = {"nodes": nodes, "ranks_per_node": ranks}
    return Plan.from_json(rest | {"workload": size | workload, "abort": {"wall_clock_ns": 10**9}})


def seen(nodes: int = 3, ranks: int = 1, told: Sequence[tuple[int | str, str, Mapping[str, Any]]] = ()) -> Seen:
    """`told`: of a rank, or of a node by its name; of which probe; what."""
    names = [f"node{place}" for place in range(nodes)]
    found = []
    for who, probe, values in told:
        rank = who if isinstance(who, int) else None
        found.append(Told(names[rank // ranks] if rank is not None else str(who), rank, probe, values))
    return Seen(plan(nodes, ranks), found, names)


def asked(name: str, of: Seen) -> Judged:
    return load_check(name).judge(of)


def places(judged: Judged) -> list[list[str]]:
    return [each.nodes for each in judged.findings]


@pytest.mark.parametrize("name", [name for name in check_names() if load_check(name).needs == "nodes"])
def test_what_nobody_told_is_no_pass_and_one_node_alone_is_asked_nothing_of_others(name: str) -> None:
    judged, alone = asked(name, seen()), asked(name, seen(nodes=1))
    assert judged.verdict is Verdict.INCONCLUSIVE
    assert name == "all_reduce" or ["node0", "node1", "node2"] in places(judged)
    assert bool(alone.not_judged) is (alone.verdict is None) is (name in ("clocks", "links", "all_reduce"))


def test_who_is_odd() -> None:
    for values, most, odd in (
        ({"a": 1, "b": 1, "c": 2}, 1, {"c"}),
        ({"a": 1, "b": 2}, None, {"a", "b"}),
        ({"a": 1, "b": 1}, 1, set()),
        ({}, None, set()),
    ):
        found = odd_ones(values)
        assert (found[0], set(found[1])) == (most, odd)


def devices(**odd: Any) -> Seen:
    """Three nodes; the last one has these values in place of the usual ones."""
    node = {"python": "3.11.2", "driver": "550", "cpu": "x", "cpus": 8, "memory_bytes": 64 * 2**30}
    rank = {"torch": "2.9.1", "cuda": "12", "gpu": "H100", "gpus": 8, "gpu_bytes": 80 * 2**30}
    told: list[tuple[int | str, str, Mapping[str, Any]]] = []
    for place in range(3):
        other = odd if place == 2 else {}
        told.append((f"node{place}", "node", {name: other.get(name, value) for name, value in node.items()}))
        told.append((place, "software", {name: other.get(name, value) for name, value in rank.items()}))
    return seen(told=told)


@pytest.mark.parametrize(
    ("name", "value"),
    [("torch", "2.8.0"), ("python", "3.12.1"), ("driver", "535"), ("gpus", 7), ("memory_bytes", 32 * 2**30)],
)
def test_a_node_with_another_device_or_software_is_named(name: str, value: object) -> None:
    judged = asked("devices", devices(**{name: value}))
    assert judged.verdict is Verdict.FAIL and places(judged) == [["node2"]]
    assert judged.findings[0].cause
    alike = asked("devices", devices(memory_bytes=64 * 2**30 + 2**20))
    assert alike.verdict is Verdict.PASS and alike.facts["torch"] == "2.9.1" and "H100" in alike.words
    for nonsense in ({"torch": 5}, {"gpus": -1}, {"torch": "x" * 10_000}):
        of = devices(**nonsense)
        judged = asked("devices", of)
        assert of.damaged and of.damaged[0].startswith("node2 ")
        assert ["node2"] in places(judged) and judged.verdict is Verdict.INCONCLUSIVE


FOLDER = {"kind": "folder", "mount": "/mnt", "filesystem": "nfs4", "entries": 4}


def files(odd: Mapping[str, Any], path: str = "/mnt/data", **node: Any) -> Judged:
    told = [
        (f"node{n}", "node", {"paths": {path: odd if n == 1 else FOLDER}} | (node if n == 1 else {})) for n in range(3)
    ]
    return asked("environment", seen(told=told))


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ({"kind": "absent"}, "/mnt/data is missing on node1"),
        ({"kind": "stuck"}, "does not answer on node1"),
        (FOLDER | {"mount": "/", "filesystem": "overlay", "entries": 0}, "lies elsewhere on node1"),
        (FOLDER | {"entries": 0}, "is empty on node1"),
        ({"kind": "folder", "error": "Stale file handle"}, "Stale file handle"),
    ],
)
def test_a_missing_mount_is_named_with_its_node(odd: Mapping[str, Any], words: str) -> None:
    judged = files(odd)
    assert judged.verdict is Verdict.FAIL and places(judged) == [["node1"]] and words in judged.findings[0].words


def test_variables_that_are_unset_or_other_on_a_node_are_named() -> None:
    judged = files(FOLDER, unset=["HF_HOME"], settings={"NCCL_DEBUG": "abc"})
    assert [each.words for each in judged.findings] == [
        "HF_HOME is not set on node1",
        "NCCL_DEBUG has another value on node1",
    ]


def saved_below_out(logs: Logs) -> None:
    told = (line for lines in logs.trainers() for line in lines if "path" in line)
    change(told, path=lambda line: f"/out/run/{line['path']}")


@pytest.mark.parametrize(
    ("path", "verdict"),
    [
        ("/out", Verdict.PASS),
        ("/out/run/checkpoints", Verdict.PASS),  # where it saves, it makes a folder
        ("/ou", Verdict.INCONCLUSIVE),
        ("/data", Verdict.INCONCLUSIVE),
    ],
)
def test_what_is_on_no_node_is_a_doubt_unless_the_trainer_saves_there(path: str, verdict: Verdict) -> None:
    told = [(f"node{n}", "node", {"paths": {path: {"kind": "absent"}}}) for n in range(3)]
    alone = seen(told=told)
    if path != "/out/run/checkpoints":
        assert asked("environment", alone).verdict is Verdict.INCONCLUSIVE
    alone.canary = canary(saved_below_out).canary
    judged = asked("environment", alone)
    assert judged.verdict is verdict and path in (judged.findings[0].words if judged.findings else judged.words)


@pytest.mark.parametrize(
    ("offsets", "named"),
    [
        ([[1, 0.002, 0.001], [2, -0.003, 0.001]], []),
        ([[1, 2.0, 0.01], [2, 0.0, 0.01]], [["node1"]]),
        ([[1, -2.0, 0.01], [2, -2.0, 0.01]], [["node0"]]),
        ([[1, 2.0, 1.9], [2, 0.0, 0.01]], [["node1"]]),  # the network was too slow to tell
        ([[1, math.nan, 0.1], [2, 0.0, 0.01]], [["node1"]]),
        ([[1, 2.0, 0.001]], [["node0", "node1"]]),  # of two clocks neither is known to be right
    ],
)
def test_a_clock_that_is_off_is_named(offsets: list[list[float]], named: list[list[str]]) -> None:
    told = [(0, "clocks", {"offsets": offsets})]
    judged = asked("clocks", seen(nodes=len(offsets) + 1, told=told))
    assert places(judged) == named
    assert len(offsets) == 2 or "node1 is 2.00 s ahead of node0" in judged.findings[0].words


@pytest.mark.parametrize(
    ("check", "told"),
    [
        ("links", [(0, "links", {"to": [[1, 1e9]]}), (1, "links", {"to": []})]),
        ("links", [(0, "links", {"to": [[1, 1e9]]}), (1, "links", {"to": [[1, 1e9], [7, 1e9]]})]),
        ("all_reduce", [(0, "all_reduce", {"which": "within", "ranks": 2, "times": [[2**24, 0.1]]})]),
        ("devices", [(rank, "software", {"torch": ""}) for rank in (0, 1)]),
        ("clocks", [(1, "clocks", {"offsets": [[1, 0.0, 0.0]]})]),  # another rank counts for nothing
    ],
)
def test_a_part_that_was_not_told_is_a_doubt(check: str, told: list[tuple[int, str, dict[str, Any]]]) -> None:
    assert asked(check, seen(nodes=2, told=told)).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(("slow", "named"), [(0.9, []), (0.6, [["node1"]])])
@pytest.mark.parametrize("one_host", [True, False])
def test_a_slow_rank_is_named_by_its_median_and_is_a_doubt_on_a_shared_host(
    slow: float, named: list[list[str]], one_host: bool
) -> None:
    told = [(rank, "compute", {"flops": [1e9 * (slow if rank == 3 else 1)] * 4 + [1e8]}) for rank in range(4)]
    of = seen(nodes=2, ranks=2, told=told)
    of.one_host = one_host
    judged = asked("compute", of)
    assert places(judged) == named and [each.ranks for each in judged.findings] == ([[3]] if named else [])
    assert judged.verdict is ((Verdict.INCONCLUSIVE if one_host else Verdict.FAIL) if named else Verdict.PASS)
    untold = asked("compute", seen(nodes=2, ranks=2, told=told[:3]))  # another rank on its node tells
    assert places(untold) == [["node1"]] and untold.verdict is Verdict.INCONCLUSIVE


def links(
    speeds: Mapping[tuple[int, int], float], nodes: int, ranks: int = 1, usual: float = 10.0, one_host: bool = False
) -> Judged:
    """All at `usual` Gbit/s but these."""
    all_ranks = range(nodes * ranks)
    told = [
        (a, "links", {"to": [[b, speeds.get((a, b), usual) * GBIT] for b in all_ranks if b != a], "again": 2})
        for a in all_ranks
    ]
    of = seen(nodes, ranks, told)
    of.one_host = one_host
    return asked("links", of)


@pytest.mark.parametrize(
    ("speeds", "nodes", "named", "ends"),
    [
        ({}, 2, [], []),
        ({(0, 1): 8.0}, 3, [], []),
        ({(0, 1): 0.287}, 2, [["node0", "node1"]], [["node0", "node1"]]),
        ({(1, 0): 0.287}, 2, [["node1", "node0"]], [["node1", "node0"]]),
        ({(0, 2): 5.0}, 4, [["node0", "node2"]], [["node0", "node2"]]),
        ({(2, b): 5.0 for b in range(4)}, 4, [["node2"]], [["node2", "node0"]]),
        ({(a, b): 5.0 for a in range(3) for b in range(3) if 2 in (a, b)}, 3, [["node2"]], None),
    ],
)
def test_a_slow_link_is_told_from_a_slow_port(
    speeds: dict[tuple[int, int], float], nodes: int, named: list[list[str]], ends: list[list[str]] | None
) -> None:
    judged = links(speeds, nodes)
    assert places(judged) == named and judged.verdict is (Verdict.FAIL if named else Verdict.PASS)
    assert ends is None or [each.link for each in judged.findings] == ends


@pytest.mark.parametrize(
    ("speed", "nodes", "one_host", "verdict", "why"),
    [
        (4.02, 2, False, Verdict.INCONCLUSIVE, "one other to compare with"),
        (0.287, 2, False, Verdict.FAIL, ""),
        (4.02, 3, False, Verdict.FAIL, ""),
        (4.02, 3, True, Verdict.INCONCLUSIVE, "share the CPUs of one host"),
        (0.287, 3, True, Verdict.FAIL, ""),
    ],
)
def test_a_slow_link_is_accused_only_where_nothing_else_explains_it(
    speed: float, nodes: int, one_host: bool, verdict: Verdict, why: str
) -> None:
    judged = links({(1, 0): speed}, nodes, usual=14.4, one_host=one_host)
    assert judged.verdict is verdict and "measured 2 more times" in judged.words
    (finding,) = judged.findings
    assert why in finding.cause and ("quiet host" in finding.cause) is bool(why)


def test_a_busy_moment_beside_a_slow_card_is_a_doubt_and_links_are_held_against_their_like_alone() -> None:
    slow = {(a, b): 0.19 for a in range(3) for b in range(3) if 2 in (a, b)}
    found = links({(1, 0): 3.5} | slow, 3, usual=12.0, one_host=True).findings
    assert [(each.nodes, each.certain) for each in found] == [(["node1"], False), (["node2"], True)]
    within = {(a, b): 100.0 for a in range(4) for b in range(4) if a // 2 == b // 2}
    assert not links(within, nodes=2, ranks=2).findings
    judged = links(within | {(2, 3): 40.0}, nodes=2, ranks=2)
    assert [(each.nodes, each.ranks) for each in judged.findings] == [(["node1"], [2, 3])]


def test_bus_bandwidth_is_what_nccl_tests_call_so_and_a_gpu_that_nvml_complains_of_is_a_doubt() -> None:
    assert [Reduced("all", ranks, [(10**9, 1.0)]).bus_bandwidth for ranks in (2, 4)] == [1e9, 1.5e9]
    told = [(0, "all_reduce", {"which": "all", "ranks": 2, "times": [[2**16, 0.001], [2**24, 0.1]]})]
    judged = asked("all_reduce", seen(nodes=2, told=told))
    assert list(judged.figures.values()) == [2**24 / 0.1] and list(judged.shown.values()) == [2**16 / 0.001]
    assert "1.34 Gbit/s" in judged.words
    of = seen(2, told=[("node0", "node", {"gpus_unwell": []}), ("node1", "node", {"gpus_unwell": ["GPU 3 is lost"]})])
    (found,) = [each for each in asked("devices", of).findings if "GPU 3" in each.words]
    assert (found.words, found.nodes, found.certain) == ("GPU 3 is lost on node1", ["node1"], False)


GOOD = {"bytes": 64 * 2**20, "write_s": 0.1, "fsync_s": 0.1, "read_s": 0.1, "list_s": 0.0, "same": True, "listed": True}


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ({"error": "writing: No space left on device"}, "No space left"),
        (GOOD | {"same": False}, "not what was written"),
        (GOOD | {"listed": False}, "not listed"),
        (GOOD | {"fsync_s": 2.0}, "node1 writes checkpoints at 32 MB/s"),
        (GOOD | {"read_s": 2.0}, "node1 reads back"),
    ],
)
def test_storage_that_fails_or_is_slow_is_named(odd: dict[str, Any], words: str) -> None:
    judged = asked("storage", seen(told=[(n, "storage", odd if n == 1 else GOOD) for n in range(3)]))
    assert judged.verdict is Verdict.FAIL and places(judged) == [["node1"]] and words in judged.findings[0].words
    failed = (1, "failed", {"stage": "links", "error": "OSError: reset"})
    judged = asked("storage", seen(told=[(0, "storage", GOOD), (2, "storage", GOOD), failed]))
    assert "node1: links: OSError: reset" in judged.findings[0].words and judged.verdict is Verdict.INCONCLUSIVE


def canary(bend: judging.Bend = lambda logs: None, faults: Sequence[PlannedFault] = ()) -> Seen:
    of = seen(nodes=2)
    of.plan, of.canary = plan(2, faults=faults), judge(Evidence(judging.bent(JOB, bend)), "canary")
    return of


@pytest.mark.parametrize(
    ("change", "verdict", "words"),
    [
        (lambda line: line.update(loss=2.0 + line["step"] / 1000), Verdict.FAIL, "the loss does not fall"),
        (lambda line: line.update(grad_norm=500.0 ** (line["step"] == 30)), Verdict.FAIL, "norms of gradients jump"),
        (lambda line: line.update(data_ns=(line["mono_ns"] - line["begin_ns"]) // 2), Verdict.FAIL, "waiting for data"),
        (lambda line: line.pop("loss", None), Verdict.INCONCLUSIVE, "whether the loss falls is not known"),
        (lambda line: None, Verdict.PASS, "use of GPUs"),  # which it did not tell
    ],
)
def test_a_canary_says_what_is_wrong_and_what_it_did_not_tell(
    change: Callable[[Line], object], verdict: Verdict, words: str
) -> None:
    def bend(logs: Logs) -> None:
        for line in logs.steps():
            line["loss"] = 4.0 / line["step"]
            change(line)

    judged = asked("canary", canary(bend))
    assert judged.verdict is verdict and words in (str(judged.findings) if judged.findings else judged.words)
    assert judged.findings or judged.figures["step (s)"] > 0


def test_what_is_no_canary_is_no_pass_and_a_trainer_that_fails_without_a_fault_is_not_fit() -> None:
    of = seen(nodes=2)
    of.canary_ended = "the run took longer than 600 s"
    judged = asked("canary", of)
    assert judged.verdict is Verdict.INCONCLUSIVE and "600 s" in judged.findings[0].words
    assert asked("restore", of).verdict is Verdict.INCONCLUSIVE
    assert all(asked(name, of).not_judged for name in ("notice", "free_space", "communication"))
    of = canary()
    of.canary_ended = "the command on node1 ended with 1"
    judged = asked("canary", of)
    assert judged.verdict is Verdict.FAIL and "node1 ended with 1" in judged.findings[0].words


def test_a_trainer_that_does_not_come_back_is_named_with_the_rank_that_was_killed() -> None:
    of, history = seen(nodes=2), simulate(JOB, [Outage(12, "rank", victim=1)])
    of.drill = judging.verdict(history)
    assert asked("restore", of).verdict is Verdict.PASS
    of.drill = judging.verdict(history, begins_anew_without_a_word)
    judged = asked("restore", of)
    assert judged.verdict is Verdict.FAIL and judged.findings[0].nodes == ["node1"] and judged.findings[0].cause
    run = replace(of.drill.evidence.run, faults=[])
    of.drill = replace(of.drill, evidence=replace(of.drill.evidence, run=run))  # it was stopped before the kill
    assert asked("restore", of).findings[0].words == of.drill.reasons[0]
    of.drill = judging.verdict(history)
    headline = "the job did all its steps; the scenario expects nothing else; not judged: loss, sample order"
    of.drill = replace(of.drill, reasons=[headline])
    told = "the job did all its steps; not judged in this step: loss, sample order"
    assert asked("restore", of).words == told, "the scenario may expect more"


def eviction(notice: str) -> PlannedFault:
    parameters = {"notice": notice}
    when, targets = When(step=5), (Target(0),)
    return PlannedFault(id="evict", fault="preemption", parameters=parameters, when=when, targets=targets)


@pytest.mark.parametrize(("seconds", "verdict"), [(1, Verdict.PASS), (30, Verdict.FAIL)])
def test_the_longest_save_must_fit_into_the_shortest_notice(seconds: float, verdict: Verdict) -> None:
    of = canary(faults=[eviction("5s")])
    assert of.canary is not None
    of.canary = replace(of.canary, metrics={"checkpoint_seconds_max": seconds})
    assert asked("notice", of).verdict is verdict


@pytest.mark.parametrize(
    ("left", "removed", "told"),
    [
        (None, 0, "2 saves (as the scenario says)"),
        (3, 5, "3 saves (as many as it kept)"),
        (1, 5, "1 save (as many as it kept)"),
        (4, 0, "4 saves (it removed none of 4)"),
        (1, 0, "2 saves (as the scenario says)"),
    ],
)
def test_there_must_be_room_for_as_many_saves_as_were_seen_to_be_kept(
    left: int | None, removed: int, told: str
) -> None:
    of = canary(lambda logs: change(logs.all("checkpoint.committed"), bytes=2**20))
    assert of.canary is not None and of.plan.workload.checkpoint.keep == 2, "its default: no trainer heard of it"
    run = of.canary.evidence.run
    gone = [{"event": "checkpoint.removed", "at": run.end, "path": f"{n}"} for n in range(removed)]
    run = replace(run, left=None if left is None else {"count": left}, removed=gone, unseen=())
    of.canary = replace(of.canary, evidence=replace(of.canary.evidence, run=run))
    for free, verdict, named in ((2**40, Verdict.PASS, []), (10, Verdict.FAIL, [["node1"]])):
        folder = {"/runs/1/checkpoints": {"kind": "folder", "free_bytes": free}}
        of.told = [Told("node1", None, "node", {"paths": folder})]
        judged = asked("free_space", of)
        assert judged.verdict is verdict and places(judged) == named
        assert named or judged.words.startswith(f"{int(told.split()[0]) + 1} MiB for {told} and one more; free: ")


def test_a_step_sends_what_the_links_counted() -> None:
    def counted(logs: Logs) -> None:
        for number, writer in enumerate(logs.trainers()):
            ends = [line["mono_ns"] for line in writer if line.get("event") == "step"]
            for at, sent in ((ends[0], 0), (ends[20], 20 * 10**6)):
                link = {"link": "eth0", "received_bytes": 0, "sent_bytes": sent}
                usage = {"event": "usage", "namespace": f"n{number}", "links": [link], "mono_ns": at}
                writer.append(usage | {"wall_ns": writer[-1]["wall_ns"]})
            writer[1:] = sorted(writer[1:], key=lambda line: line["mono_ns"])

    of = canary(counted)
    of.told = [Told("node0", 0, "all_reduce", {"which": "all", "ranks": 2, "times": [[2**24, 2**24 / 1e9]]})]
    judged = asked("communication", of)
    assert judged.figures == {"sent in a step (bytes)": pytest.approx(1e6, rel=0.01)}
    assert "measured 8 Gbit/s that takes 1 ms" in judged.words and "nominal speed is not known" in judged.words
