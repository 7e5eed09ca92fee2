"""The program of a preflight on a node, as far as one process without torch shows it."""

import argparse
import concurrent.futures
import itertools
import os
import pathlib
import sys
import time
from collections.abc import Iterable
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from event_files import read_log
from preflight.fake_torch import torch

from harness.preflight.checks import environment
from harness.preflight.node_program import probe


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8])
def test_each_meets_each_once_and_nobody_two_at_a_time(count: int) -> None:
    rounds = list(probe.tournament(count))
    met = [tuple(sorted(pair)) for pairs in rounds for pair in pairs]
    assert sorted(met) == list(itertools.combinations(range(count), 2))
    assert all(len({*itertools.chain(*pairs)}) == 2 * len(pairs) for pairs in rounds)


@pytest.mark.parametrize(("nodes", "ranks", "alone"), [(2, 1, True), (3, 2, True), (9, 1, False)])
def test_ranks_of_one_number_are_paired_between_nodes_and_all_within_one(nodes: int, ranks: int, alone: bool) -> None:
    rounds = probe.rounds(nodes, ranks)
    pairs = {tuple(sorted(pair)) for each in rounds for pair in each}
    within = {pair for pair in pairs if pair[0] // ranks == pair[1] // ranks}
    assert len(within) == nodes * ranks * (ranks - 1) // 2
    assert all(a % ranks == b % ranks for a, b in pairs - within)
    assert len(pairs - within) == ranks * nodes * (nodes - 1) // 2
    between = [each for each in rounds if not within.issuperset(tuple(sorted(pair)) for pair in each)]
    assert all(len(each) == 1 for each in between) is alone


def test_storage_is_written_read_listed_and_left_as_it_was_and_what_it_refuses_is_told(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "STORED_BYTES", 2 * probe.BLOCK)
    told = probe.stored(tmp_path / "own")
    assert told["same"] and told["listed"] and told["bytes"] == 2 * probe.BLOCK and "error" not in told
    assert not any(tmp_path.iterdir())
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    assert probe.stored(tmp_path / "own")["error"] == "fsync: No space left on device"
    assert not any(tmp_path.iterdir())
    (tmp_path / "file").touch()
    assert probe.stored(tmp_path / "file" / "own")["error"].startswith("making a folder: ")


def test_a_path_is_told_with_its_mount_and_what_is_there(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    for nothing in ("none", "file/none"):
        assert probe.path_seen(str(tmp_path / nothing)) == {"kind": "absent"}
    unseen = probe.path_seen("/" + "x" * 300)
    assert unseen == {"kind": "unseen", "error": "File name too long"}
    assert msgspec.convert(unseen, environment.Path).error  # the check can read it
    assert probe.path_seen(str(tmp_path / "file"))["bytes"] == 5
    folder = probe.path_seen(str(tmp_path))
    assert folder["kind"] == "folder" and folder["entries"] == 1 and folder["free_bytes"] > 0
    assert str(tmp_path).startswith(folder["mount"]) and folder["filesystem"]
    assert probe.mount_of("/proc/self")[1] == "proc"
    monkeypatch.setattr(probe, "PATH_S", 0.01)
    monkeypatch.setattr(os.path, "isdir", lambda path: time.sleep(1))
    assert probe.path_seen("/mnt/dead") == {"kind": "stuck"}


def test_the_look_at_a_node_tells_no_value_of_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SECRET", "hunter2")
    told = probe.look(argparse.Namespace(variable=["SURELY_UNSET", "PATH"], path=["/"]))
    assert told["unset"] == ["SURELY_UNSET"] and told["cpus"] > 0 and told["memory_bytes"] > 2**20
    assert "hunter2" not in str(told) and len(told["settings"]["NCCL_SECRET"]) == 12


def measured(
    folder: pathlib.Path, patch: pytest.MonkeyPatch, nodes: int, ranks: int, probes: Iterable[str]
) -> dict[str, dict[int, dict[str, Any]]]:
    """What each rank told of each probe, with threads for ranks."""
    fake = torch(nodes * ranks)
    patch.setitem(sys.modules, "torch", fake)
    patch.setitem(sys.modules, "torch.distributed", fake.distributed)
    patch.setenv("CHAOS_EVENTS", str(folder / "events"))
    small = {"AGAIN_AFTER_S": 0.0, "COMPUTE_S": 0.1, "STEP_S": 1e-4, "WINDOW_S": 0.0, "LINK_S": 1e-6}
    for name, value in (small | {"SIZES": (64, 128), "SIZE_S": 0.0, "STORED_BYTES": probe.BLOCK}).items():
        patch.setattr(probe, name, value)
    common = {"nodes": nodes, "ranks": ranks, "head": "x", "saves": str(folder), "probes": ",".join(probes)}
    each = range(nodes * ranks)
    options = [argparse.Namespace(**common, index=rank // ranks, local_rank=rank % ranks) for rank in each]
    with concurrent.futures.ThreadPoolExecutor(len(options)) as pool:
        assert [*pool.map(probe.measure, options)] == [0] * len(options)
    told: dict[str, dict[int, dict[str, Any]]] = {}
    for log in read_log(folder / "events"):
        for event in log.events:
            if event["event"] == "preflight":
                told.setdefault(event["probe"], {})[log.header["rank"]] = event["values"]
    return told


def test_ranks_measure_in_step_and_tell_what_each_of_them_saw(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = measured(tmp_path, monkeypatch, 3, 2, probe.STAGES)
    assert all(len(each["flops"]) > 1 for each in told["compute"].values()) and len(told["compute"]) == 6
    assert [offset[0] for offset in told["clocks"][0]["offsets"]] == [1, 2]
    assert all(abs(offset[1]) <= offset[2] for offset in told["clocks"][0]["offsets"])
    assert {rank: {to for to, _ in each["to"]} for rank, each in told["links"].items()} == {
        rank: {rank ^ 1, *(other for other in range(6) if other != rank and other % 2 == rank % 2)} for rank in range(6)
    }
    reduced = [(rank, each["which"], each["ranks"]) for rank, each in sorted(told["all_reduce"].items())]
    assert (2, "within", 2) in reduced and (1, "between", 3) in reduced
    assert {*told["storage"]} == {0, 2, 4} and all("error" not in each for each in told["storage"].values())


def test_a_link_that_seems_slow_is_measured_again_and_the_others_are_not(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = list[tuple[int, int]]()

    def sent(job: probe.Job, message: Any, to: int) -> float:
        """One link is slow in its first looks, as on a busy host; another one always."""
        looks.append((job.rank, to))
        slow = (job.rank, to) == (2, 1) or ((job.rank, to) == (0, 1) and looks.count((0, 1)) < 3)
        return 1e6 if slow else 1e9

    monkeypatch.setattr(probe, "_send", sent)
    monkeypatch.setattr(probe, "_receive", lambda job, message, sender: None)
    told = measured(tmp_path, monkeypatch, 3, 1, ["links"])["links"]
    assert dict(told[0]["to"])[1] == 1e9 and dict(told[2]["to"])[1] == 1e6
    assert {each["again"] for each in told.values()} == {probe.AGAIN}
    assert [looks.count(link) for link in ((0, 2), (0, 1), (2, 1))] == [2, 3, 4]
