"""Whatever kills the harness, at whatever moment: nothing of its lab is left, without anybody's help."""

import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator

import pytest
from other_user import as_user, python_of
from waiting import until

import harness
from harness.node import cgroups, leftovers, processes
from harness.run.undo import heal_strays

ROOT = str(pathlib.Path(harness.__file__).resolve().parent.parent)
USER_ID = 61234  # nobody has this id
AS_USER = as_user(USER_ID)
HARNESS = textwrap.dedent("""
    import pathlib, sys, time
    sys.path.insert(0, sys.argv[1])
    from harness.backends.contract import Launch, Traffic
    from harness.backends.local.backend import LocalCluster
    from harness.node.types import Impairment
    command = ("sh", "-c", "setsid sleep 301 & (setsid sleep 302 &); exec sleep 300")
    workload = Launch(command, 2, 1, control=command)
    cluster = LocalCluster(workload, pathlib.Path(sys.argv[2]), sys.argv[3], sys.argv[4])
    cluster.start()
    cluster.nodes[0].kill()
    cluster.replace(cluster.nodes[0])
    if sys.argv[4] != "plain":
        cluster.nodes[0].limit_rate(10**6, Traffic())
        cluster.nodes[0].impair(Impairment(delay_s=10, loss_percent=50), Traffic())
        cluster.nodes[0].cut(Traffic())
        cluster.nodes[1].unplug()
    cluster.nodes[1].freeze()
    print("done", flush=True)
    time.sleep(60)
""")


def _start(run_dir: pathlib.Path, run_id: str, mode: str) -> subprocess.Popen[bytes]:
    arguments = [sys.executable, "-c", HARNESS, ROOT, str(run_dir), run_id, mode]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


@pytest.mark.parametrize("moment", range(3))
def test_sigkill_of_the_harness_leaves_nothing(mode: str, moment: int, tmp_path: pathlib.Path) -> None:
    """Two random moments, most of them while the lab is being built; and once in full work, its network disturbed."""
    run_id, links = f"survival-{os.getpid()}-{mode}-{moment}", devices()
    with _start(tmp_path, run_id, mode) as victim:
        assert victim.stdout is not None
        if moment == 0:
            assert victim.stdout.readline() == b"done\n"
        else:
            time.sleep(random.Random(f"{mode}{moment}").uniform(0.05, 0.5))
        victim.kill()
    until(lambda: not leftovers.leftovers(run_id), "the end of the lab")
    until(lambda: devices() == links, "the end of its devices on the host")


def devices() -> set[str]:
    """Network devices of this host, without those that a Docker engine makes and removes at any time."""
    lines = pathlib.Path("/proc/net/dev").read_text().splitlines()[2:]
    names = {line.partition(":")[0].strip() for line in lines}
    return {name for name in names if not name.startswith(("veth", "br-", "docker"))}


def test_sigkill_of_every_holder_at_once_leaves_only_what_heal_finds(tmp_path: pathlib.Path) -> None:
    """Without namespaces, harness, keeper, labd and inits all killed at once: the marks lead to the rest."""
    run_id = f"survival-{os.getpid()}-all"
    with _start(tmp_path, run_id, "plain") as victim:
        assert victim.stdout is not None
        victim.stdout.readline()
        holders = [item.process for item in leftovers.leftovers(run_id) if item.node == "lab.1"]
        assert len(holders) == 4, "keeper, labd and two inits"
        for holder in holders:
            holder.signal(signal.SIGSTOP)
        victim.kill()
        for holder in holders:
            holder.signal(signal.SIGKILL)
    victim.wait()
    until(lambda: "lab.1" not in {item.node for item in leftovers.leftovers(run_id)}, "the end of the killed holders")
    left = [item for item in leftovers.leftovers() if item.run_id == run_id]
    assert {item.node for item in left} == {"control.1", "node0.2", "node1.1"}
    assert leftovers.sweep(run_id) == len(left) == 9
    assert leftovers.leftovers(run_id) == []
    assert leftovers.sweep(run_id) == 0


def _marked_sleep(run_id: str, owner: str) -> subprocess.Popen[bytes]:
    marks = {processes.RUN_ENV: run_id, processes.OWNER_ENV: owner}
    process = subprocess.Popen(["sleep", "300"], env=os.environ | marks)
    until(lambda: processes.marked(**marks), "the mark")
    return process


@pytest.fixture
def three_sleeps() -> Iterator[tuple[subprocess.Popen[bytes], ...]]:
    """Of a run whose harness lives, of one whose harness is dead, of one whose harness cannot be seen from here."""
    alive = processes.owner_text()
    namespace, pid, start = alive.split("-")
    dead, elsewhere = f"{namespace}-{pid}-{int(start) - 1}", f"1-{pid}-{start}"
    sleeps = tuple(
        _marked_sleep(f"sleep-{os.getpid()}-{number}", owner) for number, owner in enumerate((alive, dead, elsewhere))
    )
    yield sleeps
    for sleep in sleeps:
        sleep.kill()
        sleep.wait()


