"""Every layout, on real files: what is found, which step it is, what is finished, and where its tensors lie."""

import os
import pathlib
import struct
import tracemalloc
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is missing: make setup")
import torch
from checkpoint_files import POINTED, WRITERS, save, state, write

from harness.errors import UsageError
from harness.node.observer import identity
from harness.node.observer.checkpoint_ledger import Ledger, Saved
from harness.trainers.checkpoints.contract import AUTO, Listing, layout_names, list_checkpoints, load_layout
from harness.trainers.checkpoints.shared import formats, names
from harness.trainers.checkpoints.shared.checkpoint_folder import CheckpointFolder

FOLDER = "checkpoints"


def look(run_dir: pathlib.Path, layout: str = AUTO) -> Listing:
    return list_checkpoints(CheckpointFolder.look(run_dir, FOLDER), layout)


def place_of(path: pathlib.Path) -> CheckpointFolder:
    return CheckpointFolder(path.parent, ".")


def test_each_layout_has_a_writer_here_an_unknown_one_is_refused_and_an_empty_place_has_none(
    tmp_path: pathlib.Path,
) -> None:
    assert set(layout_names()) == set(WRITERS)
    with pytest.raises(UsageError, match="did you mean lightning"):
        load_layout("lightening")
    assert look(tmp_path) == Listing(AUTO, ())
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "notes.txt").write_text("hello")
    assert look(tmp_path).checkpoints == ()


@pytest.mark.parametrize("layout", WRITERS)
def test_it_is_recognised_with_steps_newest_first_and_finished(tmp_path: pathlib.Path, layout: str) -> None:
    write(tmp_path / FOLDER, layout, 20, 100)
    for listing in (look(tmp_path), look(tmp_path, layout)):
        assert listing.layout == layout
        assert [each.step for each in listing.checkpoints] == [100, 20]
        assert all(each.whole and each.files for each in listing.checkpoints)
        assert (listing.pointer is not None) == (layout in POINTED)
        if listing.pointer:
            assert listing.pointer.target == listing.checkpoints[0].path
            assert listing.pointer.path not in listing.checkpoints[0].files


@pytest.mark.parametrize("layout", WRITERS)
def test_the_spans_hold_the_tensors_bytes_and_nothing_else(tmp_path: pathlib.Path, layout: str) -> None:
    """Each tensor's bytes lie whole in one span, in one of the checkpoint's files; the pickle and the names do not."""
    write(tmp_path / FOLDER, layout, 20)
    place, newest = CheckpointFolder.look(tmp_path, FOLDER), look(tmp_path).checkpoints[0]
    spans = [(tmp_path / path, span) for path in newest.files for span in formats.spans(place, path)]
    inside = b"".join(path.read_bytes()[start:end] for path, (start, end) in spans)
    for tensor in state(20)["model"].values():
        assert tensor.numpy().tobytes() in inside
    assert b"weight" not in inside and b"torch" not in inside


@pytest.mark.parametrize("layout", sorted(set(WRITERS) - {"reference"}))
def test_a_torn_file_is_not_finished(tmp_path: pathlib.Path, layout: str) -> None:
    write(tmp_path / FOLDER, layout, 20, 100)
    newest, place = look(tmp_path).checkpoints[0], CheckpointFolder.look(tmp_path, FOLDER)
    torn = next(path for path in newest.files if formats.spans(place, path))
    os.truncate(tmp_path / torn, place.sizes[torn] - 30)
    assert [each.step for each in look(tmp_path).finished] == [20]


