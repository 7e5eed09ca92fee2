"""Sixty damages to saves of six layouts are told apart from whole ones, with the file and the tensor where that is known."""

import json
import os
import pathlib
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is missing: make setup")
import checkpoint_files
import torch
from checkpoint_files import save, save_safetensors
from hypothesis import given, settings
from hypothesis import strategies as st
from preflight.damages import DAMAGES, FOLDERS, STEP, WRITERS, Damage, edit, tensors, write_all

from harness.preflight.verification import Place, Save, State
from harness.preflight.verifier import Verifier


def verified(place: pathlib.Path, keep: bool = False) -> dict[str, Save]:
    """By the path in the place."""
    found = Verifier(Place(place), keep=keep).all()
    return {save.path.partition(f"{place.name}/")[2]: save for save in found}


def words(saves: dict[str, Save]) -> str:
    return "\n".join(f"{path} {each.words}" for path, save in saves.items() for each in save.findings)


def states(place: pathlib.Path) -> list[State]:
    return [save.state for save in verified(place).values()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    root = tmp_path_factory.mktemp("saves")
    for layout in WRITERS:
        write_all(root / layout, layout)
    return root


def damaged(whole: pathlib.Path, tmp_path: pathlib.Path, damage: Damage, keep: bool) -> dict[str, Save]:
    place = tmp_path / "checkpoints"
    shutil.copytree(whole / damage.layout, place, symlinks=True)
    if keep:
        verified(place, keep=True)
    damage.make(place)
    return verified(place)


@pytest.mark.parametrize("layout", WRITERS)
def test_whole_saves_are_whole(whole: pathlib.Path, tmp_path: pathlib.Path, layout: str) -> None:
    place = tmp_path / "checkpoints"
    shutil.copytree(whole / layout, place, symlinks=True)
    by = "structure" if layout in ("safetensors", "hugging_face") else "checksums"
    for keep, verified_by in ((False, by), (True, by), (False, "manifest")):
        saves = verified(place, keep)
        assert words(saves) == ""
        assert [save.step for save in saves.values()] == [20, 40, 60, 100]
        assert {save.verified_by for save in saves.values()} == {verified_by}


@pytest.mark.parametrize("layout", checkpoint_files.WRITERS)
def test_each_layout_that_is_known_is_verified(tmp_path: pathlib.Path, layout: str) -> None:
    checkpoint_files.write(tmp_path, layout, 20, 100)
    assert [(save.step, save.state) for save in verified(tmp_path).values()] == [(20, State.WHOLE), (100, State.WHOLE)]
    if layout == "reference":
        (tmp_path / "step-00000100" / "manifest.json").unlink()
        assert "step-00000100 lacks what is written last: manifest.json" in words(verified(tmp_path))


@pytest.mark.parametrize(
    ("change", "state", "told"),
    [
        (lambda files: files["__0_0.distcp"].update(sha256="0" * 64), State.DAMAGED, "__0_0.distcp: is not what"),
        (lambda files: files[".metadata"].update(bytes=5), State.DAMAGED, ".metadata: is not what manifest.json tells"),
        (lambda files: files.update(x=files[".metadata"]), State.DAMAGED, "/x: is missing"),
        (lambda files: files.update({"../x": files[".metadata"]}), State.DAMAGED, "/../x: is missing"),
        (lambda files: files.pop(".metadata"), State.SUSPICIOUS, ".metadata: is not named by manifest.json"),
        (lambda files: files.clear(), State.UNKNOWN, "does not tell what the files hold"),
        (lambda files: files.update(x=5), State.UNKNOWN, "does not tell what the files hold"),
    ],
)
def test_a_manifest_of_the_trainers_own_is_held_against_its_files(
    tmp_path: pathlib.Path, change: Callable[[dict[str, Any]], object], state: State, told: str
) -> None:
    checkpoint_files.write(tmp_path, "reference", 20, 100)
    edit(lambda manifest: change(manifest["files"]))(tmp_path / "step-00000100" / "manifest.json")
    saves = verified(tmp_path)
    assert [save.state for save in saves.values()] == [State.WHOLE, state]
    assert told in words(saves)


def test_an_index_of_files_of_torch_is_held_against_them(tmp_path: pathlib.Path) -> None:
    for step, more in ((20, {}), (40, {"ghost": "pytorch_model-00001-of-00002.bin"})):
        where = dict[str, str]()
        for number, name in enumerate(("a", "b"), 1):
            where[name] = f"pytorch_model-0000{number}-of-00002.bin"
            tied = torch.randn(40)
            save(tmp_path / f"checkpoint-{step}" / where[name], {name: tied, f"{name}.tied": tied})
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps({"global_step": step}))
        index = tmp_path / f"checkpoint-{step}" / "pytorch_model.bin.index.json"
        index.write_text(json.dumps({"weight_map": where | more}))
    assert words(verified(tmp_path)) == (
        "checkpoint-40 checkpoint-40/pytorch_model-00001-of-00002.bin: ghost is not in it, and the index says so"
    )


