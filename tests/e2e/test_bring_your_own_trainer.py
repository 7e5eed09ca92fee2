"""docs/bring-your-own-trainer.md, followed literally: a script of one's own, looked at here, rehearsed where it runs."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
from e2e.chaos_cli import ROOT, Done, command, environment
from machine import need_docker

from harness.adopt.recognise import THREADS
from harness.backends.contract import load_backend
from harness.backends.docker.engine import Engine

PAGE = (ROOT / "docs" / "bring-your-own-trainer.md").read_text()
SCRIPT = ROOT / "examples" / "trainers" / "plain_ddp" / "train.py"


@pytest.fixture(scope="module")
def docker() -> None:
    """Asked for before `training`, which is made for nothing where there is no engine."""
    need_docker()


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The folder of a team's training, with what `chaos init` wrote for it."""
    folder = tmp_path_factory.mktemp("my-training")
    # On a busy host gloo's threads may still hold tensors when Python ends, and abort it: pytorch/pytorch#179291.
    patient = SCRIPT.read_text().replace(
        "\ndist.destroy_process_group()", "\ndist.barrier()\n__import__('time').sleep(1)\n"
    )
    assert patient != SCRIPT.read_text()
    (folder / SCRIPT.name).write_text(patient + "dist.destroy_process_group()\n")
    words, *_ = re.findall(r"^\$ chaos init -- (.*)$", PAGE, re.MULTILINE)
    done = call(folder, "init", "--", *words.replace("--steps 200", "--steps 100").split())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Your command names no --max-restarts" in done.stdout
    return folder


def call(folder: pathlib.Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """As in the environment of the training, which is the one of these tests; nothing there says how many threads."""
    env["PATH"] = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    given = {name: value for name, value in environment(folder / "reports", **env).items() if name != THREADS}
    return subprocess.run(command(*words), cwd=folder, env=given, capture_output=True, text=True)


def rehearsed(training: pathlib.Path, backend: str, script: str, more: str = "", **env: str) -> Done:
    """The scenario as it was written; only the place of the script is the backend's. Other tests run beside: no pace.
    `more`: a line of its workload."""
    folder = training / backend
    folder.mkdir()
    text = (training / "chaos" / "rank-kill.yaml").read_text()
    assert "torchrun: ../train.py" in text or "torchrun: train.py" in text, text
    text, expects = re.subn(r"^expect:\n", "expect:\n  pace: off\n", text, flags=re.M)
    assert expects == 1, text
    text, found = re.subn(r"^workload:.*\n", rf"\g<0>{more}", text, flags=re.M)
    assert found == 1, text
    (folder / "rank-kill.yaml").write_text(re.sub(r"torchrun: \S*train\.py", f"torchrun: {script}", text))
    done = call(folder, "run", "rank-kill.yaml", "--backend", backend, **env)
    return Done(done.returncode, done.stdout + done.stderr, folder / "reports")


def check_passed(done: Done) -> None:
    """Other tests run beside: where they slowed the fault-free run four times as much as the run, that alone is told."""
    too_fast = r"[^;]* after the recovery took .* in the fault-free run: 0\.\d+ times as long; .*"
    if done.code != 0:
        reasons = done.report["reasons"]
        assert done.code == 3 and len(reasons) == 1 and re.fullmatch(too_fast, reasons[0]), (reasons, done.out)


def test_on_docker_in_an_image_of_ones_own(docker: None, training: pathlib.Path) -> None:
    engine = Engine()
    image = f"chaos-test-own-trainer-{os.getpid()}"
    try:
        (training / "Dockerfile").write_text("FROM chaos-node\nCOPY train.py /app/train.py\n")
        subprocess.run(
            ["docker", "--host", engine.address, "build", "--quiet", "--tag", image, "."], cwd=training, check=True
        )
        done = rehearsed(training, "docker", "/app/train.py", CHAOS_DOCKER_IMAGE=image)
        check_passed(done)
        assert done.report["scores"]["loss_continuity"]["max_abs_diff"] == 0
    finally:
        subprocess.run(["docker", "--host", engine.address, "rmi", "--force", image], check=False)
        engine.close()


def test_on_slurm_at_the_same_path_on_all_nodes(slurm_up: None, training: pathlib.Path) -> None:
    done = rehearsed(training, "slurm", str(training / "train.py"), "  restore_drill: false\n")  # Docker has one
    check_passed(done)
    assert done.report["scores"]["loss_continuity"]["max_abs_diff"] == 0


def test_a_first_look_overwrites_no_checkpoint_of_the_users(tmp_path: pathlib.Path) -> None:
    """The script saves beside itself, whatever its command says."""
    if not (capability := load_backend("local").probe()).available:
        pytest.skip(capability.summary)
    folder = tmp_path / "my-training"
    folder.mkdir()
    text, saves = re.subn(
        r"^( *)torch\.save\(.*", r"\g<0>\n\1torch.save({}, 'mine.pt')", SCRIPT.read_text(), flags=re.M
    )
    assert saves
    (folder / "train.py").write_text(text)
    (folder / "mine.pt").write_text("three weeks of training")
    words = ["torchrun", "--nproc-per-node", "2", "train.py", "--steps", "25", "--out", str(folder / "out")]
    done = call(folder, "init", "--", *words)
    assert done.returncode == 2 and f"its checkpoints go to {folder / 'out'}" in done.stdout, done.stdout + done.stderr
    assert "checkpoints at step" in done.stdout
    assert (folder / "mine.pt").read_bytes() == b"three weeks of training"
    assert sorted(os.listdir(folder)) == ["mine.pt", "reports", "train.py"]
