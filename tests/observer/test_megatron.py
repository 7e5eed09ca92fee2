"""Megatron Core's checkpoints, by a stand-in that writes as Megatron Core 0.16 does: shards from forked processes."""

import pathlib
from typing import Any

import pytest
from observer import observing

from harness.node.observer.checkpoint_ledger import NAME

SERIALIZATION = """
import os, pathlib, types, uuid
import torch

class Request(types.SimpleNamespace):
    pass

def save(sharded_state_dict, checkpoint_dir, async_sharded_save=False):
    folder = pathlib.Path(checkpoint_dir)
    torch.save({"iteration": sharded_state_dict["iteration"]}, folder / "common.pt")

    def write():
        child = os.fork()
        if not child:
            with open(folder / "__0_0.distcp", "wb") as file:
                torch.save(sharded_state_dict, file)
            os._exit(0)
        os.waitpid(child, 0)

    def finish():
        (folder / ".metadata").write_text(uuid.uuid4().hex)

    if async_sharded_save:
        return Request(write=write, finalize_fns=[finish])
    write(), finish()

def load(sharded_state_dict, checkpoint_dir, strict=None):
    folder = pathlib.Path(checkpoint_dir)
    common = torch.load(folder / "common.pt")
    with open(folder / "__0_0.distcp", "rb") as file:
        state = torch.load(file)
    return ({**common, **state}, set(), set()) if strict else {**common, **state}
"""
TRAINING = """
import pathlib, sys, torch
from megatron.core import dist_checkpointing

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
step, how = 0, sys.argv[1]

def steps(count):
    global step
    for _ in range(count):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step(), optimizer.zero_grad()
        step += 1

def save(**options):
    folder = pathlib.Path(f"iter_{step:07d}")
    folder.mkdir()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iteration": step}
    return dist_checkpointing.save(state, folder, **options)

if how in ("saves", "saves_later"):
    steps(2)
    save()
    steps(2)
    request = save(async_sharded_save=how == "saves_later")
    steps(1)
    if request is not None:
        request.write()
        for function in request.finalize_fns:
            function()
    steps(1)
else:
    found = dist_checkpointing.load({}, how, strict="return_all" if "4" in how else None)
    found = found[0] if isinstance(found, tuple) else found
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    step = found["iteration"]
    steps(1)
"""


def life(folder: pathlib.Path, how: str) -> list[dict[str, Any]]:
    """Returns what one start of the training told."""
    package = folder / "megatron" / "core" / "dist_checkpointing"
    package.mkdir(parents=True, exist_ok=True)
    (package / "serialization.py").write_text(SERIALIZATION)
    (package / "__init__.py").write_text("from .serialization import load, save")
    before = {log.header["writer"] for log in observing.logs(folder / "events")}
    code, _, err = observing.run(["-c", TRAINING, how], observing.environment(folder, RANK="0"), folder)
    assert code == 0, err
    (log,) = (log for log in observing.logs(folder / "events") if log.header["writer"] not in before)
    assert not [event for event in log.events if event["event"] == "observer.failed"]
    return log.events


@pytest.mark.parametrize(("how", "at"), [("saves", 0), ("saves_later", 1)])
def test_a_save_is_its_whole_folder_and_a_restore_names_it(tmp_path: pathlib.Path, how: str, at: int) -> None:
    told = life(tmp_path, how)
    saves = [event for event in told if event["event"] == "checkpoint.committed"]
    assert [(save["step"], save["path"]) for save in saves] == [
        (step, str(tmp_path / f"iter_{step:07d}")) for step in (2, 4)
    ]
    assert {tuple(save["files"]) for save in saves} == {(".metadata", "__0_0.distcp", "common.pt")}
    order = [(event["event"], event["step"]) for event in told if event["event"] in ("step", "checkpoint.committed")]
    late = order.index(("checkpoint.committed", 4)) > order.index(("step", 5))
    assert late == (how == "saves_later"), "a request is whole once it was finished"

    (restored,) = (event for event in life(tmp_path, saves[at]["path"]) if event["event"] == "restored")
    assert (restored["step"], restored["step_by"]) == (saves[at]["step"], "ledger")
    assert restored["source"] == saves[at]["path"] and restored["entered"] == ["model", "optimizer"]
    assert restored["saved"] == restored["content"] == saves[at]["content"]
    assert (tmp_path / "events" / NAME).exists()