@pytest.mark.parametrize("layout", ["megatron", "deepspeed"])
def test_without_what_is_written_last_nothing_tells_that_they_were_finished(
    whole: pathlib.Path, tmp_path: pathlib.Path, layout: str
) -> None:
    place = tmp_path / "checkpoints"
    shutil.copytree(whole / layout, place, ignore=shutil.ignore_patterns("latest*"))
    assert {save.state for save in verified(place).values()} == {State.SUSPICIOUS}


def test_names_of_folders_above_and_beside_say_nothing_of_a_save(tmp_path: pathlib.Path) -> None:
    place = tmp_path / "run-tmp"
    checkpoint_files.write(place / "one", "reference", 20)
    checkpoint_files.write(place / "two", "hugging_face", 20)
    save(place / "three" / "step-20" / "model.pt", {"w": torch.ones(40)})
    save(place / "four" / "checkpoint-20" / "model.pt", {"w": torch.ones(40)})
    assert words(verified(place)) == ""
    assert len(verified(place)) == 4


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.id)
def test_a_damage_is_told_with_what_it_hit(whole: pathlib.Path, tmp_path: pathlib.Path, damage: Damage) -> None:
    saves = damaged(whole, tmp_path, damage, keep=False)
    hit = {path for path, save in saves.items() if save.state is not State.WHOLE}
    if damage.told is State.WHOLE:  # without a checksum nothing can tell, and that is told, too
        assert not hit
        assert saves[FOLDERS[damage.layout].format(STEP)].verified_by == "structure"
        return
    assert len(hit) == 1, words(saves)  # no neighbour is accused
    assert hit == {FOLDERS[damage.layout].format(STEP)} or damage.of_pointer
    assert {saves[path].state for path in hit} == {damage.told}, words(saves)
    for name in damage.names:
        assert name in words(saves)


@pytest.mark.parametrize("damage", [each for each in DAMAGES if not each.of_pointer], ids=lambda damage: damage.id)
def test_with_a_manifest_each_is_a_damage(whole: pathlib.Path, tmp_path: pathlib.Path, damage: Damage) -> None:
    saves = damaged(whole, tmp_path, damage, keep=True)
    hit = [path for path, save in saves.items() if save.state is not State.WHOLE]
    assert hit == [FOLDERS[damage.layout].format(STEP)], words(saves)
    assert saves[hit[0]].state in (State.DAMAGED, damage.told), words(saves)
    assert damage.file.removeprefix("version_0/") in words(saves) or saves[hit[0]].saved_again
    if damage.tensor and damage.do.__name__ in ("flip", "zeros"):
        assert any(each.tensor.endswith(("exp_avg", "fp32", damage.tensor)) for each in saves[hit[0]].findings)


