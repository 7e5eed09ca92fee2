"""The baseline: what broke first, from what any cluster has; and that it sees nothing else."""

import math
import pathlib
from typing import Any

import pytest
from counting import lines_run
from diagnosis.known_jobs import Job
from simulator import Job as SimulatedJob
from simulator import Logs, Outage, simulate

from harness.diagnosis.answer import Decision, Kind, Suspect
from harness.diagnosis.baseline import explain
from harness.diagnosis.incident import Incident
from harness.diagnosis.view import COLUMNS, KEPT, view_of
from harness.log import reading, vocabulary

STACK = 'no step for 5 s\nThread 0x7f (most recent call first):\n  File "train.py", line 3 in wait\n'


def explained(folder: pathlib.Path) -> list[Incident]:
    return explain(view_of(reading.read(folder / "events")))


def found(job: Job, folder: pathlib.Path) -> list[tuple[str, list[int | str | None]]]:
    """The kind of each incident, and of each suspect the rank, else the node, else the file."""
    parts = [
        (str(each.kind), [(who.rank, who.node, who.file) for who in each.who]) for each in explained(job.write(folder))
    ]
    return [(kind, [next(part for part in who if part is not None) for who in all_of]) for kind, all_of in parts]


@pytest.mark.parametrize("victim", range(4))
@pytest.mark.parametrize("kind", ["rank", "replica", "node", "notice", "shrink", "departure"])
def test_each_victim_is_found(kind: str, victim: int, tmp_path: pathlib.Path) -> None:
    simulate(SimulatedJob(nodes=4), [Outage(after=12, kind=kind, victim=victim)], seed=victim).write(tmp_path)
    (incident,) = explained(tmp_path)
    alone = kind in ("rank", "replica")
    assert incident.kind is Kind.CRASH and incident.evidence
    assert incident.who == (Suspect(rank=victim if alone else None, node=f"node{victim}"),)
    assert incident.decision is (Decision.RESTART_IN_PLACE if alone else Decision.RESTART_ELSEWHERE)


@pytest.mark.parametrize("seed", range(3))
def test_a_noisy_healthy_job_accuses_nobody(seed: int, tmp_path: pathlib.Path) -> None:
    simulate(SimulatedJob(nodes=4, steps=120, noise=0.2, pauses=0.02, disk_ms=40), seed=seed).write(tmp_path)
    assert explained(tmp_path) == []


def test_the_second_of_two_nodes_is_found_too(tmp_path: pathlib.Path) -> None:
    simulate(SimulatedJob(nodes=4), [Outage(9, "node", victim=1), Outage(12, "rank", victim=3)]).write(tmp_path)
    assert [[suspect.node for suspect in each.who] for each in explained(tmp_path)] == [["node1"], ["node3"]]


def test_a_hang_names_the_rank_without_a_sign_of_life(tmp_path: pathlib.Path) -> None:
    job = Job()
    for rank in (0, 2):
        job.put(job.rank(rank), "anomaly", 5, kind="hang", detail=STACK)
        job.die(rank, 70, 5.1, reason="hang")
    job.die(1, -9, 6)
    assert found(job, tmp_path) == [("hang", [1])]
    (incident,) = explained(tmp_path)
    assert "line 3 in wait" in " ".join(map(str, incident.evidence)) and "no step for 5 s" not in str(incident.evidence)


