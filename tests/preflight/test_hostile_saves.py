"""Whatever lies in a folder of saves: a clear answer, without a crash, a wait, or more memory than is bounded."""

import io
import json
import os
import pathlib
import pickle
import resource
import struct
import subprocess
import sys
import zipfile

import pytest

pytest.importorskip("torch", reason="torch is missing: make setup")
import torch
from checkpoint_files import save, save_safetensors
from preflight.damages import WRITERS, edit_metadata

from harness.errors import FaultError
from harness.preflight import file_content, manifest
from harness.preflight.verification import Place, Save, State
from harness.preflight.verifier import Verifier
from harness.trainers.checkpoints.shared import formats, pickles
from harness.trainers.checkpoints.shared.checkpoint_folder import CheckpointFolder

MEMORY_BYTES = 2 * 2**30


def verified(place: pathlib.Path) -> list[Save]:
    return list(Verifier(Place(place)).all())


def archive(path: pathlib.Path, content: bytes, **how: int) -> None:
    with zipfile.ZipFile(path, "w") as opened:
        opened.writestr("x/data.pkl", content, **how)


def deep_key() -> bytes:
    """A dictionary whose key is 400,000 tuples in one another: its hash would overflow the stack of C."""
    return b"\x80\x02}" + b")" + b"\x85" * 400_000 + b"Ns."


def hostile(place: pathlib.Path) -> None:
    archive(place / "step_1.pt", bytes(2**26), compress_type=zipfile.ZIP_DEFLATED)  # a bomb
    archive(place / "step_2.pt", b"\x80\x02Nr\xff\xff\xff\x7f.")  # a memo of 2**31 places
    archive(place / "step_3.pt", deep_key())
    archive(place / "step_4.pt", b"\x80\x02" + b"(" * 500_000 + b".")
    archive(place / "step_5.pt", b"\x80\x02" + b"}" * 6_000_000 + b".")
    archive(place / "step_6.pt", b"\x80\x02\x8b" + struct.pack("<i", 10**6) + b"\xff" * 10**6 + b"N\x86.")  # a number
    with zipfile.ZipFile(place / "step_7.pt", "w") as opened:
        for number in range(70_000):
            opened.writestr(f"x/data/{number}", b"")
        opened.writestr("x/data.pkl", pickle.dumps({}))
    with (place / "step_8.pt").open("wb") as file:
        file.truncate(2**43)
    (place / "step_9.safetensors").write_bytes(struct.pack("<Q", 2**60) + b"{")
    header = json.dumps({"x": {"dtype": "U8", "shape": [2**40], "data_offsets": [0, 2**40]}}).encode()
    with (place / "step_10.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + 2**40)
    tensors = ",".join(f'"t{number}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}' for number in range(1_000_000))
    (place / "step_11.safetensors").write_bytes(struct.pack("<Q", len(tensors) + 2) + b"{" + tensors.encode() + b"}")
    (place / "step_12").mkdir()
    (place / "step_12" / "model.safetensors.index.json").write_text("[" * 10**6)
    save_safetensors(place / "step_12" / "model-99999-of-999999.safetensors", {"w": torch.ones(3)})
    os.mkfifo(place / "step_13.pt")
    (place / "step_14.pt").symlink_to("/etc/passwd")
    (place / os.fsdecode(b"step_15-\xff\x1b[31m\n.pt")).write_bytes(b"PK\x03\x04")
    deep = "/".join(["d"] * 60)
    (place / deep).mkdir(parents=True)
    (place / deep / "x.pt").write_bytes(b"PK\x03\x04")


@pytest.mark.slow
def test_all_of_them_get_an_answer_within_a_bounded_memory(tmp_path: pathlib.Path) -> None:
    hostile(tmp_path)
    command = [sys.executable, "-m", "harness", "checkpoint", "verify", str(tmp_path), "--json"]

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))

    done = subprocess.run(
        command, capture_output=True, text=True, preexec_fn=limited, env=os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    )
    assert done.returncode == 1, done.stderr
    states = {each["step"]: each["state"] for each in json.loads(done.stdout)["saves"]}
    deep = None
    assert {step for step, state in states.items() if state == "damaged"} == {1, 4, 8, 9, 12, 15, deep}
    assert {step for step, state in states.items() if state == "unknown"} == {5, 10, 11}
    assert 13 not in states and 14 not in states  # neither waited for nor followed


