"""Logs that contradict themselves, or say nothing of what they tell elsewhere: no pass, and no accusation either."""

import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from judging import EXPECT, SAVES, Bend, bending, bent, verdict
from scorecards import assert_verdict
from simulator import Job, Line, Logs, Outage, change, clocks, coordinates, find, put, remove, simulate, steps

from harness.judge.facts import restarts
from harness.judge.facts.saves import Saves
from harness.judge.guarantees import steps_together
from harness.judge.score import Scorecard
from harness.judge.verdict import Verdict
from harness.mesh import Mesh
from harness.node.emitter import Axis
from harness.timeline import lineage

JOB = Job(nodes=2, steps=80, every=10)
KILL = [Outage(17, "rank", victim=1)]


def judged(bend: Bend) -> Scorecard:
    return verdict(simulate(JOB, KILL, seed=5), bend, EXPECT)


def third_lives(logs: Logs, *ranks: int) -> None:
    """From step 50 on other processes go on, and nobody says why."""
    for rank in ranks:
        (lines,) = logs.trainers(rank=rank, life=-1)
        begin = steps(lines, 50, 50)[0]["begin_ns"]
        name = next(name for name, each in logs.items() if each is lines)
        header = copy.deepcopy(lines[0]) | {"pid": lines[0]["pid"] + 500, "writer": f"{name}x"}
        shift = begin - header["mono_ns"]
        header |= {"mono_ns": begin, "wall_ns": header["wall_ns"] + shift}
        early = [copy.deepcopy(line) for line in lines[1:] if line["mono_ns"] < steps(lines)[0]["begin_ns"]]
        for line in early:
            line |= {key: begin + 1 + (line[key] - line["mono_ns"]) for key in ("mono_ns", "wall_ns")}
            line["wall_ns"] = header["wall_ns"] + 1
            line |= {"step": 49, "source": "peer"} if line.get("event") == "restored" else {}
        logs[f"{name}x"] = [header, *early, *(line for line in lines[1:] if line["mono_ns"] > begin)]
        lines[:] = [line for line in lines if line["mono_ns"] <= begin]


def without_restored(*ranks: int) -> Bend:
    return lambda logs: [logs.lose("restored", rank=rank, life=-1) for rank in ranks]


def restored_is(**changed: Any) -> Bend:
    return lambda logs: find(logs.last_lives()[1], "restored").update(changed)


@bending
def restored_from(logs: Logs, folder: str) -> None:
    """All is saved in `/run/checkpoints`; rank 1 took its state out of this folder."""
    change(logs.all(*SAVES), path=lambda line: f"/run/checkpoints/step-{line['step']}")
    restored_is(source=f"{folder}/step-10")(logs)


@bending
def met(logs: Logs, field: str, *told: object) -> None:
    """What each rank tells of the group of its second life."""
    for lines, value in zip(logs.last_lives(), told, strict=True):
        find(lines, "rendezvous")[field] = value


def exits_before_its_last_steps(logs: Logs) -> None:
    lines = logs.last_lives()[1]
    said, until = find(lines, "exiting"), steps(lines, 70, 70)[0]
    said |= clocks(until)


def exits_twice(logs: Logs) -> None:
    said = dict(find(logs.last_lives()[1], "exiting"))
    exits_before_its_last_steps(logs)
    logs.last_lives()[1].append(said)


def speaks_after_its_end(logs: Logs) -> None:
    lines = logs.last_lives()[1]
    lines.append(later(lines[-1], 5 * 10**9) | {"event": "notice", "source": "peer"})


def copied(logs: Logs, apart_ns: int = 0) -> None:
    mine, other = logs.last_lives()
    other[1:] = [line for line in other[1:] if line.get("event") != "step"]
    other += [later(line, apart_ns) for line in mine if line.get("event") == "step"]
    put(other)


def started_in_a_group_of(size: int) -> Bend:
    return lambda logs: change((lines[0] for lines in logs.last_lives()), world_size=size)


def ends_twice(logs: Logs) -> None:
    end = logs.harness[-1]
    logs.harness.insert(-1, end | {"outcome": "failed", "reason": "the command on node1 ended with 1"})


