"""Control groups, v1 and v2: found, limited, put back byte for byte, swept. On trees of plain files."""

import pathlib
from typing import Any
from unittest.mock import Mock

import pytest

from harness.errors import BackendError, FaultError
from harness.node import cgroups, processes


def mounted(tmp_path: pathlib.Path, mounts: list[str], own: str) -> pathlib.Path:
    """A /proc/self with these mounts (`{tmp}` stands for the folder) and groups."""
    proc = tmp_path / "proc"
    proc.mkdir()
    lines = [f"3{n} 23 0:2{n} {mount}" for n, mount in enumerate(mounts)]
    (proc / "mountinfo").write_text("\n".join(lines).format(tmp=tmp_path) + "\n22 1 8:1 / / rw - ext4 /dev/sda rw\n")
    (proc / "cgroup").write_text(own)
    return proc


V2, MEMORY = "/ {tmp}/cg rw - cgroup2 cgroup2 rw", "/ {tmp}/mem rw - cgroup cgroup rw,memory"
DOWN = {".": "cpu memory pids", "user.slice": "cpu memory", "user.slice/session": ""}


@pytest.mark.parametrize(
    ("mounts", "own", "down", "controller", "found"),
    [
        ([MEMORY], "4:memory:/slice/job\n0::/\n", {}, "memory", (1, "mem/slice/job")),
        # Inside a container the mount is the caller's group.
        (["/docker/abc {tmp}/cpu rw - cgroup cgroup rw,cpu"], "1:cpu:/docker/abc\n", {}, "cpu", (1, "cpu")),
        # The nearest one that hands the controller down; one of v1 beside it where none does.
        ([V2], "0::/user.slice/session\n", DOWN, "memory", (2, "cg/user.slice")),
        ([V2, MEMORY], "4:memory:/\n0::/\n", {".": "hugetlb"}, "cpu", "`cpu` is not handed down"),
        ([V2, MEMORY], "4:memory:/\n0::/\n", {".": "hugetlb"}, "memory", (1, "mem")),
        ([], "0::/\n", {}, "cpu", "no cgroup hierarchy with the controller `cpu` is mounted"),
    ],
)
def test_where_a_group_is_made(
    tmp_path: pathlib.Path, mounts: list[str], own: str, down: dict[str, str], controller: str, found: Any
) -> None:
    for folder in ("mem/slice/job", "cpu", *(f"cg/{group}" for group in down)):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    for group, controllers in down.items():
        (tmp_path / "cg" / group / "cgroup.subtree_control").write_text(controllers)
    parent = cgroups.find_parent(controller, mounted(tmp_path, mounts, own))
    if isinstance(found, str):
        assert found in str(parent)
    else:
        assert parent == cgroups.Parent(controller, found[0], tmp_path / found[1])


FILES = {
    1: {
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_quota_us": "-1",
        "cpu.stat": "nr_periods 4\nnr_throttled 2\nthrottled_time 7000\n",
        "memory.limit_in_bytes": "9223372036854771712",
        "memory.memsw.limit_in_bytes": "9223372036854771712",
        "memory.stat": "total_rss 1000\ntotal_shmem 20\nhierarchical_memory_limit 9223372036854771712\n",
        "memory.kmem.usage_in_bytes": "3",
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    },
    2: {
        "cpu.max": "max 100000",
        "cpu.stat": "usage_usec 1\nnr_periods 4\nnr_throttled 2\nthrottled_usec 7\n",
        "memory.max": "max",
        "memory.swap.max": "max",
        "memory.stat": "anon 1000\nfile 5\nkernel 3\nshmem 20\n",
        "memory.events": "low 0\nmax 3\noom 2\noom_kill 2\n",
    },
}


