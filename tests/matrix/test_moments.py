"""From which saves a job is started again, where its passes over the data end, and which copies
of saves have no step in their names."""

import pathlib
import random
import zipfile
from collections import Counter
from types import SimpleNamespace

import pytest
import small_jobs
from hypothesis import given
from hypothesis import strategies as st
from judging import load
from simulator import Job, change, find, simulate, steps

from harness.evidence.samples import pass_ends, told_kind
from harness.matrix.moments import AMID, CHAIN, NOTICE, Moment, Saves, moments
from harness.matrix.save_copies import Copies, look, newest
from harness.matrix.sweep import Sweep
from harness.matrix.told_saves import ToldSaves, told_saves
from harness.node.observer import identity
from harness.node.observer.checkpoint_ledger import NAME, Ledger, Saved
from harness.timeline.save_events import COMMITTED

RANKS = 2
JOB = Job(nodes=RANKS, ranks_per_node=1, steps=40)
STEPS = st.lists(st.integers(1, 100), unique=True, max_size=20).map(sorted)


@given(made=STEPS, ends=st.none() | STEPS, last=st.integers(1, 100), data=st.data())
def test_each_restart_begins_from_a_save_that_was_copied_and_each_other_one_says_why(
    made: list[int], ends: list[int] | None, last: int, data: st.DataObject
) -> None:
    copied = sorted(data.draw(st.sets(st.sampled_from(made)))) if made else []
    a_step = data.draw(st.none() | st.integers(1, 4))
    told = {each: divmod(each, a_step or 1) for each in made}
    steps, micro_batches = ({each: pair[at] for each, pair in told.items()} for at in (0, 1))
    saves = Saves(made, copied, ToldSaves(steps, micro_batches, a_step))
    found = moments(saves, ends, last)
    tried = [each for each in found if each.save is not None]
    assert all(each.save in (copied if each.resume == 1 else made) for each in tried)
    assert all(each.why for each in found if each.save is None)
    assert copied == made or all(each.missed <= (each.save is None) for each in found)
    keys = Counter((each.save, each.resume, each.notice) for each in tried)
    assert not [key for key, count in keys.items() if count > 1]
    words = [name for each in found for name in each.words.split("; ")]
    assert len(words) == len(set(words)) and {"the first save", "the last save of the finished job"} <= set(words)
    amid = {each.micro_batches for each in tried if AMID in each.words}
    assert bool(amid) == any(micro_batches[each] for each in copied) and 0 not in amid
    row = [each.resume for each in tried if each.resume > 1]
    assert row == list(range(2, len(row) + 2)) and len(row) < CHAIN


def test_the_end_of_a_pass_has_a_save_before_at_and_after_it() -> None:
    saves = Saves(range(10, 101, 10), range(10, 101, 10))
    found = {each.words: each.save for each in moments(saves, [40, 80], 100)}
    assert found == {
        "the last save before the end of pass 1": 30,
        "a save at the end of pass 1": 40,
        "the first save after the end of pass 1": 50,
        "the last save before the end of pass 2": 70,
        "a save at the end of pass 2": 80,
        "the first save after the end of pass 2": 90,
        "a save in the middle of a gradient accumulation": None,
        "the first save": 10,
        "resume 2 in a row, from a save that a resumed job made": 20,
        "resume 3 in a row, from a save that a resumed job made": 30,
        "the last save of the finished job": 100,
        "a save that a notice of preemption led to": 10,
    }


def test_what_is_missing_says_which_flag_would_show_it() -> None:
    why = {each.words: each.why for each in moments(Saves([30, 60], [30]), [48], 60)}
    assert why["a save at the end of pass 1"] == "no save is of step 48, where it ends: --save-every 24"
    assert "--save-every 15" in why["the first save after the end of pass 1"]
    assert "could be copied: save less often" in why["the last save of the finished job"]
    (never,) = (each.why for each in moments(Saves([30], [30]), [], 60) if "a pass over the data" in each.words)
    assert "--steps" in never
    unheard = moments(Saves([30, 60], [30], option="{checkpoint_every} in its arguments and --save-every"), [48], 60)
    assert any(each.why.endswith(": {checkpoint_every} in its arguments and --save-every 24") for each in unheard)
    own = " ".join(each.why for each in moments(Saves([10, 20], [10, 20], option=""), [15], 20))
    assert "a save every 5, by the trainer's own arguments" in own and "--save-every" not in own


def test_told_saves_that_were_not_found_are_not_denied() -> None:
    told = ToldSaves({32: 32, 96: 96}, {}, a_step=1)
    why = {each.words: each.why for each in moments(Saves([], [], told), [32], 96)}
    denied = "the trainer told of 2 saves; the harness found none that is whole and whose step it knows"
    assert {each for name, each in why.items() if name not in (AMID, NOTICE)} == {denied}, why
    sweep = Sweep("mine", "mine", "0", {}, told=2, complete=True)
    assert (sweep.why, sweep.known_saves) == (denied, "2 told saves")
    why = {each.words: each.why for each in moments(Saves([], [], ToldSaves()), [32], 96)}
    assert why["the first save"] == "the job made no save"


