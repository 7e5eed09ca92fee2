"""Restores with known answers, and how far each one goes. No job is started: a function plays the job."""

import json
import pathlib
from collections.abc import Callable

import pytest
from small_jobs import job

from harness.backends.local.backend import BACKEND
from harness.evidence.restarts import Restart
from harness.explore import mixed_weights
from harness.explore.answers import End
from harness.explore.exploration import Exploration, Setting, _Explorer, states_of
from harness.explore.node_program.forked_restores import Progress
from harness.explore.operations import Kind, Operation
from harness.explore.recorded_job import Recorded, Save
from harness.explore.restores import Restarts
from harness.run.stop import StopRequest

SIZE = 64  # bytes of a save: a header of 16 with its step, and weights
Job = Callable[[pathlib.Path], Restart]


def loss(step: int, weight: float) -> float:
    return 1000.0 / step + weight


def recorded(folder: pathlib.Path) -> Recorded:
    """Two saves, each a file for the step and one for the weights, renamed over the old ones without a flush."""
    operations, data, inode = list[Operation](), b"", 0
    for step in (10, 20):
        for name, content in (("step", str(step).encode()), ("model", bytes([step]) * SIZE)):
            inode += 1
            operations += [
                Operation(Kind.CREATE, f"{name}.new", inode),
                Operation(Kind.WRITE, f"{name}.new", inode, size=len(content), data=len(data)),
                Operation(Kind.RENAME, f"{name}.new", inode, other=name),
            ]
            data += content
    (folder / "data").write_bytes(data)
    losses = {(0, step): loss(step, step // 10 * 10) for step in range(1, 26)}
    return Recorded(operations, folder / "data", [Save(10, 6), Save(20, 12)], losses, 1)


def right(folder: pathlib.Path) -> Restart:
    if not (folder / "step").exists() or not (folder / "model").exists():
        return Restart(0, False, {(0, 1): loss(1, 0.0)})
    step, model = int((folder / "step").read_text().strip("\0") or 0), (folder / "model").read_bytes()
    return Restart(step, False, {(0, step + 1): loss(step + 1, sum(model) / SIZE)})


def elsewhere(folder: pathlib.Path) -> Restart:
    """Restores the step that is in the folder, if any, and else one from outside."""
    found = right(folder)
    return found if found.step else Restart(20, False, {(0, 21): loss(21, 20.0)})


def tiered(folder: pathlib.Path) -> Restart:
    return Restart(20, False, {(0, 21): loss(21, 20.0)})


def unmoved(folder: pathlib.Path) -> Restart:
    """Restores the step, and starts with the weights of the run whatever the folder holds."""
    found = right(folder)
    step = found.step or 0
    return Restart(step, False, {(0, step + 1): loss(step + 1, step)})


def explored(play: Job, folder: pathlib.Path) -> tuple[_Explorer, list[tuple[str, bool]]]:
    setting = Setting(folder, BACKEND, StopRequest(), lambda words: None, 60.0, ["posix"])
    explorer, restores = (
        _Explorer(job("controls", [], trainer="reference", steps=200), setting),
        list[tuple[str, bool]](),
    )
    explorer.recorded = recorded(folder)
    explorer.found = Exploration("x", "a job", "", explorer.recorded, [states_of(explorer.recorded, "posix")])
    for number, wanted in enumerate(explorer._wanted()):
        (place := folder / f"{number}" / "saves").mkdir(parents=True)
        wanted.make(place)
        restores.append((wanted.name, wanted.follow))
        wanted.heard(play(place), End(followed=wanted.follow), 0.1)
        assert [path.name for path in place.parent.iterdir()] == ["saves"]
    return explorer, restores


@pytest.mark.parametrize(
    ("play", "wrong", "blind"),
    [
        (right, "", ""),
        (elsewhere, "step 20 from an empty checkpoint folder", ""),
        (tiered, "step 20 from the saves up to step 10", ""),
        (unmoved, "", "weights of another save"),
    ],
)
def test_a_job_whose_answers_prove_nothing_is_known_by_its_answers_to_controls(
    play: Job, wrong: str, blind: str, tmp_path: pathlib.Path
) -> None:
    explorer, _ = explored(play, tmp_path)
    assert wrong in explorer.wrong and bool(wrong) == bool(explorer.wrong)
    assert blind in explorer.blind and bool(blind) == bool(explorer.blind)
    assert bool(explorer.found.tried) == (not wrong), "no state is tried where none shows anything"


def test_the_first_state_of_each_set_of_names_goes_on_to_the_next_save(tmp_path: pathlib.Path) -> None:
    explorer, restores = explored(right, tmp_path)
    names, followed = {frozenset(["step", "model"])}, {each.state.id for each in explorer.found.tried if each.followed}
    first = {
        each.state.id for each in explorer.found.tried if not (each.state.names in names or names.add(each.state.names))
    }
    assert followed == first and len(first) > 1
    assert [restore for restore in restores if not restore[0].startswith("posix")] == [
        *(("save-20", True), ("save-10", True), ("empty", False), ("mixed", False)),
    ]


def test_two_explorations_at_once_have_runs_of_their_own(tmp_path: pathlib.Path) -> None:
    ids = {
        Restarts(
            job("x", [], trainer="reference", steps=20),
            run / "base",
            run / "cells",
            StopRequest(),
            recorded(tmp_path),
            BACKEND,
        ).run_id(run / "cells" / "forked")
        for run in (tmp_path / "explore-1", tmp_path / "explore-2")
    }
    assert ids == {"explore-1-forked", "explore-2-forked"}, "the end of one would kill the other's processes"


def test_only_the_middle_of_big_files_that_differ_is_mixed(tmp_path: pathlib.Path) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    files = {"new": {"step-9/0.bin": b"9" * 40, "step-9/1.bin": b"8" * 40, "step-9/meta": b"9", "tokens": b"t" * 900}}
    files["old"] = {"step-5/0.bin": b"5" * 40, "step-5/meta": b"5", "step-4/0.bin": b"4" * 40, "tokens": b"t" * 900}
    for side, contents in files.items():
        for name, content in contents.items():
            (path := tmp_path / side / name).parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    assert mixed_weights.mix(new, old) == 2
    assert (new / "step-9/0.bin").read_bytes() == b"9" * 10 + b"5" * 20 + b"9" * 10
    assert (new / "step-9/1.bin").read_bytes() == b"8" * 10 + b"5" * 20 + b"8" * 10
    assert (new / "step-9/meta").read_bytes() == b"9" and (new / "tokens").read_bytes() == b"t" * 900
    assert mixed_weights.mix(old, old) == 0
    (old / "alone").write_bytes(b"a" * 4000)
    assert mixed_weights.mix(old, new) == 1 and bytes(2000) in (old / "alone").read_bytes()


def test_a_save_counts_if_it_is_of_a_step_after_the_restore(tmp_path: pathlib.Path) -> None:
    def log(*events: tuple[str, int]) -> None:
        with (tmp_path / "rank0.jsonl").open("a") as file:
            file.writelines(
                f"{json.dumps({'event': name, 'step': step}, separators=(',', ':'))}\n" for name, step in events
            )

    progress, orders = Progress(tmp_path), {"steps": 2, "tellers": 1, "savers": 1}
    log(("restored", 10), ("checkpoint.committed", 10), ("step", 11))
    assert not progress.enough(orders | {"until_saved": False})
    log(("step", 12))
    assert progress.enough(orders | {"until_saved": False}) and not progress.enough(orders | {"until_saved": True})
    log(("checkpoint.committed", 12))
    assert progress.enough(orders | {"until_saved": True})
    assert not progress.enough(orders | {"until_saved": True, "savers": 2}), "the other rank's part is not saved"
