"""What a checkpoint holds: the same tensors have the same digest in any container, and any other byte has another."""

import json
import os
import pathlib
import struct
import subprocess
import tempfile
import time
import tracemalloc
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("torch", reason="torch is missing: make setup")
import torch
from checkpoint_files import WRITERS, save, save_dcp, save_safetensors, state, write
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.log import untrusted_files
from harness.trainers.checkpoints.contract import list_checkpoints
from harness.trainers.checkpoints.shared import digests
from harness.trainers.checkpoints.shared.checkpoint_folder import CheckpointFolder
from harness.trainers.checkpoints.shared.digests import Content

Tensors = dict[str, torch.Tensor]
FOLDER = "checkpoints"


def content_of(root: pathlib.Path) -> Content:
    """Of all files in the folder together."""
    place = CheckpointFolder.look(root, FOLDER)
    return digests.content(place, place.files)


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "BYTES_MAX", 2**20)


def newest(run_dir: pathlib.Path) -> Content:
    place = CheckpointFolder.look(run_dir, FOLDER)
    return digests.content(place, list_checkpoints(place).checkpoints[0].files)


def one_file(folder: pathlib.Path, tensors: Tensors) -> None:
    save(folder / "step_7.pt", {"model": tensors, "step": 7})


def a_file_each(folder: pathlib.Path, tensors: Tensors) -> None:
    for name, tensor in reversed(tensors.items()):
        save(folder / f"{name}-of-rank-3.bin", [tensor, "step 9"])


def shards(folder: pathlib.Path, tensors: Tensors) -> None:
    save_dcp(folder, tensors | {"progress": "text"})


def with_a_header(folder: pathlib.Path, tensors: Tensors) -> None:
    save_safetensors(folder / "model.safetensors", tensors)


def in_two_formats(folder: pathlib.Path, tensors: Tensors) -> None:
    names = sorted(tensors)
    save_safetensors(folder / "model.safetensors", {name: tensors[name] for name in names[1:]})
    save(folder / "rest.pt", tensors[names[0]])


CONTAINERS = [one_file, a_file_each, shards, with_a_header, in_two_formats]
SIZES = st.lists(st.integers(5, 400), min_size=1, max_size=6)


def made(sizes: list[int], seed: int = 0) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    return {f"t{number}": torch.randn(size, generator=generator) for number, size in enumerate(sizes)}


def held(tensors: Tensors, container: Callable[[pathlib.Path, Tensors], None]) -> Content:
    with tempfile.TemporaryDirectory() as folder:
        container(pathlib.Path(folder) / FOLDER, tensors)
        return content_of(pathlib.Path(folder))


@settings(max_examples=15, deadline=None)
@given(SIZES)
def test_the_container_does_not_matter(sizes: list[int]) -> None:
    found = [held(made(sizes), container) for container in CONTAINERS]
    assert len({each.of_tensors for each in found}) == 1
    assert len({tuple(each.listed) for each in found}) == 1
    assert sorted(each.size for each in found[0].tensors or ()) == sorted(4 * size for size in sizes)


@settings(max_examples=15, deadline=None)
@given(SIZES, st.sampled_from(CONTAINERS), st.data())
def test_one_other_byte_is_another_tensor(
    sizes: list[int], container: Callable[[pathlib.Path, Tensors], None], data: st.DataObject
) -> None:
    tensors = made(sizes)
    before = held(tensors, container)
    changed = tensors[data.draw(st.sampled_from(sorted(tensors)))].numpy().view("uint8")
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    after = held(tensors, container)
    assert before.of_tensors != after.of_tensors and before.sha256 != after.sha256
    same = Counter(before.listed) & Counter(after.listed)
    assert same.total() == len(tensors) - 1


@pytest.mark.parametrize("layout", WRITERS)
def test_every_layout_shows_its_tensors(tmp_path: pathlib.Path, layout: str) -> None:
    write(tmp_path / FOLDER, layout, 20)
    first = newest(tmp_path)
    assert first.tensors is not None and {12000, 28} <= {each.size for each in first.tensors}
    write(tmp_path / FOLDER, layout, 100)
    assert newest(tmp_path).of_tensors != first.of_tensors
    assert len(newest(tmp_path).tensors or ()) == len(first.tensors)
    assert not any(each.zero for each in first.tensors)