def test_only_what_carries_the_mark_is_swept(three_sleeps: tuple[subprocess.Popen[bytes], ...]) -> None:
    alive, dead, elsewhere = three_sleeps
    with subprocess.Popen(["sleep", "300"]) as unmarked:
        pids = {item.process.pid for item in leftovers.leftovers()}
        assert dead.pid in pids
        assert pids.isdisjoint({alive.pid, elsewhere.pid, unmarked.pid, os.getpid()})
        assert leftovers.sweep(f"sleep-{os.getpid()}-0") == 1
        assert alive.wait() == -9
        assert [each.poll() for each in (dead, elsewhere, unmarked)] == [None] * 3
        unmarked.kill()


def test_heal_ends_what_runs_left_whose_journal_is_nowhere(three_sleeps: tuple[subprocess.Popen[bytes], ...]) -> None:
    alive, dead, elsewhere = three_sleeps
    namespace, pid, start = processes.owner_text().split("-")
    run_id = f"stray-{os.getpid()}"
    if os.geteuid() == 0 and cgroups.why_not("cpu") is None:
        cgroups.create("cpu", f"{namespace}-{pid}-{int(start) - 1}", run_id, "node0.1")
        assert cgroups.leftovers(run_id)
    would, _ = heal_strays(dry_run=True)
    assert dead.poll() is None
    healed, failed = heal_strays()
    assert healed == would
    assert failed == [] and any(f"process {dead.pid} " in each for each in healed)
    assert dead.wait() == -9 and cgroups.leftovers(run_id) == []
    assert (alive.poll(), elsewhere.poll()) == (None, None)
    assert heal_strays() == ([], [])


def test_a_reused_process_id_is_not_hit() -> None:
    with subprocess.Popen(["sleep", "300"]) as bystander:
        now = processes.read(bystander.pid)
        assert now is not None
        before = processes.ProcEntry(now.pid, now.start - 1, now.parent, now.state)
        assert not before.signal(signal.SIGKILL)
        assert now.signal(signal.SIGKILL)
    assert not now.signal(signal.SIGKILL)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_full_process_table_is_said_and_leaves_nothing() -> None:
    code = """
        import os, pathlib, resource, sys
        sys.path.insert(0, sys.argv[1])
        from harness.backends.contract import Launch
        from harness.backends.local.backend import LocalCluster
        from harness.errors import BackendError
        from harness.node import leftovers as undo
        run_id = f"full-{os.getpid()}"
        resource.setrlimit(resource.RLIMIT_NPROC, (5, 5))
        try:
            LocalCluster(Launch(("sleep", "300"), 8, 1), pathlib.Path(sys.argv[2]), run_id, "plain")
        except BackendError as error:
            print(error, undo.leftovers(run_id))
    """
    with tempfile.TemporaryDirectory() as directory:
        os.chown(directory, USER_ID, USER_ID)
        command = [*AS_USER, python_of(AS_USER), "-B", "-c", textwrap.dedent(code), ROOT, directory]
        done = subprocess.run(command, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    assert "the limit on processes is reached" in done.stdout and done.stdout.endswith("[]\n")


def test_network_namespaces_are_given_back(tmp_path: pathlib.Path) -> None:
    """Labs one after the other where only one fits at a time, each ended with a connection full of unread data."""
    code = textwrap.dedent("""
        import os, pathlib, sys, time
        sys.path.insert(0, sys.argv[1])
        from harness.backends.contract import Launch
        from harness.backends.local.backend import LocalCluster
        from harness.errors import BackendError
        flood = (
            "import socket, sys, time\\n"
            "listener = socket.create_server((sys.argv[1], 7000))\\n"
            "if sys.argv[2] == '0': link = listener.accept(); print('full', flush=True); time.sleep(60)\\n"
            "while True:\\n"
            "    try: link = socket.create_connection(('10.77.0.1', 7000)); break\\n"
            "    except OSError: time.sleep(0.01)\\n"
            "while True: link.sendall(bytes(100000))\\n"
        )
        workload = Launch((sys.executable, "-S", "-c", flood, "{address}", "{index}"), 2, 1)
        def when_free(work):
            "A namespace is freed in the background, soon after its last user."
            deadline = time.monotonic() + 300
            while True:
                try: return work()
                except BackendError:
                    if time.monotonic() > deadline: raise
                    time.sleep(0.05)
        def lab(number):
            run_dir = pathlib.Path(sys.argv[2], str(number))
            run_id = f"namespaces-{os.getpid()}-{number}"
            with when_free(lambda: LocalCluster(workload, run_dir, run_id, "root")) as cluster:
                cluster.start()
                while "full" not in (run_dir / "logs" / "node0.1.log").read_text(): time.sleep(0.01)
                if number % 2:
                    cluster.nodes[1].kill()
                    when_free(lambda: cluster.replace(cluster.nodes[1]))
        for number in range(4): lab(number)
        print("done")
    """)
    script = f'echo 3 > /proc/sys/user/max_net_namespaces && exec {sys.executable} -c "$0" {ROOT} {tmp_path}'
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", script, code]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.stderr.startswith("unshare"):
        pytest.skip(done.stderr)
    assert done.stdout == "done\n", done.stderr
