"""What a disturbed file system does, seen from a process on a node. No trainer: every operation is our own."""

import os
import pathlib
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from waiting import until

from harness.backends.contract import Launch, Verb
from harness.backends.local.backend import BACKEND, LocalCluster
from harness.errors import UsageError
from harness.node.types import StorageAnswers, StorageRule

if Verb.STORAGE not in BACKEND.probe().verbs:
    pytest.skip(BACKEND.probe().missing[Verb.STORAGE], allow_module_level=True)

# Runs every `*.py` that is put beside it, in order, and writes `<name>.out` when it has ended.
RUNNER = """
import contextlib, io, os, pathlib, time, traceback
box = pathlib.Path(os.environ["BOX"]); os.chdir(os.environ["WHERE"])
while True:
    for job in sorted(box.glob("*.py")):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            try: exec(job.read_text(), {})
            except Exception: traceback.print_exc(file=out)
        job.unlink(); (box / "part").write_text(out.getvalue()); (box / "part").rename(job.with_suffix(".out"))
    time.sleep(0.002)
"""


@dataclass
class Storage:
    """A lab of one node whose folder `store` is disturbed. `below` is what is really on the disk."""

    cluster: LocalCluster
    run_dir: pathlib.Path
    jobs: int = 0

    @property
    def below(self) -> pathlib.Path:
        return self.run_dir / "store"

    def disturb(self, **rule: Any) -> Any:
        return self.cluster.nodes[0].disturb_storage("store", StorageRule(**rule))

    def begin(self, code: str) -> pathlib.Path:
        self.jobs += 1
        path = self.run_dir / "box" / f"{self.jobs:03}.new"
        path.write_text(textwrap.dedent(code))
        path.rename(path.with_suffix(".py"))
        return path.with_suffix(".out")

    def run(self, code: str) -> list[str]:
        """The words that `code` prints, run on the node in the disturbed folder."""
        out = self.begin(code)
        until(out.exists, f"the end of {code!r}")
        return out.read_text().split()


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    run_dir = tmp_path_factory.mktemp("run")
    (run_dir / "box").mkdir()
    env = {"BOX": str(run_dir / "box"), "WHERE": str(run_dir / "store")}
    own = "{run_dir}/box"  # a folder that its command names is the node's to write
    workload = Launch((sys.executable, "-S", "-c", RUNNER, own), 1, 1, env, None, ("store",))
    with BACKEND.open(workload, run_dir, f"test-storage-{os.getpid()}") as cluster:
        cluster.start()
        yield Storage(cluster, run_dir)
    assert str(run_dir) not in pathlib.Path("/proc/mounts").read_text()


def test_everything_passes_through_when_nothing_is_disturbed(storage: Storage) -> None:
    said = storage.run(
        """
        import hashlib, os, shutil
        data = os.urandom(3_000_001)
        os.makedirs("a/b")
        with open("a/b/file", "wb") as file:
            file.write(data); file.flush(); os.fsync(file.fileno())
        os.rename("a", "c")
        os.symlink("c/b/file", "link")
        with open("link", "r+b") as file:
            file.seek(1000); file.write(b"x"); file.truncate(2_000_000)
        os.chmod("c/b/file", 0o640); os.utime("c/b/file", (5, 6))
        found = os.stat("link")
        print(os.path.ismount("."), sorted(os.listdir(".")), found.st_size, oct(found.st_mode & 0o777), found.st_mtime)
        print(open("link", "rb").read() == data[:1000] + b"x" + data[1001:2_000_000])
        try: open("missing")
        except FileNotFoundError: print("missing")
        shutil.copytree("c", "d"); shutil.rmtree("c"); os.unlink("link")
        print(os.listdir("d/b"))
        """
    )
    assert said == ["True", "['c',", "'link']", "2000000", "0o640", "6.0", "True", "missing", "['file']"]
    assert (storage.below / "d" / "b" / "file").stat().st_size == 2_000_000
    assert not (storage.below / "c").exists()


