"""How much memory a process has: the tightest limit of its control groups, of either version, and of its machine."""

import pathlib

import pytest

from harness.node.emitter import memory

MIB = 2**20
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
V2 = ("memory.max", "memory.current", "inactive_file")


def group(path: pathlib.Path, names: tuple[str, str, str], limit: str, used: int, cache: int) -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / names[0]).write_text(f"{limit}\n")
    (path / names[1]).write_text(f"{used}\n")
    (path / "memory.stat").write_text(f"rss 5\n{names[2]} {cache}\n")


@pytest.mark.parametrize("names", [V1, V2], ids=["v1", "v2"])
def test_the_tightest_group_above_a_process_counts(
    names: tuple[str, str, str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = tmp_path / "groups"
    group(mount / "job", names, str(400 * MIB), 300 * MIB, 60 * MIB)
    group(mount / "job" / "node", names, "max" if names is V2 else str(2**63 - 4096), 5 * MIB, 0)
    kind = "cgroup2 cgroup2 rw" if names is V2 else "cgroup cgroup rw,memory"
    (tmp_path / "mountinfo").write_text(f"31 23 0:28 / {mount} rw - {kind}\n")
    (tmp_path / "cgroup").write_text("0::/job/node\n" if names is V2 else "4:memory:/job/node\n1:cpu:/\n")
    monkeypatch.setattr(memory, "SELF", tmp_path)
    assert list(memory._groups()) == [memory.Room(240 * MIB, 400 * MIB)]
    found = memory.room()
    assert found is not None and found.free <= 160 * MIB


def test_the_machine_is_the_limit_without_a_group_and_a_process_knows_what_it_holds(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = memory.resident_bytes()
    held = b"\x01" * (64 * MIB)
    assert memory.resident_bytes() - before >= 60 * MIB and held
    monkeypatch.setattr(memory, "SELF", tmp_path)
    found = memory.room()
    assert found is not None and 0 < found.used < found.limit and found.free == found.limit - found.used
