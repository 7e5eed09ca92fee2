"""`chaos gameday --attach slurm:…` on a torchrun of two nodes that this test submits by hand."""

import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from backends.attached_days import TRAINER, chaos, told
from waiting import until

from harness.attach import slurm as attached
from harness.backends.slurm.engine import Slurm, find_slurm
from harness.errors import UsageError

pytestmark = pytest.mark.slow  # a real Slurm and a real job

SCRIPT = """#!/bin/sh
export OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
exec srun --ntasks-per-node=1 {python} -m torch.distributed.run --nnodes=2 --nproc-per-node=1 \\
    --rdzv-backend=c10d --rdzv-endpoint="$head:29512" --rdzv-id=1 {trainer} {stop}
"""


@pytest.fixture(scope="module")
def slurm(slurm_up: None) -> Slurm:
    return find_slurm()


Submit = Callable[..., int]


@pytest.fixture
def submit(slurm: Slurm, tmp_path: pathlib.Path) -> Iterator[Submit]:
    names: list[str] = []

    def run(*more: str) -> int:
        script = tmp_path / "job.sh"
        script.write_text(SCRIPT.format(python=sys.executable, trainer=TRAINER, stop=tmp_path / "stop"))
        names.append(f"test-attached-{os.getpid()}-{len(names)}")
        where = (f"--job-name={names[-1]}", "--nodes=2", "--time=30", f"--output={tmp_path}/job.log", *more)
        job_id = slurm.submit(*where, str(script))
        until(lambda: (job := slurm.job(job_id)) and job.running, f"the start of job {job_id}")
        return job_id

    yield run
    if names:
        slurm.cancel(*names)


def test_a_stopped_node_goes_on_and_the_job_ends_with_0(slurm: Slurm, submit: Submit, tmp_path: pathlib.Path) -> None:
    job_id = submit("--comment=chaos.allow=true")
    done = subprocess.run(chaos(f"slurm:{job_id}", tmp_path, "stop", "4s"), capture_output=True, text=True)
    log = (tmp_path / "job.log").read_text()[-2000:]
    assert done.returncode == 0, done.stdout + done.stderr + log
    struck = next(each for each in told(tmp_path)["records"] if each["what"] == "struck")
    assert list(struck["acted"].values()) == [True]
    assert sorted(each["state"] for each in struck["seen"].values()) == ["running", "stopped"]
    (tmp_path / "stop").touch()
    job = until(lambda: job if (job := slurm.job(job_id)) and job.ended else None, f"the end of job {job_id}")
    assert job.states[0] == "COMPLETED"


def test_a_job_whose_owner_did_not_allow_it_is_refused(submit: Submit) -> None:
    job_id = submit()
    with pytest.raises(UsageError, match="its owner must allow this first"):
        attached.attach(str(job_id))