WRITE = """
import os
file = os.open("{name}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
done = 0
try:
    while done < {size}: done += os.write(file, bytes([7]) * min({chunk}, {size} - done))
    os.fsync(file)
    print(done, "ok")
except OSError as error: print(done, error.errno)
os.close(file)
"""


@pytest.mark.parametrize("after", [0, 1, 4095, 123_457])
def test_a_write_fails_exactly_at_byte_n(storage: Storage, after: int) -> None:
    rule = storage.disturb(pattern="*.bin", error="EIO", after_bytes=after)
    assert storage.run(WRITE.format(name="x.bin", size=200_000, chunk=50_000)) == [str(after), "5"]
    assert storage.run(WRITE.format(name="x.txt", size=200_000, chunk=50_000)) == ["200000", "ok"], "another pattern"
    assert (storage.below / "x.bin").stat().st_size == after
    assert rule.counts()["bytes"] == after and rule.counts()["failed"] == 1
    rule.heal()
    rule.heal()
    assert storage.run(WRITE.format(name="x.bin", size=200_000, chunk=50_000)) == ["200000", "ok"]
    assert rule.counts()["failed"] == 1, "the last counts stay"


TRY = "\ntry: {0}; print('ok')\nexcept OSError as error: print(error.errno)"


def test_a_full_disk_says_so_and_still_lets_files_go_and_only_so_many_operations_fail(storage: Storage) -> None:
    storage.run("open('old', 'w').write('old')")
    rule = storage.disturb(operations=("write", "create", "mkdir"), error="ENOSPC")
    code = "import os\nos.unlink('old'); print(os.statvfs('.').f_bavail)" + TRY.format("os.mkdir('new')")
    assert storage.run(code) == ["0", "28"]
    rule.heal()
    assert not (storage.below / "old").exists()
    rule = storage.disturb(operations=("open",), error="EACCES", times=2)
    assert storage.run("open('f', 'w').close()" + TRY.format("open('f')") * 4) == ["13", "13", "ok", "ok"]
    rule.heal()


def test_every_operation_is_delayed_and_others_are_not(storage: Storage) -> None:
    rule = storage.disturb(pattern="slow", operations=("write",), delay_s=0.1)
    code = "import os, time\nfor name in ('slow', 'fast'):\n  f = os.open(name, os.O_CREAT | os.O_WRONLY); t = time.monotonic()\n  for _ in range(5): os.write(f, b'x')\n  print(time.monotonic() - t)"
    slow, _ = map(float, storage.run(code))
    counts = rule.counts()
    rule.heal()
    assert counts["waits"] == 5 and counts["delayed_ns"] >= 5 * 0.1e9
    assert slow >= 0.5 and counts["matched"] == 5, "the other file is none of its business"


def test_bandwidth_is_what_was_asked(storage: Storage) -> None:
    """Other work makes it less, never more."""

    def rate() -> float:
        rule = storage.disturb(operations=("read", "write"), rate_bytes=4e6)
        storage.run(WRITE.format(name="slow", size=4_000_000, chunk=400_000))
        counts = rule.counts()
        rule.heal()
        assert counts["bytes"] == 4_000_000
        return counts["bytes"] / counts["busy_ns"] * 1e9

    def reached() -> bool:
        found = rate()
        assert found < 5e6
        return found > 3e6

    until(reached, "the bandwidth")


SAVE = """
import os
data = bytes([7]) * 40960
for name in ("one", "two"):
    with open("part-" + name, "wb") as file:
        file.write(data[:20480]); file.flush(); os.fsync(file.fileno())
        file.write(data[20480:]); file.flush()
os.rename("part-one", "whole")
os.listdir(".")
"""