@pytest.mark.parametrize(
    ("behind", "reason", "expected"), [(2, "hang", ("hang", [2])), (None, "peer lost", ("network", []))]
)
def test_a_rank_behind_in_collectives_hangs_and_ranks_that_all_wait_alike_have_lost_their_link(
    behind: int | None, reason: str, expected: Any, tmp_path: pathlib.Path
) -> None:
    job = Job()
    for rank in range(3):
        told = {"group": "0", "number": 41 - (rank == behind), "operation": "all_reduce", "over": rank == behind}
        job.put(job.rank(rank), "flight_recorder", 5, **told)
        job.die(rank, 70, 5.1, reason=reason)
    assert found(job, tmp_path) == [expected]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("IndexError: index out of range", ("crash", [1])),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", ("gpu", [1])),
        ("OSError: [Errno 28] No space left on device", ("storage", [])),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/shard-1'", ("storage", ["/data/shard-1"])),
    ],
)
def test_an_error_of_its_own_names_the_rank(
    error: str, expected: tuple[str, list[Any]], tmp_path: pathlib.Path
) -> None:
    job = Job()
    job.die(1, 1, 0.1, reason="error", error=error)
    for rank in (0, 2):  # heard before it, as clocks differ by less than a death takes to be seen
        job.die(rank, 1, 0.05, reason="error", error="RuntimeError: Connection closed by peer [127.0.0.1]:5")
    assert found(job, tmp_path) == [expected]


def test_a_worker_that_refuses_to_start_is_not_accused(tmp_path: pathlib.Path) -> None:
    job = Job(steps=0)
    job.die(0, 1, 0.1, reason="wrong place")
    job.die(1, 75, 0.2, reason="drained")
    assert found(job, tmp_path) == [("crash", [])]


def test_the_same_error_at_the_same_step_again_and_again_is_a_bug(tmp_path: pathlib.Path) -> None:
    job = Job()
    header = job.files[job.rank(1)][0]
    for attempt in range(4):
        name = f"trainer-node1.1-1-{attempt}"
        job.now += 10**9
        job.files[name] = [header | {"writer": name, "pid": 50 + attempt, "mono_ns": job.now}]
        job.put(name, "step", 0.1, step=7)
        job.put(name, "exiting", 0.2, code=1, reason="error", error="ValueError: bad shape")
    assert [each.decision for each in explained(job.write(tmp_path))][-1] is Decision.STOP


def slow(rank: int, step: int, **parts: float) -> dict[str, float]:
    return parts if rank == 2 and 30 < step <= 60 else {}


@pytest.mark.parametrize(
    ("parts", "loss", "expected"),
    [
        (lambda rank, step: slow(rank, step, own=230.0), None, [("straggler", ["node2"])]),
        (lambda rank, step: slow(rank, step, own=230.0, net=60.0), None, [("straggler", ["node2"])]),
        (lambda rank, step: slow(2, step, net=90.0), None, [("network", [])]),
        (lambda rank, step: slow(2, step, data=80.0), None, [("storage", [])]),
        (lambda rank, step: {"own": 6.0 + 5.0 * (rank == 2), "net": 60.0}, None, []),
        (lambda rank, step: {"own": 6.0 + 5.0 * (rank == 0)}, None, []),
        (lambda rank, step: {"own": 4000.0} if rank == 1 and step == 33 else {}, None, []),
        (lambda rank, step: {"own": 230.0 if step > 30 else 100.0}, None, []),
        (lambda rank, step: {}, lambda step: 9.0 if step == 40 else 2.5, []),
    ],
    ids=[
        "own-work",
        "slow-link-explained-by-it",
        "slow-link",
        "slow-data",
        "nobody-waits-for-rank-2",
        "rank-0-does-a-little-more",
        "a-short-pause",
        "a-host-that-slows-all-alike",
        "one-high-loss",
    ],
)
def test_slow_nodes_links_and_data_are_told_and_noise_is_not(
    parts: Any, loss: Any, expected: Any, tmp_path: pathlib.Path
) -> None:
    assert found(Job(steps=90, parts=parts, loss=loss), tmp_path) == expected


def test_ranks_that_pause_in_turn_without_waiting_are_not_accused(tmp_path: pathlib.Path) -> None:
    job = Job(nodes=2)
    for rank, step in ((1, 30), (0, 31)):  # an evaluation of all ranks, which each tells as another step
        for line in job.files[job.rank(rank)]:
            if line.get("step") == step:
                line["begin_ns"] -= 6 * 10**9
    assert found(job, tmp_path) == []