@pytest.fixture(scope="module", params=WRITERS)
def one(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[pathlib.Path]:
    place = tmp_path_factory.mktemp("one") / "checkpoints"
    WRITERS[request.param](place, STEP)
    verified(place, keep=True)
    yield place


@settings(max_examples=60)
@given(data=st.data())
def test_any_byte_that_changes_is_found_and_named(one: pathlib.Path, data: st.DataObject) -> None:
    files = sorted(
        path for path in one.rglob("*") if path.is_file() and not path.is_symlink() and ".chaos" not in str(path)
    )
    path = data.draw(st.sampled_from([file for file in files if not file.name.startswith("latest")]))
    before = path.read_bytes()
    at = data.draw(st.integers(0, len(before) - 1))
    path.write_bytes(before[:at] + bytes([before[at] ^ data.draw(st.integers(1, 255))]) + before[at + 1 :])
    try:
        saves = verified(one)
    finally:
        path.write_bytes(before)
    (save,) = saves.values()
    assert save.state is State.DAMAGED
    named = [each for each in save.findings if path.as_posix().endswith(each.file)]
    assert named
    in_tensor = [
        name
        for part in range(3)
        for name, tensor in tensors(STEP, part).items()
        if (begin := before.find(tensor.numpy().tobytes())) >= 0 and begin <= at < begin + tensor.numel() * 4
    ]
    if in_tensor:
        assert any(each.tensor.endswith(("exp_avg", "fp32", *in_tensor)) for each in named)


def test_a_manifest_tells_what_it_does_not_hold_and_a_newest_save_that_is_gone(tmp_path: pathlib.Path) -> None:
    write_all(tmp_path, "hugging_face")
    verified(tmp_path, keep=True)
    shutil.rmtree(tmp_path / "checkpoint-20")  # a job removes its oldest save
    assert words(verified(tmp_path)) == ""
    save(tmp_path / "checkpoint-60" / "extra.pt", {"w": torch.ones(4)})
    told = "checkpoint-60 checkpoint-60/extra.pt: is not in its manifest, so nothing tells whether it changed"
    saves = verified(tmp_path)
    assert words(saves) == told and saves["checkpoint-60"].state is State.SUSPICIOUS
    (tmp_path / "checkpoint-60" / "extra.pt").unlink()
    shutil.rmtree(tmp_path / "checkpoint-100")
    assert words(verified(tmp_path)) == "checkpoint-100 is gone, and its manifest is there"


def test_a_file_that_is_empty_now_is_suspicious(tmp_path: pathlib.Path) -> None:
    write_all(tmp_path, "hugging_face")
    for step in (20, 40, 60, 100):
        (tmp_path / f"checkpoint-{step}" / "mark").write_bytes(b"")
        (tmp_path / f"checkpoint-{step}" / "rng").write_bytes(b"state" if step < 100 else b"")
    told = f"checkpoint-100 checkpoint-100/rng: is empty, and that in {tmp_path.name}/checkpoint-60 is not"
    assert words(verified(tmp_path)) == told


@pytest.mark.parametrize(("name", "age_s", "state"), [("checkpoint-120", 100, State.SUSPICIOUS), ("checkpoint-120", 0, State.UNFINISHED), ("checkpoint-10", 100, None), ("logs-120", 100, None)])  # fmt: skip
def test_a_newest_save_without_a_file_is_told(
    tmp_path: pathlib.Path, name: str, age_s: float, state: State | None
) -> None:
    write_all(tmp_path, "hugging_face")
    (tmp_path / name / "deeper").mkdir(parents=True)
    os.utime(tmp_path / name, (time.time() - age_s,) * 2)
    saves = verified(tmp_path)
    assert words(saves) == (f"{name} holds no file" if state else "")
    assert state is None or saves[name].state is state


def test_a_save_that_was_made_again_is_not_damaged(tmp_path: pathlib.Path) -> None:
    """A job that went back comes to the same step once more. To keep it anew settles it."""
    place = tmp_path / "checkpoints"
    write_all(place, "hugging_face")
    verified(place, keep=True)
    shutil.rmtree(place / "checkpoint-60")
    WRITERS["hugging_face"](place, 61)
    (place / "checkpoint-61").rename(place / "checkpoint-60")
    state = place / "checkpoint-60" / "trainer_state.json"
    state.write_text(state.read_text().replace("61", "60"))
    assert verified(place)["checkpoint-60"].state is State.SUSPICIOUS
    verified(place, keep=True)
    assert words(verified(place)) == ""


def test_numbers_that_become_infinite_or_zero_at_once_are_suspicious(tmp_path: pathlib.Path) -> None:
    for step, value, zeros in ((20, 1.0, 0), (40, 2.0, 2048), (60, float("nan"), 4096), (80, 3.0, 7000)):
        half = torch.randn(8192)
        half[:zeros] = 0
        content = {"w": torch.full((40,), value), "mask": torch.full((40,), float("-inf")), "half": half, "step": step}
        torch.save(content, tmp_path / f"ckpt_{step}.pt")
    assert states(tmp_path) == [State.WHOLE, State.WHOLE, State.SUSPICIOUS, State.SUSPICIOUS]
    told = words(verified(tmp_path))
    assert "ckpt_60.pt: w has 40 numbers" in told and "ckpt_80.pt: half" in told


def test_a_save_may_hold_several_distributed_checkpoints(tmp_path: pathlib.Path) -> None:
    """As Accelerate saves with FSDP."""
    checkpoint_files.hugging_face(tmp_path, 5)
    for part in ("pytorch_model_fsdp_0", "optimizer_0"):
        checkpoint_files.save_dcp(tmp_path / "checkpoint-5" / part, {"w": torch.ones(9)})
    assert words(verified(tmp_path)) == ""
    (tmp_path / "checkpoint-5" / "optimizer_0" / "__0_0.distcp").unlink()
    told = "checkpoint-5 checkpoint-5/optimizer_0/__0_0.distcp: w is lost: the file is missing"
    assert words(verified(tmp_path)) == told


def test_what_healthy_jobs_do_is_not_suspicious(tmp_path: pathlib.Path) -> None:
    """Moments of rows that are no longer trained become zero, a loader begins anew, an adapter's rank is no process, a
    file is frozen, there is another number of ranks."""
    for step, ranks in ((20, 4), (40, 4), (60, 2), (80, 2)):
        moments = torch.randn(8, 2048)
        moments[: step // 20] = 0
        loader = torch.get_rng_state() if step % 40 else torch.zeros(5056, dtype=torch.uint8)
        files: dict[str, Any] = {"a/ckpt_{}": moments, "a/loader_step_{}": loader}
        files |= {"a/adapter-rank16-step-{}": torch.randn(40), "b/ckpt_{}": torch.ones(500)}
        files |= {f"b/ckpt_{{}}_rank{rank}": torch.randn(10_000 // ranks) for rank in range(ranks)}
        for name, tensor in files.items():
            save(tmp_path / f"{name.format(step)}.pt", {"it": tensor, "step": step})
    assert words(verified(tmp_path / "a")) == "" == words(verified(tmp_path / "b"))


def test_ranks_between_others_are_missed_and_first_ranks_of_nodes_alone_are_not_sure(tmp_path: pathlib.Path) -> None:
    for rank in (0, 1, 3):
        save(tmp_path / "some" / f"ckpt_5_rank{rank}.pt", {"step": 5, "w": torch.randn(40)})
        save(tmp_path / "first" / f"ckpt_5_rank{8 * rank}.pt", {"step": 5, "w": torch.randn(40)})
    (found,) = verified(tmp_path / "some").values()
    told = ["ckpt_5_rank2.pt: is missing, and ranks with larger numbers are there"]
    assert [each.words for each in found.findings] == told
    assert states(tmp_path / "first") == [State.SUSPICIOUS]


def write_ranks(place: pathlib.Path, ranks: dict[int, int]) -> None:
    """As the Trainer of Hugging Face does, with a state of each rank's generators. `ranks`: by step."""
    for step, count in ranks.items():
        WRITERS["hugging_face"](place, step)
        for rank in range(count):
            save(place / f"checkpoint-{step}" / f"rng_state_{rank}.pth", {"cpu": torch.get_rng_state(), "rank": rank})


@pytest.mark.parametrize("steps", [(1, 2), (1, 2, 3), (140, 160), (100, 120, 140, 160)])
def test_a_rank_whose_file_is_gone_is_missed(tmp_path: pathlib.Path, steps: tuple[int, ...]) -> None:
    write_ranks(tmp_path, dict.fromkeys(steps, 2))
    assert states(tmp_path) == [State.WHOLE] * len(steps)
    newest = tmp_path / f"checkpoint-{steps[-1]}"
    (newest / "rng_state_1.pth").unlink()  # one rank that goes on alone would write the same
    assert states(tmp_path) == [State.WHOLE] * (len(steps) - 1) + [State.SUSPICIOUS]
    assert "rng_state_1.pth: is missing, and most other saves have it; does the job go" in words(verified(tmp_path))
    (newest / "rng_state_0.pth").rename(newest / "rng_state_1.pth")  # no job writes that
    assert states(tmp_path)[-1] is (State.DAMAGED if len(steps) > 2 else State.SUSPICIOUS)
    assert f"checkpoint-{steps[-1]}/rng_state_0.pth: is missing" in words(verified(tmp_path))


@pytest.mark.parametrize(("step", "state"), [(2, State.DAMAGED), (3, State.SUSPICIOUS)])
def test_a_last_save_of_the_model_alone_is_no_damage(tmp_path: pathlib.Path, step: int, state: State) -> None:
    """Some jobs write no optimizer at their end, as nobody goes on from there."""
    write_ranks(tmp_path, dict.fromkeys((1, 2, 3), 1))
    (tmp_path / f"checkpoint-{step}" / "optimizer.pt").unlink()
    assert states(tmp_path) == [state if number == step else State.WHOLE for number in (1, 2, 3)]


@pytest.mark.parametrize(
    ("ranks", "odd"),
    [((4, 4, 2, 2), ()), ((2, 2, 4, 4), ()), ((2, 4, 4), (0,)), ((4, 4, 2), (2,)), ((4, 2, 4, 4), (1,)), ((4, 3, 2, 1), ())],
)  # fmt: skip
def test_another_number_of_ranks_is_never_a_damage(
    tmp_path: pathlib.Path, ranks: tuple[int, ...], odd: tuple[int, ...]
) -> None:
    write_ranks(tmp_path, {20 * number: count for number, count in enumerate(ranks, 1)})
    expected = [State.SUSPICIOUS if number in odd else State.WHOLE for number in range(len(ranks))]
    assert states(tmp_path) == expected


def test_a_save_that_is_being_written_and_files_that_gather_say_nothing_about_the_others(
    tmp_path: pathlib.Path,
) -> None:
    write_ranks(tmp_path, {20: 2, 40: 2, 60: 2})
    for number, step in enumerate((20, 40, 60), 1):
        folder = tmp_path / f"checkpoint-{step}"
        (folder / f"events.{1700000000 + step}.log").write_text("x")
        for log in range(number):
            (folder / f"part_{log}.log").write_text("x")
    assert words(verified(tmp_path)) == ""
    write_ranks(other := tmp_path / "other", {20: 2, 40: 2, 60: 2})
    for lost in ("40/rng_state_1.pth", "60/rng_state_1.pth", "60/trainer_state.json"):
        (other / f"checkpoint-{lost}").unlink()
    assert states(other) == [State.WHOLE, State.SUSPICIOUS, State.DAMAGED]


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    root = tmp_path_factory.mktemp("several")
    for layout in FOLDERS:
        write_all(root / layout, layout)
    write_ranks(root / "hugging_face", dict.fromkeys((20, 40, 60, 100), 3))
    return root


@settings(max_examples=60)
@given(data=st.data())
def test_a_save_is_never_whole_without_a_file_that_all_others_have(several: pathlib.Path, data: st.DataObject) -> None:
    layout = data.draw(st.sampled_from([each for each in FOLDERS if each != "lightning"]))  # has one file for a save
    folder = several / layout / FOLDERS[layout].format(data.draw(st.sampled_from((20, 40, 60, 100))))
    path = data.draw(st.sampled_from(sorted(each for each in folder.rglob("*") if each.is_file())))
    content = path.read_bytes()
    path.unlink()
    try:
        saves = verified(several / layout)
    finally:
        path.write_bytes(content)
    assert [name for name, save in saves.items() if save.state is not State.WHOLE] == [folder.name]


def write_weights(place: pathlib.Path, *steps: int) -> None:
    for step in steps:
        folder = place / f"checkpoint-{step}"
        save(folder / "pytorch_model.bin", {"w": torch.randn(400)})
        save(folder / "optimizer.pt", {"state": {0: {"exp_avg": torch.randn(400)}}})
        save(folder / "frozen.bin", {"embedding": torch.ones(400)})
        save(folder / "scheduler.pt", {"last_epoch": 5})
        save(folder / "training_args.bin", {"seed": 42})
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))


@pytest.mark.parametrize("file", ["optimizer.pt", "pytorch_model.bin"])
def test_a_file_of_an_older_save_is_suspicious_and_a_frozen_one_is_not(tmp_path: pathlib.Path, file: str) -> None:
    write_weights(tmp_path, 100, 120, 140)
    assert words(verified(tmp_path)) == ""
    shutil.copyfile(tmp_path / "checkpoint-120" / file, tmp_path / "checkpoint-140" / file)
    told = f"checkpoint-140 checkpoint-140/{file}: holds what it held in {tmp_path.name}/checkpoint-120"
    assert words(verified(tmp_path)) == told
    shutil.rmtree(tmp_path / "checkpoint-100")
    for step in (120, 140):  # of two saves, nothing else tells what is frozen
        (tmp_path / f"checkpoint-{step}" / "frozen.bin").unlink()
    assert states(tmp_path) == [State.WHOLE, State.SUSPICIOUS] and told in words(verified(tmp_path))


def test_saves_that_are_one_another_but_for_their_steps_are_suspicious(tmp_path: pathlib.Path) -> None:
    write_weights(tmp_path, 100, 160)
    for step in (120, 140):
        shutil.copytree(tmp_path / "checkpoint-100", tmp_path / f"checkpoint-{step}")
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    assert states(tmp_path) == [State.WHOLE, State.SUSPICIOUS, State.SUSPICIOUS, State.WHOLE]


def test_an_adapter_beside_frozen_weights_and_a_copy_of_the_same_step_are_healthy(tmp_path: pathlib.Path) -> None:
    write_weights(tmp_path, 100, 120, 140)
    for step in (100, 120, 140):
        folder = tmp_path / f"checkpoint-{step}"
        save(folder / "pytorch_model.bin", {"w": torch.ones(400)})
        save_safetensors(folder / "adapter_model.safetensors", {"lora": torch.randn(50)})
    shutil.copytree(tmp_path / "checkpoint-140", tmp_path / "best" / "checkpoint-140")
    assert words(verified(tmp_path)) == ""


def test_a_file_of_an_older_save_is_found_where_folders_tell_an_epoch(tmp_path: pathlib.Path) -> None:
    for epoch in (1, 2, 3):
        save(tmp_path / f"epoch_{epoch}" / "model.pt", {"w": torch.randn(400)})
        save(tmp_path / f"epoch_{epoch}" / "optimizer.pt", {"exp_avg": torch.randn(400)})
    assert words(verified(tmp_path)) == ""
    shutil.copy2(tmp_path / "epoch_1" / "model.pt", tmp_path / "epoch_3" / "model.pt")
    assert "epoch_3/model.pt: holds what it held in" in words(verified(tmp_path))


@pytest.mark.parametrize("names", ["model{}.safetensors", "pytorch_model{}.bin"])
@pytest.mark.parametrize(
    ("extra", "state"),
    [("-00002-of-00002", State.DAMAGED), ("-00003-of-00003", State.SUSPICIOUS), ("-00003-of-00002", State.DAMAGED)],
)
def test_a_shard_that_the_index_does_not_name_is_told(
    tmp_path: pathlib.Path, names: str, extra: str, state: State
) -> None:
    folder = tmp_path / "checkpoint-5"
    shards = [names.format("-00001-of-00002"), names.format("-00002-of-00002")]
    for name in {*shards, names.format(extra), names.format("").replace("model", "adapter")}:
        write = save_safetensors if name.endswith("safetensors") else save
        write(folder / name, {name: torch.randn(40)})
    kept = shards[:1] if names.format(extra) in shards else shards
    (folder / f"{names.format('')}.index.json").write_text(json.dumps({"weight_map": {name: name for name in kept}}))
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 5}))
    assert states(tmp_path) == [state]
    assert f"{names.format(extra)}: is there, and {names.format('')}.index.json does not name it" in words(
        verified(tmp_path)
    )