@bending
def committed_as(logs: Logs, content: str) -> None:
    """The checkpoints of step 10 held this, and rank 1 restored something else."""
    change((line for line in logs.all("checkpoint.committed") if line["step"] == 10), content=content)
    restored_is(content="another")(logs)


def later(line: Line, by: int) -> Line:
    return line | {key: line[key] + by for key in ("mono_ns", "wall_ns", "begin_ns") if key in line}


def again(logs: Logs, first: int, last: int) -> None:
    lives = logs.last_lives()
    begin = min(steps(lines, first, first)[0]["begin_ns"] for lines in lives)
    end = max(steps(lines, last, last)[0]["mono_ns"] for lines in lives)
    for lines in logs.values():
        twice = [later(line, end - begin) for line in steps(lines, first, last)] if lines in lives else []
        rest = [later(line, end - begin) if line["mono_ns"] > end else line for line in lines[1:]]
        lines[1:] = sorted([*rest, *twice], key=lambda line: line["mono_ns"])


def left_out(first: int, last: int, *ranks: int) -> Bend:
    return lambda logs: [change(logs.steps(first, last, rank=rank, life=-1), applied=False) for rank in ranks]


def ends_in_error(logs: Logs) -> None:
    last = next(line for line in logs.last_lives()[1] if line.get("event") == "exiting")
    last |= {"code": 1, "reason": "error", "error": "RuntimeError: boom"}


def without_the_end_of_node_1(logs: Logs) -> None:
    remove(logs.harness, lambda line: line.get("event") == "process.exit" and line["node"] == "node1")


def without_the_launcher_of_node_1(logs: Logs) -> None:
    del logs[next(name for name in logs if name.startswith("agent-node1"))]


def not_followed(logs: Logs) -> None:
    """The observer lost a rank, which has not stopped."""
    lines = logs.last_lives()[1]
    where = lines.index(find(lines, "step"))
    failed = {"event": "observer.failed", "signal": "steps", "error": "ValueError: unknown"}
    lines[where:] = [failed | clocks(lines[where - 1], 1)]


@bending
def restored_at_the_end(logs: Logs, step: int) -> None:
    last = steps(logs.last_lives()[1])[-1]
    put(logs.last_lives()[1], {"event": "restored", "step": step} | clocks(last, 1))


@bending
def swapped(logs: Logs, step: int) -> None:
    lines = logs.last_lives()[1]
    one, other = (lines.index(steps(lines, number, number)[0]) for number in (step, step + 1))
    lines[one], lines[other] = lines[other], lines[one]


@pytest.mark.parametrize(
    ("bend", "reason"),
    [
        (lambda logs: third_lives(logs, 1), "disappeared without an exit code"),
        (without_restored(0, 1), "did not report what it restored"),
        (without_restored(1), "did not report what it restored"),
        (restored_is(source="scratch"), "but from scratch, which is of step 0"),
        (restored_is(source="peer"), "from a peer, but no peer that had done it was there"),
        (restored_from("/another/checkpoints"), "but this run saved it as /run/checkpoints/step-10"),
        (restored_at_the_end(10**9), "the job reached step 80, and nobody ever began or saw such a save"),
        (met("world", "g0", "g1"), "different groups: rank 0 was in 'g0' and rank 1 was in 'g1'"),
        (met("data_samples", 800, 1600), "samples in the data is not the same everywhere: 800, 1,600"),
        (exits_before_its_last_steps, "after its process had ended"),
        (exits_twice, "after its process had ended"),
        (speaks_after_its_end, "told something 5."),
        (copied, "took the same nanoseconds as those up to"),
        (lambda logs: copied(logs, 10**6), "one log is a copy of the other"),
        (started_in_a_group_of(3), "told of a group of 3 when it started, and of 2 when it met the others"),
        (ends_twice, "the harness's log has several ends: failed, completed"),
        (lambda logs: logs.told("node.allocated").update(gpus=1024), "no node 'node0' with 1024 GPUs"),
        (lambda logs: logs.put(logs.told("node.allocated") | {"node": "../.."}), "no node '../..' with 1 GPUs"),
        (left_out(30, 31, 0, 1), "left its update out, and not in the fault-free run, though all losses"),
        (lambda logs: again(logs, 45, 45), "did not report what it restored"),
        (lambda logs: again(logs, 41, 49), "did not report what it restored"),
        (left_out(30, 70, 0, 1), "41 steps left their update out"),
        (left_out(30, 30, 1), "at step 30 rank 1 left its update out, and others did not"),
        (ends_in_error, "ended with exit code 1, after it reported an error"),
        (without_the_end_of_node_1, "how the command on node1 ended is not known"),
        (without_the_launcher_of_node_1, "the launcher on node1 left no log"),
        (not_followed, "the steps cannot be followed"),
    ],
)
def test_it_is_no_pass_and_no_failure(bend: Bend, reason: str) -> None:
    assert_verdict(judged(bend), Verdict.INCONCLUSIVE, reason)


