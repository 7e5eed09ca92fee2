"""What the loop itself promises: the same training for any number of ranks, guards, a log without gaps."""

import itertools
import os
import pathlib
import signal
import subprocess
import sys
from unittest.mock import MagicMock

import pytest
from event_files import read_log
from job import QUICK, Job, Nursery, completed, hold_after, let_go
from told import Told, answer, answers
from waiting import until

from harness.diagnosis.answer import Answer, Suspect
from harness.log.truth import Decision, Kind
from reference_trainer import train
from reference_trainer.checkpoint import Restored
from reference_trainer.options import Options, parse
from reference_trainer.watchdog import EXIT_HUNG, StragglerReport

STEPS = 25


@pytest.fixture(scope="module")
def one(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A whole job of one rank, with which others are compared."""
    return completed(nursery, tmp_path_factory.mktemp("one"), STEPS)


def test_any_number_of_ranks_trains_alike_and_they_agree(nursery: Nursery, tmp_path: pathlib.Path, one: Job) -> None:
    """Also where shares are unequal, 3+3+2 samples, and where they are cut into pieces. Iterations tile the time."""
    three = completed(nursery, tmp_path / "3", STEPS, nproc=3)
    pieces = completed(nursery, tmp_path / "pieces", STEPS, "--accumulate", "3", nproc=2)
    for other in (three, pieces):
        assert other.losses() == pytest.approx(one.losses(), rel=2e-5)
        assert [e["digest"] for e in other.seen("step", rank=0)] == [e["digest"] for e in one.seen("step", rank=0)]
    per_rank = [three.seen("step", rank=rank) for rank in range(3)]
    for steps in per_rank:
        assert [event["step"] for event in steps] == list(range(1, STEPS + 1))
        for event, following in itertools.pairwise(steps):
            assert following["begin_ns"] == event["mono_ns"]
        for event in steps:
            spent = event["data_ns"] + event["checkpoint_ns"] + event["sync_ns"]
            assert 0 < spent <= event["mono_ns"] - event["begin_ns"]
        blocked = [event["step"] for event in steps if event["checkpoint_ns"]]
        assert blocked == [11, 21], "the time a snapshot takes belongs to the step after it"
    for ours, *theirs in zip(*per_rank, strict=True):
        for field in ("loss", "grad_norm", "lr", "digest", "first", "count"):
            assert [other[field] for other in theirs] == [ours[field]] * 2


def test_world_size_may_change_between_save_and_restore(nursery: Nursery, tmp_path: pathlib.Path, one: Job) -> None:
    with Job(nursery, tmp_path / "job", STEPS, nproc=2) as job:
        job.stop_after(15)
        job.start("a")
        job.wait_stopped(15)
        os.kill(job.nodes["a"], signal.SIGTERM)
        job.go_on(15)
        assert job.code("a") == 75
        job.nproc = 3
        job.start("a")
        assert job.code("a") == 0
        assert {event["world_size"] for event in job.seen("rendezvous")} == {2, 3}
        assert job.losses() == pytest.approx(one.losses(), rel=1e-4)
    with Job(nursery, tmp_path / "job", 2 * STEPS, "--seed", "1") as job:
        job.start("b")
        assert job.code("b") == 2
        assert "belongs to another job" in job.output()
    with Job(nursery, tmp_path / "crash", STEPS, "--device", "cuda", nproc=2) as job:
        job.start("a")
        assert job.code("a") == 2, "a crash at the start ends soon with one message"
        assert "torch sees no GPU here" in job.output()


def test_loss_falls(nursery: Nursery, tmp_path: pathlib.Path) -> None:
    losses = completed(nursery, tmp_path, 150, "--global-batch", "16", "--lr", "0.003").losses()
    assert losses[1] > 5
    assert sum(losses[step] for step in range(141, 151)) / 10 < 3.2


def test_not_finite_is_skipped_or_stops_the_job(nursery: Nursery, tmp_path: pathlib.Path) -> None:
    wild = ["--lr", "1e30", "--warmup", "0"]  # the second step overflows
    skipped = completed(nursery, tmp_path / "skip", 6, *wild, nproc=2)
    assert {event["kind"] for event in skipped.seen("anomaly")} <= {"nonfinite", "gradient"}
    assert skipped.seen("anomaly", rank=0) and skipped.seen("anomaly", rank=1)
    with Job(nursery, tmp_path / "stop", 6, *wild, "--nonfinite", "stop", nproc=2) as job:
        job.start("a")
        assert job.code("a") == train.EXIT_STOPPED
        assert {event["code"] for event in job.seen("worker.exit")} <= {train.EXIT_STOPPED, 74, -9}


def test_hang_is_named_with_stacks_and_recovered_from(nursery: Nursery, tmp_path: pathlib.Path) -> None:
    with Job(nursery, tmp_path, 60, "--hang-floor-s", "5", nproc=2) as job:
        job.stop_after(15)
        job.start("a")
        job.wait_stopped(15)
        frozen = job.workers("a")[1]
        os.kill(frozen, signal.SIGSTOP)
        job.go_on(15)
        job.wait_for(lambda: job.seen("anomaly", kind="hang"), "the watchdog")
        assert job.code("a") == 0
        detail = job.seen("anomaly", kind="hang")[0]["detail"]
        assert "forward_backward" in detail or "exchange" in detail, "the stacks must show where it hangs"
        assert {"local_rank": 0, "code": EXIT_HUNG}.items() <= job.seen("worker.exit")[0].items()
        assert answers(job.seen("diagnosis", kind="hang")) == [answer(Kind.HANG, Decision.RESTART_IN_PLACE, 1)]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_checkpoint_that_is_passed_over_is_named_once(rank: int) -> None:
    emit = Told()
    worker = train.Worker(Options(), emit, rank, 0, 2)
    worker.divergence = worker.checkpoints = MagicMock()
    passed = {"source": "/c/step-20", "reason": "its checksum is wrong"}
    worker.checkpoints.restore.return_value = Restored(10, "/c/step-10", None, [passed])
    worker.restore()
    expected = Answer(Kind.CORRUPTION, (Suspect(file="/c/step-20"),), Decision.ROLL_BACK)
    assert emit.answers() == [expected] * (rank == 0)


def test_only_the_slow_rank_reports_itself() -> None:
    told = [Told() for _ in range(3)]
    reports = [StragglerReport(emit, rank, factor=1.5, window=5, excluded_after=3) for rank, emit in enumerate(told)]
    for _ in range(15):
        for report in reports:
            report.step_done([0.01, 0.02, 0.011])
    assert [len(emit.events) for emit in told] == [0, 4, 0]
    assert told[1].answers() == [answer(Kind.STRAGGLER, what, 1) for what in (Decision.IGNORE, Decision.EVICT_NODE)]
    assert told[1].events[0]["kind"] == "straggler"
    assert "rank 1 computes 20 ms a step, usual is 11 ms" in told[1].events[0]["detail"]
    assert [report.in_a_row for report in reports] == [0, 3, 0]
    assert [report.excluded for report in reports] == [False, True, False]
    for _ in range(5):
        reports[1].step_done([0.01, 0.01, 0.011])
    assert reports[1].in_a_row == 0  # it was slow, and is no more
    for _ in range(5):
        reports[1].step_done([0.01, 0.02, 0.011])
    assert len(told[1].events) == 4, "one slow window is a busy host"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "0"], "--steps 0: must be greater than 0"),
        (["--lr", "-1"], "--lr -1.0: must be greater than 0"),
        (["--data", "/nowhere"], "--data /nowhere: no such file or folder"),
        (["--checkpoint-dir", "s3://bucket/x"], "needs --staging-dir"),
        (["--width", "30"], "must be a multiple of --heads 4"),
        (["--metadata", "oracle"], "invalid choice: 'oracle'"),
    ],
)
def test_bad_options_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        parse(arguments)
    assert exit.value.code == 2
    assert message in capsys.readouterr().err


def test_learning_rate_warms_up_and_decays() -> None:
    factors = [train.learning_rate_factor(step, Options(steps=100, warmup=10)) for step in range(101)]
    assert factors[0] == pytest.approx(1 / 11)
    assert factors[10] == pytest.approx(1)
    assert factors[100] == pytest.approx(0.1)
    assert factors[10:] == sorted(factors[10:], reverse=True)


def test_runs_under_plain_torchrun(tmp_path: pathlib.Path) -> None:
    environment = os.environ | hold_after(tmp_path, 15) | {"GLOO_SOCKET_IFNAME": "lo"}
    environment |= {"CHAOS_EVENTS": str(tmp_path / "events"), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", "3", "-m", "reference_trainer.train", "--steps", "40", *QUICK]
    command += ["--checkpoint-dir", str(tmp_path / "checkpoints")]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: worker_at_step(tmp_path / "events", 15) or process.poll() is not None, "step 15")
        os.kill(worker_at_step(tmp_path / "events", 15) or pytest.fail("it ended before step 15"), signal.SIGKILL)
        let_go(tmp_path, 15)
        assert process.wait() == 0
    finally:
        process.kill()
        process.wait()
    steps = {event["step"] for log in read_log(tmp_path / "events") for event in log.events if event["event"] == "step"}
    assert steps == set(range(1, 41))


def worker_at_step(events: pathlib.Path, step: int) -> int | None:
    for log in read_log(events) if events.is_dir() else []:
        if any(event.get("step", 0) >= step for event in log.events):
            return int(log.header["pid"])
    return None


PRELOADS = """
import torch
from reference_trainer import launch
from reference_trainer.options import Options

def started(*_):
    raise SystemExit("CUDA was started")

torch.cuda.is_available = torch.cuda._lazy_init = started
launch.preload(Options())
print("loaded", flush=True)
torch.cuda.is_available()
"""


def test_nothing_that_a_launcher_does_before_the_fork_starts_cuda() -> None:
    done = subprocess.run([sys.executable, "-c", PRELOADS], capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr.splitlines()[-1:]) == ("loaded\n", ["CUDA was started"])  # by the last line alone