@pytest.fixture(params=[1, 2])
def group(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> cgroups.Group:
    for name, text in FILES[request.param].items():
        (tmp_path / name).write_text(text)
    return cgroups.Group(request.param, tmp_path)


def contents(group: cgroups.Group) -> dict[str, str]:
    return {path.name: path.read_text() for path in group.path.iterdir()}


@pytest.mark.parametrize("swap", [True, False], ids=["swap", "without swap accounting"])
def test_limits_are_written_in_the_words_of_each_version_and_put_back(group: cgroups.Group, swap: bool) -> None:
    if not swap:
        (group.path / cgroups._MEMORY_FILES[group.version][1]).unlink()
    before = contents(group)
    for cpus in (0.5, 1.5):
        cgroups.limit_cpu(group, cpus)
    cgroups.limit_memory(group, 64 << 20)
    now = contents(group)
    if group.version == 1:
        assert (now["cpu.cfs_period_us"], now["cpu.cfs_quota_us"]) == ("50000", "75000")
        assert now["memory.limit_in_bytes"] == str(64 << 20) == now.get("memory.memsw.limit_in_bytes", str(64 << 20))
    else:
        assert now["cpu.max"] == "75000 50000"
        assert (now["memory.max"], now.get("memory.swap.max", "0")) == (str(64 << 20), "0")
    for _ in range(2):
        group.restore()
        assert contents(group) == before


def test_a_quota_has_a_least_and_accounts_are_read(group: cgroups.Group) -> None:
    assert cgroups.throttled_ns(group) == 7000
    assert cgroups.unreclaimable_bytes(group) == 1023
    assert cgroups.kills(group) == 2
    cgroups.limit_cpu(group, 0.0001)
    assert "1000" in contents(group)["cpu.cfs_quota_us" if group.version == 1 else "cpu.max"].split()


def test_a_limit_below_what_is_in_use_is_said(group: cgroups.Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups.Group, "write", Mock(side_effect=OSError(16, "Device or resource busy")))
    with pytest.raises(FaultError, match="1 bytes"):
        cgroups.limit_memory(group, 1)


@pytest.fixture
def hierarchy(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    proc = mounted(tmp_path, ["/ {tmp}/cpu rw - cgroup cgroup rw,cpu"], "1:cpu:/a\n")
    (tmp_path / "cpu" / "a").mkdir(parents=True)
    monkeypatch.setattr(cgroups, "SELF", proc)
    return tmp_path / "cpu"


def test_only_what_is_ours_is_swept(hierarchy: pathlib.Path) -> None:
    living = processes.owner_text()
    namespace, pid, start = living.split("-")
    dead, elsewhere = f"{namespace}-{pid}-{int(start) - 1}", f"1-{pid}-{start}"
    names = [f"a/chaos-{owner}@run-1@node0.1" for owner in (living, dead, elsewhere)]
    foreign = ["chaos-docker", "a/chaos-x@y", "system.slice"]
    for name in (*names, *foreign):
        (hierarchy / name).mkdir()
    assert cgroups.sweep() == 1
    assert {name for name in (*names, *foreign) if (hierarchy / name).exists()} == {names[0], names[2], *foreign}
    # Whoever sweeps may be in another group than the one that made them.
    assert cgroups.sweep("run-1") == 2
    assert cgroups.sweep("run-1") == 0
    assert all((hierarchy / name).exists() for name in foreign)


def test_a_group_where_none_can_be_made_is_no_error_yet(hierarchy: pathlib.Path) -> None:
    assert cgroups.create("memory", "o", "run", "node0.1") is None
    assert cgroups.why_not("cpu") is None
    assert [path.name for path in (hierarchy / "a").iterdir()] == []


def test_a_group_that_is_busy_keeps_no_other_from_being_removed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = [tmp_path / name for name in ("a", "busy", "c")]
    for group in groups:
        group.mkdir()
    (groups[1] / "process").touch()
    monkeypatch.setattr(cgroups, "leftovers", lambda run_id=None: groups)
    with pytest.raises(BackendError, match="busy"):
        cgroups.sweep("run")
    assert [group.exists() for group in groups] == [False, True, False]