@pytest.mark.parametrize(
    ("part", "ranks", "expected"),
    [
        ("own", [1], ("hang", [1])),
        ("data", [1], ("storage", [1])),
        ("data", [0, 1, 2], ("storage", [])),
        ("checkpoint", [0], ("storage", [])),
        ("net", [0], ("network", [])),
        ("own", [0, 1, 2], None),  # the host stood still
    ],
)
def test_one_long_step_that_went_on(part: str, ranks: list[int], expected: Any, tmp_path: pathlib.Path) -> None:
    job = Job(parts=lambda rank, step: {part: 6000.0} if rank in ranks and step == 33 else {})
    assert found(job, tmp_path) == ([expected] if expected else [])
    assert all(each.decision is Decision.IGNORE for each in explained(tmp_path))


@pytest.mark.parametrize(("value", "steps"), [(math.nan, 1), (math.inf, 1), (9.0, 3)])
def test_losses_that_are_no_number_or_stay_high_are_bad_data(value: float, steps: int, tmp_path: pathlib.Path) -> None:
    told = {math.inf: "inf"}.get(value, "nan" if math.isnan(value) else value)
    assert found(Job(loss=lambda step: told if 40 <= step < 40 + steps else 2.5), tmp_path) == [("bad-data", [])]


def test_saves_that_fail_or_crawl_are_storage(tmp_path: pathlib.Path) -> None:
    job = Job()
    job.put(job.rank(0), "checkpoint.failed", step=60, error="OSError: [Errno 5] Input/output error: '/ckpt/step-60/a'")
    (incident,) = explained(job.write(tmp_path / "failed"))
    assert incident.kind is Kind.STORAGE and incident.who[0].file == "/ckpt/step-60/a"
    job = Job()
    for step, ns in ((20, 10**9), (40, 10**9), (60, 9 * 10**9)):
        job.put(job.rank(0), "checkpoint.committed", step, step=step, duration_ns=ns)
    assert found(job, tmp_path / "slow") == [("storage", [])]


def test_a_checkpoint_that_is_passed_over_is_corrupt(tmp_path: pathlib.Path) -> None:
    job = Job()
    for rank in range(3):
        fallback = [{"source": "/ckpt/step-60", "reason": "checksum of a differs"}]
        job.put(job.rank(rank), "restored", step=40, fallback=fallback)
    (incident,) = explained(job.write(tmp_path))
    assert (incident.kind, incident.decision) == (Kind.CORRUPTION, Decision.ROLL_BACK)
    assert incident.who[0].file == "/ckpt/step-60"


def test_memory_that_grows_to_its_limit_is_told(tmp_path: pathlib.Path) -> None:
    job = Job()
    for place, used in enumerate((500, 700, 960)):
        job.put(job.rank(1), "usage", place, memory_bytes=used * 2**20, memory_bytes_limit=1000 * 2**20)
    assert found(job, tmp_path) == [("crash", [1])]


@pytest.mark.parametrize(
    ("xids", "kind"), [((0, 1), "gpu"), ((1, 1), "crash"), ((None, None), "crash")], ids=["now", "long ago", "none"]
)
def test_a_worker_that_dies_after_an_error_of_its_gpu_is_no_mere_crash(
    xids: tuple[int | None, int | None], kind: str, tmp_path: pathlib.Path
) -> None:
    job = Job()
    for place, count in enumerate(xids):
        gpus = [{"gpu": 0, "busy_percent": 50.0}, {"gpu": 1} | ({"xid": 79, "xids": count} if count else {})]
        job.put(job.rank(1), "usage", place, gpus=gpus)
    job.put(job.agent(1), "worker.exit", 2, local_rank=0, rank=1, pid=11, code=1)
    (incident,) = explained(job.write(tmp_path))
    assert (str(incident.kind), [each.rank for each in incident.who]) == (kind, [1])
    assert ("before that GPU 1 of node1 had XID 79, as its driver told" in incident.why) == (kind == "gpu")


