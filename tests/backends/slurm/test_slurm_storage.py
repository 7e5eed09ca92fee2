"""Storage of a Slurm node, without a Slurm: its task and its helper are started here as Slurm starts them there."""

import contextlib
import os
import pathlib
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO, cast

import other_user
import pytest
from conformance.places import fuse_mounts_below, processes_of
from waiting import HANG_S, until

from harness.backends import delivery
from harness.backends.slurm.engine import Slurm
from harness.backends.slurm.job_network import SIDECAR
from harness.backends.slurm.step_line import StepLine
from harness.node import boot, processes
from harness.node.types import StorageRule

USER, PROJECT = 61234, 61235  # nobody has these ids
KEY, STORE = "node0.1", "store"
WITHOUT_MOUNT_RIGHTS = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-all")
SAVES = """
id -u; id -g
cd {run_dir}
echo more >>store/project
while :; do if echo now >store/saved; then touch events/node0/works; else touch events/node0/fails; fi; sleep 0.02; done
"""


def as_user(device: pathlib.Path) -> list[str]:
    """Where everybody may use FUSE, as on most hosts."""
    os.mknod(device, stat.S_IFCHR | 0o666, os.stat("/dev/fuse").st_rdev)
    device.chmod(0o666)
    there = ["unshare", "--mount", "sh", "-c", f'mount --bind {device} /dev/fuse && exec "$@"', "sh"]
    return [*there, *other_user.as_user(USER, str(PROJECT))]


class Host:
    """A node of a Slurm that is this machine, used by somebody."""

    def __init__(self, run_dir: pathlib.Path, prefix: Sequence[str]):
        self.run_dir, self.prefix, self.python = run_dir, list(prefix), other_user.python_of(prefix)
        self.run_id = f"test-{os.getpid()}-{run_dir.name}"
        self._started: list[subprocess.Popen[bytes]] = []

    def start_task(self, text: str, mounts: Sequence[str] = (STORE,)) -> subprocess.Popen[bytes]:
        here = {"CHAOS_RUN_DIR": str(self.run_dir), "CHAOS_INCARNATION": "1"}
        words = ["node0", *mounts, "--", STORE, "--", "sh", "-c", text.replace("{run_dir}", str(self.run_dir))]
        start = boot.command(self.python, str(self.run_dir / delivery.NAME), "harness.node.slurm_task", words)
        command = [*self.prefix, *start]
        environment = os.environ | here | {"CHAOS_RUN_ID": self.run_id}
        self._started.append(subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL))
        return self._started[-1]

    def begin(self, *command: str, link: socket.socket, errors: IO[bytes]) -> subprocess.Popen[bytes]:
        """What `Slurm.begin` does with an `srun`."""
        program = [*self.prefix, self.python, *command[command.index(sys.executable) + 1 :]]
        self._started.append(subprocess.Popen(program, stdin=link.fileno(), stdout=link.fileno(), stderr=errors))
        return self._started[-1]

    def line(self, module: str, *arguments: str) -> StepLine:
        archive, log = str(self.run_dir / delivery.NAME), self.run_dir / "logs" / "line.log"
        return StepLine(cast(Slurm, self), (), archive, module, arguments, log)

    def log(self) -> str:
        return (self.run_dir / "logs" / f"{KEY}.log").read_text()

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()
        until(lambda: not processes_of(self.run_id), "the end of all processes")


@pytest.fixture
def folder() -> Iterator[pathlib.Path]:
    """A run's folder, its store that of a project whose members share their files."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("/dev/fuse is not there, or not open to this user")
    with tempfile.TemporaryDirectory(prefix="chaos-test-") as name:
        run_dir = pathlib.Path(name)
        for part in ("logs", "slurm", "slurm/exits", "events/node0", "answers/node0", STORE):
            (run_dir / part).mkdir(parents=True)
        (run_dir / STORE / "project").write_text("some\n")
        delivery.deliver(run_dir)
        (run_dir / "key").write_text("secret")
        if os.geteuid() == 0:
            for each in (run_dir, *run_dir.rglob("*")):
                os.chown(each, USER, USER)
            os.chown(run_dir / STORE, 0, PROJECT)
            (run_dir / STORE).chmod(0o2770)
            os.chown(run_dir / STORE / "project", 0, PROJECT)
            (run_dir / STORE / "project").chmod(0o660)
        yield run_dir


@pytest.fixture(params=["root", "user"])
def host(request: pytest.FixtureRequest, folder: pathlib.Path) -> Iterator[Host]:
    if request.param == "root" and os.geteuid() != 0:
        pytest.skip("not root")
    opened = Host(folder, as_user(folder / "fuse") if request.param == "user" and os.geteuid() == 0 else ())
    yield opened
    opened.close()
    # A process that ends shows its mounts for a moment.
    until(lambda: fuse_mounts_below(folder) == [], "the end of all mounts")


def namespace(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/mnt")


def mounts_here() -> list[str]:
    """Without what container engines mount meanwhile, and the names that they give to namespaces."""
    lines = pathlib.Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if " - nsfs " not in line and "/docker/" not in line]


def test_the_task_alone_sees_the_file_system_and_is_who_it_was(host: Host) -> None:
    before = mounts_here()
    task = host.start_task(SAVES)
    until((host.run_dir / "events/node0/works").exists, "a save")
    uid, gid = (USER, USER) if host.prefix else (os.geteuid(), os.getegid())
    assert host.log().split() == [str(uid), str(gid)], "nothing was refused"
    assert mounts_here() == before
    assert namespace(task.pid) != namespace(os.getpid())
    inside = set()
    for line in fuse_mounts_below(host.run_dir):
        with contextlib.suppress(OSError):  # one of the task's sleeps, over since
            inside.add(namespace(int(line.split()[0])))
    assert inside == {namespace(task.pid)}
    assert (host.run_dir / STORE / "project").read_text() == "some\nmore\n", "what is outside is the same folder"
    assert (host.run_dir / STORE / "saved").stat().st_uid == uid


FORGE = """
for place in undo.jsonl plan.json holds.json holds/f.armed events/harness.jsonl events/node1/w.jsonl logs/other.log slurm/exits/node1.1; do
    echo forged 2>/dev/null >>$place && echo $place >>events/node0/forged
