"""Copies of saves whose names tell no step, as those of a plain `torch.save` loop: the nodes' ledger knows it."""

import pathlib
import zipfile

import pytest
import small_jobs

from harness.matrix.save_copies import Copies, look, newest
from harness.node.observer import identity
from harness.node.observer.checkpoint_ledger import NAME, Ledger, Saved


def save(run_dir: pathlib.Path, name: str, step: int, told: bool = True) -> None:
    path = run_dir / "checkpoints" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}.")
        archive.writestr("archive/data/0", bytes([step]) * 64)
    if told:
        Ledger(run_dir / "events" / "node0").add(Saved(str(path), step, identity.lineage(str(path)) or ""))


@pytest.mark.parametrize("name", ["snapshot.pt", "snap.{:04d}.pt"])
def test_a_save_is_copied_whose_step_only_the_ledger_knows(tmp_path: pathlib.Path, name: str) -> None:
    plan, run_dir = small_jobs.job("mine", ["x"]), tmp_path / "base"
    run_dir.mkdir()
    copies = Copies(plan, run_dir, tmp_path / "copies")
    (tmp_path / "copies").mkdir()
    for number, step in enumerate((32, 96)):
        save(run_dir, name.format(number), step)
        for _ in range(2):  # it lies still in the second look
            copies._look()
    assert copies.steps == [32, 96]
    assert [newest(look(plan, tmp_path / "copies" / str(step))[1]) for step in copies.steps] == [32, 96]


def test_a_save_without_a_known_step_is_not_copied(tmp_path: pathlib.Path) -> None:
    save(tmp_path, "snapshot.pt", 32, told=False)
    copies = Copies(small_jobs.job("mine", ["x"]), tmp_path, tmp_path / "copies")
    with copies.at_work():
        pass
    assert copies.steps == []


def test_the_ledger_of_a_job_that_is_made_again_is_read_anew(tmp_path: pathlib.Path) -> None:
    plan = small_jobs.job("mine", ["x"])
    for step in (32, 96):  # the ledgers of both are as long
        save(tmp_path, "snapshot.pt", step)
        assert newest(look(plan, tmp_path)[1]) == step
        (tmp_path / "events" / "node0" / NAME).unlink()