@pytest.mark.parametrize(
    ("sizes", "epoch", "usual", "found"),
    [
        ((2, 2), {}, {}, []),
        ((2, 1), {}, {}, ["rank 1 began step 11 in a group of 1, and others did it in a group of 2"]),
        (
            (3, 3),
            {"size": 3},
            {},
            ["1 of 3 ranks did none of the steps 11 to 40, though they have logs: the group was not one"],
        ),
        ((3, 3), {"size": 3, "unheard": 1}, {}, []),  # that is told elsewhere
        ((3, 3), {"size": 3}, {"size": 3}, []),  # without a fault, too
    ],
)
def test_a_group_is_one(
    sizes: tuple[int, int],
    epoch: dict[str, int],
    usual: dict[str, int],
    found: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def of(told: dict[str, int], sizes: tuple[int, int]) -> Any:
        whole = {"size": 2, "processes": (0, 1), "unheard": 0, "first": 11, "last": 40, "kept": 40} | told
        stretches = [SimpleNamespace(process=row, epoch=0, first=11) for row in (0, 1)]
        processes = [SimpleNamespace(rank=rank, world_size=size) for rank, size in enumerate(sizes)]
        return SimpleNamespace(epochs=[SimpleNamespace(**whole)], stretches=stretches, processes=processes, lost=0)

    monkeypatch.setattr(steps_together, "_went_ahead", lambda run: ())
    evidence: Any = SimpleNamespace(run=of(epoch, sizes), fault_free=of(usual, (usual.get("size", 2),) * 2))
    assert [each.words for each in steps_together.breaches(evidence)] == found


@pytest.mark.parametrize(
    "bend",
    [
        met("world", "g1", "g1"),
        met("data_samples", 800, 800),
        committed_as("another"),
        restored_from("/run/checkpoints"),
        restored_at_the_end(80),
        swapped(45),
        swapped(79),
    ],
)
def test_who_says_the_same_as_the_others_is_believed(bend: Bend) -> None:
    assert judged(bend).verdict is Verdict.PASS


def test_a_few_updates_that_all_ranks_left_out_are_those_of_a_loss_scale() -> None:
    """Other losses follow, so the scenario bounds the last ones."""

    def bend(logs: Logs) -> None:
        left_out(30, 34, 0, 1)(logs)
        for line in (line for lines in logs.last_lives() for line in steps(lines, 35)):
            line["loss"] *= 1.0001

    card = verdict(simulate(JOB, KILL, seed=5), bend, {"loss_continuity": {"mode": "final", "max_final_gap": 1}})
    assert card.verdict is Verdict.PASS, card.reasons


@pytest.mark.parametrize(("at", "found"), [(10, None), (150, 220)])
def test_a_file_that_is_written_again_is_held_against_what_it_held_then(at: int, found: int | None) -> None:
    """On a job with several rehearsals, what was restored before this one is of an older content of the same file."""
    restored = {"source": "ckpt.pt", "at": at, "step": 40}
    saved = [{"event": "checkpoint.committed", "process": 0, "path": "ckpt.pt", "step": 220, "at": 100}]
    run: Any = SimpleNamespace(checkpoints=saved, processes=[SimpleNamespace(rank=0)], begin=50, uncertainty_ns=0)
    assert restarts.restore(run, Saves(run), 0, restored, 41).other_step == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("/staging/0/step-20", 20),
        ("/staging/0/step-40", None),
        ("/staging/0/another", None),
        ("/staging/0/model.pt", None),  # each step has one of this name
    ],
)
def test_a_copy_from_an_object_store_is_held_against_the_object_of_its_name(source: str, found: int | None) -> None:
    paths = [(20, "step-20"), (40, "step-40"), (40, "store:40/model.pt"), (20, "store:20/model.pt")]
    saved = [{"event": "checkpoint.committed", "process": 0, "path": path, "step": step} for step, path in paths]
    saved = [each | {"at": at} for at, each in enumerate(saved)]
    run: Any = SimpleNamespace(checkpoints=saved, processes=[SimpleNamespace(rank=0)], begin=0, uncertainty_ns=0)
    assert restarts.restore(run, Saves(run), 0, {"source": source, "at": 9, "step": 40}, 41).other_step == found