@pytest.mark.parametrize("power", ["prefix", "reordered", "fsync_lied", "rename_lost"])
def test_power_loss(storage: Storage, power: str) -> None:
    """The node that writes hangs from then on, and what was not durable is gone from the disk below."""
    for old in storage.below.iterdir():
        storage.run(
            f"import shutil, os\nshutil.rmtree({old.name!r}) if os.path.isdir({old.name!r}) else os.unlink({old.name!r})"
        )
    named = power in ("fsync_lied", "rename_lost")
    rule = storage.disturb(
        pattern="*whole" if named else "part-one",
        operations=("rename",) if named else ("write",),
        after_bytes=0 if named else 30_001,
        power=power,
        seed=3,
    )
    if power == "fsync_lied":
        rule.heal()
        rule = storage.disturb(pattern="*", operations=("rename",), power=power)
    out = storage.begin(SAVE)
    until(lambda: rule.counts()["cut"], "the power loss")
    time.sleep(0.1)
    assert not out.exists(), "nobody is told"
    counts = rule.counts()
    content = {path.name: path.read_bytes() for path in storage.below.iterdir()}
    if power == "prefix":
        assert content == {"part-one": bytes([7]) * 30_001}
    elif power == "reordered":
        synced, pages = content["part-one"][:20480], content["part-one"][20480:]
        assert synced == bytes([7]) * 20480, "what was synced stays"
        assert len(content["part-one"]) == 30_001 and counts["lost_bytes"] == pages.count(0) > 0
    elif power == "fsync_lied":
        assert content["whole"] == bytes(40960), "renamed, synced, and full of zeros"
        assert counts["lost_bytes"] == 2 * 40960
    else:
        assert "whole" not in content and content["part-one"] == bytes([7]) * 40960
        assert counts["lost_renames"] == 1
    rule.heal()
    until(out.exists, "the end of the waiting once the power is back")


def test_a_process_that_waits_for_ever_can_be_killed(storage: Storage) -> None:
    rule = storage.disturb(hang=True, operations=("read",))
    code = """
        import os, signal, time
        open("dead", "w").write("x" * 9000)
        child = os.fork()
        if not child:
            open("dead").read()
        time.sleep(0.3)
        state = open(f"/proc/{child}/stat").read().rpartition(")")[2].split()[0]
        print(state, os.waitpid(child, os.WNOHANG)[0])
        os.kill(child, signal.SIGKILL)
        print(os.waitpid(child, 0)[1])
    """
    assert storage.run(code) == ["D", "0", "9"]
    rule.heal()


def test_a_rule_never_covers_the_node_that_comes_after_its_own(storage: Storage) -> None:
    """The kernel gives the name of a PID namespace that is gone to one of the next; a rule holds on to its own."""
    for _ in range(3):
        storage.disturb(error="EIO", operations=("open", "create"))
        assert "OSError:" in storage.run("open('file', 'w'); print('written')")
        storage.cluster.nodes[0].kill()
        time.sleep(0.5)  # for the kernel to let go of what nobody holds
        storage.cluster.replace(storage.cluster.nodes[0])
        assert storage.run("open('file', 'w'); print('written')") == ["written"]


@pytest.mark.parametrize(
    ("rule", "refused", "delay_s"),
    [
        ({"operations": ("write", "fsync"), "error": "EIO"}, 2, 0.0),
        ({"operations": ("write",), "error": "EIO", "after_bytes": 10}, 0, 0.0),
        ({"operations": ("read", "write"), "delay_s": 0.02}, 0, 0.02),
        ({"operations": ("write",), "rate_bytes": 2**21}, 0, 0.5),
    ],
)
def test_what_is_left_of_a_rule_is_seen_and_counted_as_nothing(
    storage: Storage, rule: dict[str, Any], refused: int, delay_s: float
) -> None:
    node = storage.cluster.nodes[0]
    acting = storage.disturb(**rule)
    found = node.try_storage("store", StorageRule(**rule))
    assert found == StorageAnswers(len(rule["operations"]), refused, delay_s)
    assert set(acting.counts().values()) == {0}
    acting.heal()
    assert node.try_storage("store", StorageRule(**rule)) == StorageAnswers(len(rule["operations"]), 0, 0.0)


def test_mistakes_are_named(storage: Storage) -> None:
    with pytest.raises(UsageError, match="EWHAT"):
        storage.disturb(error="EWHAT")
    with pytest.raises(UsageError, match="dance"):
        storage.disturb(operations=("dance",))
    with pytest.raises(UsageError, match="the workload's mounts are"):
        storage.cluster.nodes[0].disturb_storage("elsewhere", StorageRule())