@pytest.mark.parametrize(
    ("layout", "file", "says"),
    [
        ("reference", "step-00000100/manifest.json", None),
        ("dcp", "step-100/.metadata", None),
        ("hugging_face", "checkpoint-100/trainer_state.json", None),
        ("safetensors", "step_100/model-0.safetensors", None),
        ("safetensors", "step_100/model.safetensors.index.json", '{"weight_map": {"a": "gone.safetensors"}}'),
        ("safetensors", "step_100/model.safetensors.index.json", "["),
        ("megatron", "latest_checkpointed_iteration.txt", "20"),
        ("deepspeed", "latest", "global_step20"),
    ],
)
def test_without_its_mark_or_what_that_names_it_is_not_finished(
    tmp_path: pathlib.Path, layout: str, file: str, says: str | None
) -> None:
    write(tmp_path / FOLDER, layout, 20, 100)
    (tmp_path / FOLDER / file).unlink() if says is None else (tmp_path / FOLDER / file).write_text(says)
    assert [each.step for each in look(tmp_path).finished] == [20]


def test_a_temporary_name_is_not_finished(tmp_path: pathlib.Path) -> None:
    write(tmp_path / FOLDER, "torch_file", 20)
    save(tmp_path / FOLDER / "ckpt_40.pt.tmp", state(40))
    assert [(each.step, each.whole) for each in look(tmp_path).checkpoints] == [(40, False), (20, True)]


def test_files_of_all_ranks_are_one_checkpoint(tmp_path: pathlib.Path) -> None:
    for step in (5, 10):
        for rank in range(3):
            save(tmp_path / FOLDER / f"ckpt_{step}_rank{rank}.pt", state(step))
    listing = look(tmp_path)
    assert [(each.step, len(each.files)) for each in listing.checkpoints] == [(10, 3), (5, 3)]


@pytest.mark.parametrize(
    ("content", "step"),
    [
        *((state(1) | {key: 12345}, 12345) for key in ("step", "global_step", "iter_num")),
        ({"optimizer": {"step": 3, "lr": 1}, "model": state(1)["model"], "epoch": 4}, None),  # of something in it
    ],
    ids=["step", "global_step", "iter_num", "inner"],
)
def test_the_step_is_read_from_inside_without_unpickling(
    tmp_path: pathlib.Path, content: Any, step: int | None
) -> None:
    save(tmp_path / FOLDER / "ckpt.pt", content)
    assert look(tmp_path).checkpoints[0].step == step


@pytest.mark.parametrize("name", ["checkpoint_2026-11-28_04-46-12.637288", "checkpoint_000003", "best"])
def test_the_ledger_of_the_nodes_tells_the_step_where_the_name_does_not(tmp_path: pathlib.Path, name: str) -> None:
    path = tmp_path / FOLDER / name / "part.pt"
    save(path, {"model": state(1)["model"], "epoch": 3})
    ledger = Ledger(tmp_path / "events" / "node0")
    ledger.add(Saved(str(path), 60, identity.lineage(str(path)) or ""))
    assert [each.step for each in look(tmp_path).checkpoints] == [60]
    (tmp_path / "events" / "node0" / "checkpoints.ledger").write_text('{"kind": "saved"}\nno JSON\n')
    assert look(tmp_path).checkpoints[0].step == names.step_in(name)