@pytest.mark.parametrize("total", ["00001", "00003"])
def test_a_total_that_does_not_fit_the_shards_is_told(tmp_path: pathlib.Path, total: str) -> None:
    for name in ("model-00001-of-00002", f"model-00002-of-{total}"):
        save_safetensors(tmp_path / "step_5" / f"{name}.safetensors", {name: torch.randn(40)})
    assert states(tmp_path) == [State.SUSPICIOUS]


def test_an_archive_without_checksums_is_whole_by_structure(tmp_path: pathlib.Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"step": 5, "w": torch.randn(40)}, tmp_path / "ckpt_5.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    assert [(each.state, each.verified_by) for each in verified(tmp_path).values()] == [(State.WHOLE, "structure")]


def test_one_save_and_one_file_of_it_can_be_asked(whole: pathlib.Path) -> None:
    for layout in ("megatron", "hugging_face", "dcp", "safetensors", "deepspeed"):
        folder = whole / layout / FOLDERS[layout].format(STEP)
        file = next(
            path
            for path in sorted(folder.rglob("*"))
            if path.is_file() and path.suffix in (".pt", ".safetensors", ".distcp")
        )
        for path in (folder, file):
            (save,) = Verifier(Place(path)).all()
            assert (save.step, save.state) == (STEP, State.WHOLE)