# It cannot see the truth


def test_what_is_kept_is_in_the_vocabulary_and_nothing_of_the_harness_but_nodes() -> None:
    assert set(KEPT["harness"]) == {"node.allocated", "node.released", "process.exit"}
    assert all("reason" not in fields for fields in KEPT["harness"].values())
    assert not {"anomaly", "failpoint", "samples.left_out", "layer_norms"} & KEPT["trainer"].keys()
    for role, events in KEPT.items():
        assert set(events) <= {event.name for event in vocabulary.EVENTS if role in event.roles}
    assert not {"weights", "digest", "samples", "first", "count"} & set(COLUMNS)


HIDDEN = ("plan", "environment", "host.load", "abort", "run.finished", "fault.", "checkpoint.published",
          "checkpoint.removed", "checkpoint.left", "files.", "drill.", "second_")  # fmt: skip


def _without_what_is_hidden(logs: Logs) -> Logs:
    for lines in logs.values():
        lines[1:] = [line for line in lines[1:] if not line["event"].startswith(HIDDEN)]
    return logs


def _with_lies(logs: Logs) -> Logs:
    for line in logs["harness"]:
        if line.get("event") == "plan":
            line["plan"] = {"faults": [{"id": "f", "fault": "rank_kill", "targets": [{"node_index": 0, "rank": 0}]}]}
        if str(line.get("event")).startswith("fault.") and "targets" in line:
            line["targets"] = [{"node": "node0", "incarnation": 1, "rank": 0}]
        if "reason" in line:
            line["reason"] = "rank 0 was killed"
    lie = {"event": "anomaly", "kind": "hang", "detail": "it was rank 0", "suspect": 0}
    for name in [name for name in logs if name.startswith("trainer")]:
        logs[name].append(dict(logs[name][-1]) | lie)
    return logs


@pytest.mark.parametrize("kind", ["rank", "node", "notice", "shrink"])
@pytest.mark.parametrize("change", [_without_what_is_hidden, _with_lies])
def test_what_the_harness_knows_changes_no_answer(kind: str, change: Any, tmp_path: pathlib.Path) -> None:
    history = simulate(SimulatedJob(nodes=4), [Outage(after=12, kind=kind, victim=2)], seed=5)
    before = explained(history.write(tmp_path / "before"))
    assert explained(history.write(tmp_path / "after", change(history.logs()))) == before != []


def test_the_work_grows_with_the_log_and_no_faster(tmp_path: pathlib.Path) -> None:
    def work(outages: int) -> int:
        kinds = [Outage(after=4, kind="rank", victim=number % 4) for number in range(outages)]
        folder = simulate(SimulatedJob(nodes=4, steps=40 * outages), kinds).write(tmp_path / str(outages))
        log = reading.read(folder / "events")
        return lines_run(lambda: explain(view_of(log)))

    few, many = work(8), work(32)
    assert many < 4.6 * few


def test_workers_that_all_start_anew_tell_of_a_lost_launcher_or_of_new_nodes(tmp_path: pathlib.Path) -> None:
    def left(newcomers: int, folder: pathlib.Path) -> list[Incident]:
        job = Job(nodes=2)
        for rank in range(2):
            job.die(rank, 75, 0.1, reason="drained")
        for rank in range(newcomers):
            header = job.files[job.rank(min(rank, 1))][0] | {"mono_ns": job.now + 10**9}
            job.files[f"n{rank}"] = [header | {"writer": f"n{rank}", "rank": rank, "pid": 90}]
        return explained(job.write(folder))

    assert [(each.kind, each.who) for each in left(2, tmp_path / "same")] == [(Kind.NETWORK, ())]
    assert left(3, tmp_path / "more") == []