def test_names_texts_counters_and_random_states_do_not_count(tmp_path: pathlib.Path) -> None:
    rng, found = torch.get_rng_state(), []
    for step in (20, 40):
        more = {"n": torch.tensor(step), "rng": rng, "all": torch.stack([rng, rng]), "gpu": torch.cat([rng, rng[:16]])}
        save(tmp_path / str(step) / FOLDER / f"ckpt_{step}.pt", state(1) | more | {"step": step, "best": "no" * step})
        torch.manual_seed(step)
        rng = torch.get_rng_state()
        found.append(content_of(tmp_path / str(step)))
    assert found[0].of_tensors == found[1].of_tensors and found[0].sha256 != found[1].sha256
    assert [each.size for each in found[0].tensors or ()] == [12000, 200, 28]


def test_an_emptied_optimizer_shows(tmp_path: pathlib.Path) -> None:
    model, moments = made([500, 300]), made([500, 300], seed=1)
    zeroed = {name: torch.zeros_like(tensor) for name, tensor in moments.items()}
    for name, optimizer in (("full", moments), ("zeroed", zeroed), ("empty", {})):
        save(tmp_path / name / FOLDER / "a.pt", {"model": model, "optimizer": optimizer})
    full, zero, empty = (content_of(tmp_path / name).tensors or () for name in ("full", "zeroed", "empty"))
    assert (len(full), len(zero), len(empty)) == (4, 4, 2)
    assert [sum(each.size for each in found if each.zero) for found in (full, zero, empty)] == [0, 3200, 0]