def test_saves_named_by_micro_batches_are_held_against_steps() -> None:
    def found(*made: int) -> dict[str, Moment]:
        steps, half = {each: each // 2 for each in made}, {each: each % 2 for each in made}
        saves = Saves(made, made, ToldSaves(steps, half, a_step=2))
        return {name: each for each in moments(saves, [12], 30) for name in each.words.split("; ")}

    whole, halves = found(12, 24, 36, 48, 60), found(15, 24, 25, 45, 60)
    assert whole["a save at the end of pass 1"].where == "step 12, saved as 24"
    assert whole["the last save of the finished job"].save == 60
    assert whole[AMID].why.endswith("no save falls between them: --save-every 13")
    assert halves[AMID].where == "step 7 and 1 micro-batch, saved as 15" and AMID in halves["the first save"].told
    assert halves["the first save after the end of pass 1"].save == 25, "half a step after it"
    assert found(11, 22)["a save at the end of pass 1"].why.endswith("--save-every 8")
    alone = moments(Saves([10], [10], ToldSaves({10: 10}, {}, a_step=1)), None, 30)
    assert [each.why for each in alone if each.words == AMID] == ["the job takes one batch a step"]


def test_a_resumed_job_that_was_interrupted_may_not_have_told_of_its_last_save() -> None:
    run, again = ToldSaves({10: 5, 15: 7, 20: 10}, {15: 1}, 2), ToldSaves({15: 6}, {15: 0}, None)
    told = run.then(again)
    assert [(told.at(each), told.within(each)) for each in (10, 15, 20)] == [(5, 0), (6, 0), (10, 0)]
    assert told.knows(20) and not told.knows(60), "its number counts something else"
    assert ToldSaves({20: 20}).knows(60)


def test_a_save_that_one_rank_made_within_a_step_is_within_it() -> None:
    def told(*micro_batches: int | None) -> ToldSaves:
        each = {"event": COMMITTED, "path": "ckpt_15", "step": 7, "micro_batches_a_step": 4}
        return told_saves(SimpleNamespace(checkpoints=[{**each, "micro_batches": done} for done in micro_batches]))  # type: ignore[arg-type]

    assert [told(*ranks).within(15) for ranks in ((1, 0), (0, 1), (1, None), (0, 0))] == [1, 1, 1, 0]
    assert told(4).within(15) == 0, "that is a whole step"


@given(tell=st.sampled_from(["samples", "digest"]), length=st.integers(3, 50), padded=st.integers(0, 1))
def test_passes_end_where_their_samples_come_again(tell: str, length: int, padded: int) -> None:
    # Every rank takes a sample in each step, from a new shuffle in each pass of `length` steps; some come twice.
    logs = simulate(JOB, ()).logs()
    for rank in range(RANKS):
        for line in logs.steps(rank=rank):
            number, at = divmod(line["step"] - 1, length)
            order = list(range(length * RANKS - padded))
            random.Random(number).shuffle(order)
            order += order[:padded]
            sample = order[at * RANKS + rank]
            for name in ("first", "count", "digest"):
                line.pop(name, None)
            line |= {"samples": [[sample, 1, 1]]} if tell == "samples" else {"digest": f"{sample:064x}"}
    run = load(simulate(JOB, ()), logs)
    unknown: list[int] | None = None if tell == "digest" else []
    assert pass_ends(run, told_kind(run, None)) == (list(range(length, 40, length)) or unknown)


def test_passes_are_found_by_the_place_in_the_data_where_its_size_is_told() -> None:
    logs = simulate(JOB, ()).logs()
    batch = steps(logs.trainers()[0])[0]["count"]
    assert pass_ends(load(simulate(JOB, ()), logs), None) is None
    change((find(lines, "rendezvous") for lines in logs.trainers()), data_samples=15 * batch)
    assert pass_ends(load(simulate(JOB, ()), logs), None) == [15, 30]


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("the last save before the end of pass 2; the first save", "the last save before the end of a pass"),
        ("resume 3 in a row, from a save", "resume in a row, from a save"),
        ("the first save, with --num-workers 3", "the first save, with --num-workers 3"),
    ],
)
def test_kinds_of_moments(words: str, kind: str) -> None:
    assert Moment(words, 20).kind == kind


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


def test_a_save_without_a_known_step_is_not_copied_and_the_ledger_of_a_job_that_is_made_again_is_read_anew(
    tmp_path: pathlib.Path,
) -> None:
    plan, run_dir = small_jobs.job("mine", ["x"]), tmp_path / "run"
    save(run_dir, "snapshot.pt", 32, told=False)
    copies = Copies(plan, run_dir, tmp_path / "copies")
    with copies.at_work():
        pass
    assert copies.steps == []
    for step in (32, 96):  # the ledgers of both are as long
        save(run_dir, "snapshot.pt", step)
        assert newest(look(plan, run_dir)[1]) == step
        (run_dir / "events" / "node0" / NAME).unlink()