def test_an_evil_pickle_does_nothing(tmp_path: pathlib.Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(tmp_path / "evil"),)

    save(tmp_path / "ckpt_5.pt", {"step": 5, "evil": Evil()})
    WRITERS["dcp"](tmp_path, 60)
    edit_metadata(lambda told: setattr(told, "evil", Evil()))(tmp_path / "step-60" / ".metadata")
    states = {save.step: save.state for save in verified(tmp_path)}
    assert states == {5: State.WHOLE, 60: State.WHOLE}
    assert not (tmp_path / "evil").exists()


def test_what_an_index_or_metadata_name_is_not_looked_for_elsewhere(tmp_path: pathlib.Path) -> None:
    place = tmp_path / "saves"
    WRITERS["safetensors"](place, 60)
    index = place / "step_60" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "../../secret.safetensors", "y": "/etc/passwd"}}))
    save_safetensors(tmp_path / "secret.safetensors", {"x": torch.ones(3)})
    (found,) = verified(place)
    assert sum("is missing" in each.what for each in found.findings) == 2


def test_a_manifest_that_says_nothing_is_no_pass(tmp_path: pathlib.Path) -> None:
    save(tmp_path / "step_5.pt", {"w": torch.ones(40)})
    list(Verifier(Place(tmp_path), keep=True).all())
    (path,) = (tmp_path / manifest.FOLDER).iterdir()
    for text in ("", "{}", "[]", '{"schema":1,"kept_at_s":0,"files":{"step_5.pt":{"bytes":9,"parts":[]}}}'):
        path.write_text(text)
        assert [each.state for each in verified(tmp_path)] == [State.UNKNOWN], text


@pytest.mark.parametrize(
    ("leads", "told"),
    [
        ("../elsewhere/ckpt_9.pt", "1 link not followed, saves/ckpt_9.pt: give where they lead"),
        ("/gone/ckpt_9.pt", "1 link not followed, saves/ckpt_9.pt: give where they lead"),
        ("ckpt_5.pt", ""),
        (".", ""),
        ("", "neither a file nor a folder: saves/ckpt_9.pt"),
    ],
)
@pytest.mark.parametrize("alone", [False, True])
def test_what_is_not_looked_into_is_told(tmp_path: pathlib.Path, leads: str, told: str, alone: bool) -> None:
    save(tmp_path / "elsewhere" / "ckpt_9.pt", {"w": torch.ones(40)})
    place = tmp_path / "saves"
    save(place / "ckpt_5.pt", {"w": torch.ones(40)})
    if alone and told:
        (place / "ckpt_5.pt").unlink()
    (place / "ckpt_9.pt").symlink_to(leads) if leads else os.mkfifo(place / "ckpt_9.pt")
    verifier = Verifier(Place(place))
    assert len(list(verifier.all())) == (0 if alone and told else 1)
    assert verifier.notes == ([told] if told else [])


def test_each_byte_is_read_once(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, read = tmp_path / "ckpt.pt", list[int]()
    save(path, {f"t{number}": torch.ones(5000) for number in range(50)})

    class Counted(io.FileIO):
        def read(self, size: int | None = -1, /) -> bytes:
            found = super().read(size)
            read.append(len(found))
            return found

    with path.open("rb") as file, Counted(path) as counted:
        parts = list(file_content.parts(counted, formats.look(file, path.name).spans))
    assert sum(read) == path.stat().st_size
    assert sum(bool(part.span.name) for part in parts) == 50 and all(part.sound for part in parts)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_plain_pickles_are_read_as_data_and_one_that_is_cut_is_none(protocol: int) -> None:
    shared = ("a", 1, 2.5, None, True, b"x", 2**100)
    whole = pickle.dumps({"one": [shared, {3: {4}}], "two": shared, "three": {}, "four": ()}, protocol)
    found = pickles.fields(pickles.read(whole))
    assert found["two"][:5] == shared[:5] and found["one"].items[0] is found["two"]
    assert found["four"] == () and pickles.fields(found["three"]) == {}
    assert next(found["one"].items[1].pairs)[0] == 3
    for size in range(0, len(whole), 7):
        with pytest.raises(ValueError):
            pickles.read(whole[:size])


def test_a_folder_that_nobody_may_enter_is_one_clear_error(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "config.json")

    monkeypatch.setattr(CheckpointFolder, "look", refuse)
    with pytest.raises(FaultError, match=r"no right to look at config\.json below it"):
        verified(tmp_path)