def test_zero_is_what_is_zero_from_end_to_end(tmp_path: pathlib.Path) -> None:
    tensor = torch.zeros(digests.BLOCK_BYTES)
    for place, zero in ((None, True), (0, False), (len(tensor) // 2, False), (-1, False)):
        changed = tensor.clone()
        if place is not None:
            changed[place] = 1
        save(tmp_path / FOLDER / "a.pt", changed)
        assert [each.zero for each in content_of(tmp_path).tensors or ()] == [zero]


def test_an_archive_without_tensors_has_none_and_another_format_is_not_known(tmp_path: pathlib.Path) -> None:
    save(tmp_path / "empty" / FOLDER / "a.pt", {"model": {}})
    assert content_of(tmp_path / "empty").tensors == []
    (tmp_path / "other" / FOLDER).mkdir(parents=True)
    (tmp_path / "other" / FOLDER / "a.json").write_text("{}")
    with zipfile.ZipFile(tmp_path / "other" / FOLDER / "a.npz", "w") as archive:
        archive.writestr("weight.npy", b"0" * 100)
    torch.save(state(1), tmp_path / "other" / FOLDER / "old.pt", _use_new_zipfile_serialization=False)
    found = content_of(tmp_path / "other")
    assert (found.tensors, found.of_tensors, found.listed) == (None, None, [])


# Large ones


@pytest.mark.usefixtures("small_limit")
def test_a_sampled_tensor_is_the_same_in_any_container() -> None:
    tensors = made([200_000, 100_000, 50])
    found = [held(tensors, container) for container in CONTAINERS]
    assert all(each.sampled for each in found) and len({each.of_tensors for each in found}) == 1
    tensors["t1"][:] = 0
    zeroed = held(tensors, one_file)
    assert zeroed.of_tensors != found[0].of_tensors
    assert [each.size for each in zeroed.tensors or () if each.zero] == [400_000]


@pytest.mark.usefixtures("small_limit")
def test_samples_reach_from_the_first_to_the_last_byte(tmp_path: pathlib.Path) -> None:
    (tmp_path / FOLDER).mkdir()
    found = set()
    for changed in (None, 0, 3_999_999, 40):
        raw = bytearray(4_000_000)
        if changed is not None:
            raw[changed] = 1
        (tmp_path / FOLDER / "large").write_bytes(raw)
        found.add(content_of(tmp_path).sha256)
    assert len(found) == 4


@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize("pieces", [1, 7, 100])
def test_what_is_read_is_bounded(tmp_path: pathlib.Path, pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the size is: 8 and 16 MB here."""
    parts, read = digests._parts, list[int]()

    def counted(*given: object) -> Iterator[bytes]:
        for part in parts(*given):  # type: ignore[arg-type]
            read.append(len(part))
            yield part

    monkeypatch.setattr(digests, "_parts", counted)
    for size in (2_000_000, 4_000_000):
        (tmp_path / str(size)).mkdir()
        one_file(tmp_path / str(size) / FOLDER, made([size // pieces] * pieces))
        read.clear()
        content_of(tmp_path / str(size))
        assert 2**19 < sum(read) < 2 * 2**20 + pieces * digests.SHARE_MIN


# Hostile ones


def _with_header(size: int, *spans: tuple[int, int]) -> Callable[[pathlib.Path], object]:
    """A file whose header has a tensor at each of these places behind it, and so many bytes there."""
    rows = [{"dtype": "U8", "shape": [abs(end - begin)], "data_offsets": [begin, end]} for begin, end in spans]
    text = json.dumps({str(number): row for number, row in enumerate(rows)}).encode()
    return lambda folder: (folder / "a.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(size))


def _one_place_for_all(folder: pathlib.Path) -> None:
    """An archive whose table names the same bytes 30,000 times."""
    path = folder / "a.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", b"x" * 1000)
        archive.writestr("a/data/0", bytes(100_000))
        archive.filelist += [archive.filelist[-1]] * 30_000
        archive._didModify = True  # type: ignore[attr-defined]


def _a_hole(folder: pathlib.Path) -> None:
    with (folder / "a.pt").open("wb") as file:
        file.write(b"PK\x03\x04")
        file.truncate(2**42)


def _torn(folder: pathlib.Path) -> None:
    save(folder / "a.pt", state(1))
    os.truncate(folder / "a.pt", 3000)


def _deep(folder: pathlib.Path) -> None:
    (folder / "a.pt").write_bytes(b"")
    inner = os.open(folder, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=inner)
        outer, inner = inner, os.open("d", os.O_RDONLY, dir_fd=inner)
        os.close(outer)
    os.close(inner)


MANY = digests.TENSORS_MAX + 1
HOSTILE = {
    "each tensor is the whole file": _with_header(2**20, *[(0, 2**20)] * 10_000),
    "far away": _with_header(9, (2**62, 2**62 + 9)),
    "backwards": _with_header(9, (9, 0)),
    "too many": _with_header(20 * MANY, *((20 * number, 20 * number + 20) for number in range(MANY))),
    "one place for all": _one_place_for_all,
    "a hole": _a_hole,
    "ends of nothing": lambda folder: (folder / "a.pt").write_bytes(b"PK\x03\x04" + b"PK\x05\x06" * 2**20),
    "deep": _deep,
    "torn": _torn,
}


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_listed_and_digested_in_bounds(
    make: Callable[[pathlib.Path], object], tmp_path: pathlib.Path
) -> None:
    (tmp_path / FOLDER).mkdir()
    make(tmp_path / FOLDER)
    begin = time.process_time()
    tracemalloc.start()
    try:
        found = content_of(tmp_path)
        (listed,) = list_checkpoints(CheckpointFolder.look(tmp_path, FOLDER)).checkpoints
        assert tracemalloc.get_traced_memory()[1] < 100 * 2**20
    finally:
        tracemalloc.stop()
    assert found.tensors is None and len(found.sha256) == 64
    assert [listed.path] == untrusted_files.files_below(tmp_path, FOLDER)
    assert time.process_time() - begin < 60
    subprocess.run(["rm", "-rf", str(tmp_path / FOLDER)], check=True)  # Python's own removal nests as deep


def test_an_archive_of_far_too_many_files_is_not_half_understood(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / FOLDER / "a.pt", state(1))
    with zipfile.ZipFile(tmp_path / FOLDER / "a.pt", "a") as archive:
        for number in range(200):
            archive.writestr(f"more/{number}", b"text")
    assert len(content_of(tmp_path).tensors or ()) == 3
    with_a_header(tmp_path / "many" / FOLDER, made([30] * 700 + [50]))
    found = content_of(tmp_path / "many")
    assert len(found.tensors or ()) == 701 and len(found.listed) == digests.LISTED_MAX, "as many as are told one by one"
    assert found.listed[0].split()[0] == "200" and len({each.split()[1] for each in found.listed}) == digests.LISTED_MAX
    monkeypatch.setattr(digests, "TENSORS_MAX", 5)
    assert content_of(tmp_path).tensors is None