@pytest.mark.parametrize("tag", ["tag_40", "global_step40", "."])
def test_deepspeeds_files_are_known_under_any_tag(tmp_path: pathlib.Path, tag: str) -> None:
    folder = tmp_path / FOLDER / tag
    save(folder / "mp_rank_00_model_states.pt", {"module": state(1)["model"], "global_steps": 40})
    save(folder / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", state(1)["optimizer"])
    (tmp_path / FOLDER / "latest").write_text(tag)
    listing = look(tmp_path)
    assert [(listing.layout, each.step, each.whole) for each in listing.checkpoints] == [("deepspeed", 40, True)]


def test_an_evil_pickle_is_not_executed(tmp_path: pathlib.Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(tmp_path / "evil"),)

    save(tmp_path / FOLDER / "ckpt.pt", {"step": 8, "evil": Evil()})
    assert look(tmp_path).checkpoints[0].step == 8
    assert not (tmp_path / "evil").exists()


def test_a_shard_is_many_archives_in_a_row(tmp_path: pathlib.Path) -> None:
    first, second, shard = tmp_path / "a.pt", tmp_path / "b.pt", tmp_path / "shard.distcp"
    save(first, state(1)), save(second, state(2))
    shard.write_bytes(b"\x80\x04no tensor." + first.read_bytes() + b"between" + second.read_bytes())
    found = formats.spans(place_of(shard), "shard.distcp")
    assert len(found) == 2 * len(formats.spans(place_of(first), "a.pt"))


@pytest.mark.parametrize("size", [0, 3, 22, 100, 3000])
def test_a_damaged_file_has_no_spans_and_never_raises(tmp_path: pathlib.Path, size: int) -> None:
    save(tmp_path / "whole.pt", state(1))
    content = (tmp_path / "whole.pt").read_bytes()
    (tmp_path / "torn.pt").write_bytes(content[:size])
    (tmp_path / "end.pt").write_bytes(content[-size:] if size else b"")
    (tmp_path / "huge.safetensors").write_bytes(struct.pack("<Q", 2**40) + b"{" + content[:size])
    (tmp_path / "long.safetensors").write_bytes(struct.pack("<Q", 90 * 2**20) + b'{"a":')
    (tmp_path / "odd.safetensors").write_bytes(struct.pack("<Q", 2) + b"{]" + content[:size])
    place = place_of(tmp_path / "torn.pt")
    for name in ("torn.pt", "huge.safetensors", "long.safetensors"):
        assert formats.spans(place, name) == []
    assert not any(formats.is_complete(place, f"{name}.safetensors") for name in ("odd", "long"))
    formats.spans(place, "end.pt")


def test_links_and_pipes_of_a_node_are_not_followed(tmp_path: pathlib.Path) -> None:
    write(tmp_path / FOLDER, "torch_file", 20)
    (tmp_path / "secret.pt").write_bytes(b"PK\x03\x04")
    (tmp_path / FOLDER / "ckpt_40.pt").symlink_to(tmp_path / "secret.pt")
    (tmp_path / FOLDER / "out").symlink_to("/")
    os.mkfifo(tmp_path / FOLDER / "ckpt_60.pt")
    assert [each.step for each in look(tmp_path).checkpoints] == [20]


@pytest.mark.parametrize("begin, part, end", [
    (b'{"":[', b"[],", b"0]}"),
    (b'{"":[', b"{},", b"0]}"),
    (b"{", b'"a":{"data_offsets":[0,1]},', b'"b":0}'),
])  # fmt: skip
def test_a_hostile_header_takes_little_memory(tmp_path: pathlib.Path, begin: bytes, part: bytes, end: bytes) -> None:
    (tmp_path / FOLDER).mkdir()
    size = 8 * 2**20
    header = begin + part * (size // len(part)) + end
    (tmp_path / FOLDER / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    tracemalloc.start()
    try:
        assert len(look(tmp_path).checkpoints) == 1
        assert tracemalloc.get_traced_memory()[1] < 3 * size
    finally:
        tracemalloc.stop()


def test_what_was_read_is_what_torch_loads(tmp_path: pathlib.Path) -> None:
    """A bit of a span, flipped, changes one element of one tensor."""
    save(tmp_path / "ckpt.pt", state(1))
    start, end = max(formats.spans(place_of(tmp_path / "ckpt.pt"), "ckpt.pt"), key=lambda span: span[1] - span[0])
    assert end - start == 3000 * 4
    content = bytearray((tmp_path / "ckpt.pt").read_bytes())
    content[start + 8] ^= 1
    (tmp_path / "ckpt.pt").write_bytes(content)
    loaded = torch.load(tmp_path / "ckpt.pt")["model"]["a.weight"]
    assert (loaded != state(1)["model"]["a.weight"]).nonzero().flatten().tolist() == [2]