done
rm -rf undo.jsonl events/harness.jsonl slurm 2>/dev/null
echo mine >events/node0/w.jsonl && echo mine >answers/node0/claim && echo mine >store/mine && echo done
"""


def test_a_task_writes_only_its_own_part_of_the_run(host: Host) -> None:
    """Whether its storage is to be disturbed or not, and as root or as an ordinary user."""
    for name in ("undo.jsonl", "plan.json", "holds.json", "events/harness.jsonl"):
        (host.run_dir / name).write_text("ours")
    (host.run_dir / "holds").mkdir()
    (host.run_dir / "events" / "node1").mkdir()
    for each in host.run_dir.rglob("*"):
        each.chmod(0o777)
    task = host.start_task(f"cd {{run_dir}}; {FORGE}", mounts=())
    assert task.wait() == 0, host.log()
    assert "done" in host.log()
    assert not (host.run_dir / "events" / "node0" / "forged").exists()
    kept = {name: (host.run_dir / name).read_text() for name in ("undo.jsonl", "plan.json", "events/harness.jsonl")}
    assert set(kept.values()) == {"ours"}
    assert (host.run_dir / "slurm" / "exits" / KEY).read_text() == "0"
    assert (host.run_dir / STORE / "mine").exists() and fuse_mounts_below(host.run_dir) == []


@pytest.mark.parametrize("victim", ["the task", "the file system"])
def test_nothing_stays_when_it_is_killed(victim: str, host: Host) -> None:
    task = host.start_task(SAVES)
    until((host.run_dir / "events/node0/works").exists, "a save")
    if victim == "the file system":
        (served,) = [each for each in processes.descendants(task.pid) if "lab-storage" in comm(each.pid)]
        os.kill(served.pid, 9)
        until((host.run_dir / "events/node0/fails").exists, "a failed save")
    task.kill()
    task.wait()
    until(lambda: not [*processes_of(host.run_id), *fuse_mounts_below(host.run_dir)], "the end of all that was there")


def comm(pid: int) -> str:
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text()
    except OSError:  # it has ended meanwhile
        return ""


def test_the_helper_hands_on_rules_which_end_with_its_line(host: Host) -> None:
    host.start_task(SAVES)
    store, rule = str(host.run_dir / STORE), vars(StorageRule(operations=("write",), error="ENOSPC"))
    for _ in range(2):
        line = host.line("harness.node.slurm_helper", "node0", host.run_id)
        number = line.call("storage.add", HANG_S, folder=store, node=KEY, rule=rule)
        until((host.run_dir / "events/node0/fails").exists, "a failed save")
        assert line.call("storage.counts", HANG_S, folder=store, number=number)["failed"] > 0
        line.close()
        (host.run_dir / "events/node0/works").unlink(missing_ok=True)
        until((host.run_dir / "events/node0/works").exists, "a save")
        (host.run_dir / "events/node0/fails").unlink()


def test_the_probe_does_it_on_the_node(host: Host) -> None:
    line = host.line(SIDECAR)
    assert not line.call("storage.examine")
    line.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="not root")
def test_what_the_node_refuses_is_found_out_there(folder: pathlib.Path) -> None:
    hides_device = ("unshare", "--mount", "sh", "-c", 'mount --bind /dev/null /dev/fuse && exec "$@"', "sh")
    for prefix, reason in (
        (hides_device, "refuses a file system"),
        (WITHOUT_MOUNT_RIGHTS, "mounts of its own: root lacks CAP_SYS_ADMIN"),
    ):
        host = Host(folder, prefix)
        line = host.line(SIDECAR)
        assert reason in line.call("storage.examine")
        line.close()
        host.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="not root")
def test_a_task_that_can_have_no_mounts_says_so_and_ends(folder: pathlib.Path) -> None:
    host = Host(folder, WITHOUT_MOUNT_RIGHTS)
    assert host.start_task("echo ran").wait() == 126
    assert (folder / "slurm" / "exits" / KEY).read_text() == "126"
    assert f"{STORE}: cannot be made to be disturbed: " in host.log() and "ran" not in host.log()