def test_what_one_layout_leaves_is_verified_by_another(whole: pathlib.Path, tmp_path: pathlib.Path) -> None:
    place = tmp_path / "out"
    shutil.copytree(whole / "hugging_face", place)
    shutil.copyfile(place / "checkpoint-100" / "model-00002-of-00002.safetensors", place / "model.safetensors")
    os.truncate(place / "model.safetensors", 100)
    saves = verified(place)
    assert saves["model.safetensors"].state is State.DAMAGED
    assert len(saves) == 5


def test_what_is_being_written_or_changes_while_it_is_read_is_not_judged(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.preflight import siblings

    torch.save({"step": 5, "w": torch.randn(40)}, tmp_path / "ckpt_5.pt")
    (tmp_path / "ckpt_10.pt.tmp").write_bytes(b"PK\x03\x04")
    assert states(tmp_path) == [State.WHOLE, State.UNFINISHED]
    (tmp_path / "ckpt_10.pt.tmp").unlink()
    os.truncate(path := tmp_path / "ckpt_5.pt", 300)
    monkeypatch.setattr(siblings, "numbered", lambda files: os.utime(path, ns=(1, 1)) or ())
    assert states(tmp_path) == [State.UNFINISHED]


def write_pairs(place: pathlib.Path, name: str, *steps: int) -> None:
    for step in steps:
        for part in ("model", "optim"):
            save(place / name.format(part=part, step=step), {f"{part}.w": torch.randn(40)})


PAIRS = ["{part}_{step}.pt", "epoch{step:03}-{part}.pt", "run2_{part}_{step}.pth"]


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize(("gone", "kept"), [("model", "optim"), ("optim", "model")])
def test_a_pair_of_files_is_one_save_and_lacks_what_is_gone(
    tmp_path: pathlib.Path, name: str, gone: str, kept: str
) -> None:
    write_pairs(tmp_path, name, 10, 20, 30)
    assert states(tmp_path) == [State.WHOLE] * 3
    lost, left = (tmp_path / name.format(part=part, step=30) for part in (gone, kept))
    lost.unlink()
    assert states(tmp_path) == [State.WHOLE] * 2 + [State.DAMAGED]
    assert f"{lost.name}: is missing, and most other saves have it" in words(verified(tmp_path))
    assert f"{lost.name}: is missing" in "".join(each.words for each in next(Verifier(Place(left)).all()).findings)


@pytest.mark.parametrize(
    ("files", "first"),
    [
        ("phase1_10 phase1_20 phase2_10 phase2_20 phase1_30", State.WHOLE),  # two series
        ("model_10 model_20 model_30 optim_30", State.WHOLE),  # the optimizer of the newest save alone is kept
        ("model_10 model_20 model_30 model_40 ema_20 ema_40", State.WHOLE),
        ("model_10 model_20 optim_20 model_30 optim_30", State.SUSPICIOUS),  # pairs; it may have been removed
    ],
)
def test_files_that_are_no_pairs_are_saves_of_their_own(tmp_path: pathlib.Path, files: str, first: State) -> None:
    for file in files.split():
        save(tmp_path / f"{file}.pt", {"w": torch.randn(40)})
    pairs = first is State.SUSPICIOUS
    assert states(tmp_path) == [first, *[State.WHOLE] * (2 if pairs else len(files.split()) - 1)]


def pointers(place: pathlib.Path) -> list[State]:
    return [each.state for each in verified(place).values() if each.points]


POINTERS = [
    ("latest", "step_STEP\n"),
    ("last", "/somewhere/checkpoints/step_STEP/model.pt"),
    ("checkpoint", 'model_checkpoint_path: "step_STEP"\nall_model_checkpoint_paths: "step_STEP"\n'),
    ("latest_checkpointed_iteration.txt", "STEP"),
    ("state.json", '{"latest": "step_STEP", "best": "step_30", "all": ["step_10", "step_30"]}'),
    ("checkpoint.yaml", "resume:\n  path: step_STEP\n"),
    ("latest", "-> step_STEP"),  # a link
    ("latest.pt", "-> step_STEP/model.pt"),
]
OTHERS = [
    ("best", "-> step_STEP"),
    ("best.json", '{"path": "step_STEP"}'),
    ("trainer_state.json", '{"last_eval_step": STEP}'),
    ("last.log", "done: step_STEP"),
]


@pytest.mark.parametrize(("name", "content"), [*POINTERS, *OTHERS])
def test_a_pointer_must_name_the_newest_whole_save_and_other_files_any(
    tmp_path: pathlib.Path, name: str, content: str
) -> None:
    write_pairs(tmp_path, "step_{step}/{part}.pt", 10, 20, 30)
    for step, told in ((20, [State.SUSPICIOUS]), (30, []), (40, [State.DAMAGED])):
        (tmp_path / name).unlink(missing_ok=True)
        link, _, target = content.replace("STEP", str(step)).rpartition("-> ")
        (tmp_path / name).symlink_to(target) if "->" in content else (tmp_path / name).write_text(link + target)
        assert pointers(tmp_path) == ([] if (name, content) in OTHERS else told)


def test_a_pointer_names_a_pair_by_its_number_or_a_file(tmp_path: pathlib.Path) -> None:
    write_pairs(tmp_path, PAIRS[0], 10, 20, 30)
    for content, told in (
        ("20", [State.SUSPICIOUS]),
        ("optim_20.pt", [State.SUSPICIOUS]),
        ('{"step": 20}', [State.SUSPICIOUS]),
        ('{"step": 35}', []),  # it may be the step of something else
        ("model_30.pt", []),
        ("", [State.DAMAGED]),
        ("[" * 4000, [State.DAMAGED]),
    ):
        (tmp_path / "latest").write_text(content)
        assert pointers(tmp_path) == told, content


def test_a_pointer_may_name_a_save_of_another_layout_or_elsewhere_or_one_before_a_damaged_one(
    tmp_path: pathlib.Path,
) -> None:
    place = tmp_path / "checkpoints"
    checkpoint_files.write(place, "lightning", 20)
    write_pairs(place, "step_{step}/{part}.pt", 10, 20)
    (place / "latest").write_text("step_20")
    (tmp_path / "elsewhere").mkdir()
    (place / "last").symlink_to("../elsewhere")
    assert pointers(place) == []
    write_pairs(tmp_path / "pairs", PAIRS[0], 10, 20, 30)
    (tmp_path / "pairs" / "model_30.pt").unlink()
    (tmp_path / "pairs" / "latest").write_text("model_20.pt")
    assert pointers(tmp_path / "pairs") == []