@pytest.mark.parametrize(("sizes", "odd"), [([2], False), ([1, 2], False), ([1], True)])
def test_an_elastic_group_may_meet_fewer_at_first(sizes: list[int], odd: bool) -> None:
    told = SimpleNamespace(header={"world_size": 2})
    life: Any = SimpleNamespace(writer=told, told_joins=True, sizes=sizes, rank=0, key=("node0", 1))
    assert bool(lineage.groups_of_two_sizes([life])) is odd


@pytest.mark.parametrize(
    "places", ["dp 0 2", "tp 0 2", "dp 0 2 ep 0 2", "dp 0 1", "dp 1 2", "dp 2 2", "dp 0 0", "dp 0 2 dp 1 2"]
)
@pytest.mark.parametrize("kind", ["rank", "shrink"])
def test_coordinates_fit_the_world(places: str, kind: str) -> None:
    """After the restart. A smaller world may have a smaller axis."""
    axes = [
        {"axis": axis, "index": int(at), "size": int(size)}
        for axis, at, size in zip(*[iter(places.split())] * 3, strict=True)
    ]

    def bend(logs: Logs) -> None:
        change((find(lines, "coordinates") for lines in logs.last_lives()[:1]), axes=axes)

    run = bent(replace(JOB, mesh=(("dp", 2),)), bend, outages=[Outage(17, kind, victim=1)])
    odd = places in ("dp 2 2", "dp 0 0", "dp 0 2 dp 1 2") or (places in ("dp 0 1", "dp 1 2") and kind == "rank")
    assert any("a place that cannot be" in each for each in run.problems) is odd


@pytest.mark.parametrize(("mesh", "odd"), [({"dp": 1}, False), ({"tp": 2}, False), ({"tp": 2, "dp": 2}, True)])
def test_ranks_share_a_place_only_as_far_as_axes_are_untold(mesh: dict[Axis, int], odd: bool) -> None:
    """Each replica of an elastic job may be a mesh of its own; of four ranks two have each place of one axis of two."""
    job = replace(JOB, ranks_per_node=2, mesh=tuple(mesh.items()))
    alike = bending(lambda logs: change(logs.all("coordinates", rank=3), axes=coordinates(Mesh(mesh), 1)))
    assert any("a place that cannot be" in each for each in bent(job, alike()).problems) is odd


@pytest.mark.parametrize(("kind", "last", "odd"), [("rank", 80, True), ("rank", 19, False), ("shrink", 80, False)])
def test_who_syncs_gradients_goes_on_to_tell_it(kind: str, last: int, odd: bool) -> None:
    fault_free = bent(JOB, lambda logs: change(logs.steps(), sync_ns=lambda line: line["step"]))
    still = bending(lambda logs: change(logs.steps(last=last, rank=0, life=-1), sync_ns=0))
    card = verdict(simulate(JOB, [Outage(17, kind, victim=1)], seed=5), still(), fault_free=fault_free)
    assert any("time of the gradient sync in ns is 0 in all" in each.text for each in card.findings) is odd


def test_numbers_of_any_size_warn_of_nothing() -> None:
    """A warning is an error in these tests, and would be a crash of the judge."""
    mad = bending(lambda logs: change(logs.steps(), loss=lambda line: 1e308 * (-1) ** line["step"], grad_norm=1e308))
    for mode in ("exact", "ulp", "envelope", "final"):
        card = verdict(simulate(JOB, KILL, 5), mad(), {"loss_continuity": {"mode": mode}}, bent(JOB, mad()))
        assert not any("crashed" in each.text for each in card.findings)
