"""A restart beside the run that made its save: what is the same is not accused, and what is not is named, down
to the tensors of a save."""

import pathlib
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import small_jobs
from judging import Bend, bending, load, together
from simulator import Job, Logs, Outage, change, find, simulate, steps

from harness.matrix import resume_comparison
from harness.matrix.moments import Moment
from harness.matrix.other_tensors import other_tensors
from harness.matrix.resume_comparison import Finding, Kind, Usual, apart, same_tensors
from harness.matrix.save_copies import look
from harness.matrix.told_saves import ToldSaves
from harness.timeline.timeline import Timeline
from harness.trainers.checkpoints.shared import digests

RANKS, SAVE, PASS = 2, 20, 12
JOB = Job(nodes=RANKS, ranks_per_node=1, steps=40)
ENDS = [PASS, 2 * PASS, 3 * PASS]
BATCH = 4  # of each rank


def logs_of(*outages: Outage) -> Logs:
    """Every rank tells its samples, of a new shuffle in each pass, and the weights."""
    logs = simulate(JOB, outages).logs()
    for rank in range(RANKS):
        for line in logs.steps(rank=rank):
            for name in ("first", "count", "digest"):
                line.pop(name, None)
            line |= {"samples": [[each, 1, 1] for each in samples_at(line["step"], rank)]}
            line |= {"weights": f"{line['step']:064x}"}
    return logs


def samples_at(step: int, rank: int) -> list[int]:
    number, at = divmod(step - 1, PASS)
    order = list(range(PASS * RANKS * BATCH))
    random.Random(number).shuffle(order)
    return order[(at * RANKS + rank) * BATCH :][:BATCH]


def samples_of(first: int, last: int) -> set[int]:
    return {each for step in range(first, last + 1) for rank in range(RANKS) for each in samples_at(step, rank)}


def resumed(bend: Callable[[Logs], Any] = lambda logs: None, step: int = SAVE, *outages: Outage) -> Timeline:
    """A log of the same job that begins after this step."""
    logs = logs_of(*outages)
    for lines in logs.trainers():
        if find(lines, "restored")["step"]:
            continue  # of a later process
        early = [line for line in lines if line.get("step", step + 1) <= step and line["event"] == "step"]
        lines[:] = [line for line in lines if line not in early]
        change((line for line in lines if line.get("event") == "restored"), step=step, source=f"step_{step}")
    bend(logs)
    return load(simulate(JOB, outages), logs)


def run_of(*bends: Bend) -> Timeline:
    """The whole job."""
    logs = logs_of()
    together(*bends)(logs)
    return load(simulate(JOB, ()), logs)


def usual(apart_by: float | None = None, *bends: Bend) -> Usual:
    off = {} if apart_by is None else {"loss": apart_by, "grad_norm": apart_by}
    return Usual(run_of(*bends), ENDS, apart_by is None, off)


def differences(usual: Usual, again: Timeline, step: int) -> list[Finding]:
    return resume_comparison.differences(usual, again, from_save(step)).found


def from_save(step: int, micro_batches: int = 0) -> Moment:
    return Moment("a save", step, step, micro_batches)


def on_other_ranks(usual: Usual, again: Timeline, step: int) -> list[Finding]:
    return resume_comparison.on_other_ranks(usual, again, from_save(step)).found


@bending
def at(logs: Logs, /, step: int, rank: int | None = None, **fields: Any) -> None:
    """This step tells something else."""
    for line in logs.steps(step, step, rank=rank):
        line |= {name: value(line) if callable(value) else value for name, value in fields.items()}


def restored(step: int) -> Callable[[Logs], None]:
    return lambda logs: change((find(lines, "restored") for lines in logs.trainers()), step=step)


def shifted(logs: Logs) -> None:
    """The order of the first pass, in the second one."""
    for rank in range(RANKS):
        for line in logs.steps(SAVE + 1, 2 * PASS, rank=rank):
            line["samples"] = [[each, 1, 1] for each in samples_at(line["step"] - PASS, rank)]


def test_a_restart_that_does_the_same_is_not_accused() -> None:
    assert differences(usual(), resumed(), SAVE) == []
    assert on_other_ranks(usual(), resumed(), SAVE) == []
    assert all("from scratch" not in each.words for each in differences(usual(), resumed(restored(0)), 0))

    def swapped(logs: Logs) -> None:
        for rank in range(RANKS):
            for line in logs.steps(rank=rank):
                line["samples"] = [[each, 1, 1] for each in samples_at(line["step"], 1 - rank)]

    assert differences(usual(), resumed(swapped), SAVE) == []


@pytest.mark.parametrize(
    ("bend", "kind", "words"),
    [
        (restored(0), Kind.RESTORED, "it started from scratch, though the save of step 20 was there"),
        (restored(10), Kind.RESTORED, "it restored [10] and not the save of step 20"),
        (at(25, lr=0.5), Kind.SCHEDULE, "at step 25 the learning rate is 0.5, and"),
        (at(25, rank=1, lr=0.5), Kind.SCHEDULE, "at step 25 the learning rate of rank 1 is 0.5, and"),
        (at(25, rank=1, loss=9.5), Kind.COMPUTED, "at step 25 the loss of rank 1 is 9.5, and"),
        (at(25, grad_norm=0.5), Kind.COMPUTED, "at step 25 the gradient norm is 0.5, and"),
        (at(25, loss=9.5), Kind.COMPUTED, "at step 25 the loss"),
        (at(25, rank=1, weights="0" * 64), Kind.COMPUTED, "at step 25 rank 1 has other weights"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_differs_is_named(bend: Callable[[Logs], None], kind: Kind, words: str) -> None:
    (found,) = differences(usual(), resumed(bend), SAVE)
    assert found.kind is kind and found.words.startswith(words)


def test_samples_are_counted_in_their_pass() -> None:
    (found,) = differences(usual(), resumed(shifted), SAVE)
    before = samples_of(PASS + 1, SAVE)
    came, due = samples_of(SAVE + 1 - PASS, PASS), samples_of(SAVE + 1, 2 * PASS)
    assert found.kind is Kind.SAMPLES and came & before and not came - before - due
    text = "4 of 20 steps consumed other samples than without the stop, first at step 21: "
    missed = f"{len(came & before)} samples repeated, {len(due - came)} samples not seen in pass 2"
    assert found.words == text + missed


def test_half_the_samples_a_step_are_each_due_once() -> None:
    """One rank goes on alone: twice as many steps for a pass."""
    early = 6

    def alone(order: Callable[[int], int]) -> Callable[[Logs], None]:
        def bend(logs: Logs) -> None:
            for name in [name for name, lines in logs.items() if lines[0].get("rank") == 1]:
                del logs[name]
            change((each for lines in logs.trainers() for each in lines if "world_size" in each), world_size=1)
            for line in (each for lines in logs.trainers() for each in steps(lines)):
                place = early * RANKS + line["step"] - early - 1
                line["samples"] = [[each, 1, 1] for each in samples_at(order(place // RANKS) + 1, place % RANKS)]

        return bend

    assert on_other_ranks(usual(), resumed(alone(lambda step: step), early), early) == []
    (found,) = on_other_ranks(usual(), resumed(alone(lambda step: step - 4), early), early)
    assert found.kind is Kind.SAMPLES and found.words == "on 1 rank: 32 samples repeated, 32 samples not seen in pass 1"


def test_a_step_that_was_half_done_is_done_as_a_whole_or_its_rest_is() -> None:
    """Each step takes two micro-batches; the save fell between those of step 21."""
    run = replace(usual(), saves=ToldSaves({SAVE: SAVE}, {SAVE: 1}, a_step=2))

    def rest(begin: int, count: int = BATCH // 2) -> Callable[[Logs], None]:
        def bend(logs: Logs) -> None:
            for rank in range(RANKS):
                came = [each for step in (SAVE + 1, SAVE + 2) for each in samples_at(step, rank)][begin:][:count]
                at(SAVE + 1, rank, loss=9.5, samples=[[each, 1, 1] for each in came])(logs)

        return bend

    def found(bend: Bend) -> list[str]:
        compared = resume_comparison.differences(run, resumed(bend), from_save(SAVE, 1))
        return [each.words for each in compared.found]

    assert found(rest(BATCH // 2)) == found(rest(0, BATCH)) == []
    for wrong, words in (
        (rest(0), "4 samples not seen in pass 2"),
        (rest(BATCH // 2, BATCH), "4 samples not seen in pass 2, 4 samples too early"),
        (rest(BATCH), "8 samples not seen in pass 2"),
        (rest(BATCH // 2 + 1, 1), "6 samples not seen in pass 2"),
    ):
        assert len(told := found(wrong)) == 1 and words in told[0], told
    assert found(at(SAVE + 2, loss=9.5)) and found(at(SAVE + 1, grad_norm=9.5)), "all else is compared"
    assert differences(run, resumed(rest(BATCH // 2)), SAVE), "between two steps nothing of one is left"


def test_where_a_repeat_differs_small_differences_are_none() -> None:
    assert apart(usual().run, run_of()) == (True, {"loss": 0.0, "grad_norm": 0.0})
    exact, off = apart(usual().run, run_of(at(30, loss=lambda line: line["loss"] * 1.01)))
    assert not exact and off["loss"] == pytest.approx(0.01, rel=0.02)
    near, far = (at(30, rank=0, loss=lambda line, by=by: line["loss"] * by) for by in (1.05, 1.2))
    assert differences(usual(0.01), resumed(near), SAVE) == []
    assert [each.kind for each in differences(usual(0.01), resumed(far), SAVE)] == [Kind.COMPUTED]
    assert differences(usual(0.01), resumed(at(25, lr=0.5)), SAVE), "the learning rate is a pure function of the step"
    assert differences(usual(0.01), resumed(at(25, rank=1, weights="0" * 64)), SAVE) == []
    exact, off = apart(usual().run, run_of(at(25, lr=0.5)))
    follows = replace(usual(), exact=exact, apart=off)
    assert not exact and off["lr"] > 0.1 and differences(follows, resumed(at(30, lr=0.25)), SAVE) == []


@bending
def published(logs: Logs, *told: tuple[int, str]) -> None:
    """What the harness saw: the step, and a digest of the tensors."""
    lines = logs.harness
    moment = lines[-1]["mono_ns"], lines[-1].get("wall_ns", 0)
    for step, tensors in told:
        event = {"event": "checkpoint.published", "path": f"checkpoints/step_{step}", "layout": "reference", "bytes": 9}
        listed = {"tensor_count": 2, "tensors": tensors, "tensor_digests": [f"128 {tensors}", "64 same"], "step": step}
        lines.insert(-1, event | listed | {"mono_ns": moment[0], "wall_ns": moment[1], "sha256": "0" * 64})


@pytest.mark.parametrize("apart_by", [None, 0.001, 0.04])
def test_a_loss_that_is_no_number_is_always_another_one(apart_by: float | None) -> None:
    (found,) = differences(usual(apart_by), resumed(at(25, rank=0, loss="nan")), SAVE)
    assert found.kind is Kind.COMPUTED and "loss of rank 0 is nan" in found.words


def test_a_band_that_nothing_can_leave_and_few_repeats_accuse_nobody() -> None:
    wide = usual(0.2)
    found = resume_comparison.differences(wide, resumed(at(25, loss=1e9)), from_save(SAVE))
    assert (found.found, found.values.get("COMPUTED", 0)) == ([], 0)
    few = [replace(usual(0.01), repeats=number).too_few for number in range(4)]
    assert [bool(each) for each in few] == [True, True, True, False]
    assert few[0].startswith("no repeat of the run shows") and few[1].startswith("1 repeat of the run shows")
    assert usual().too_few and not replace(usual(), repeats=1).too_few, "bit for bit the same"


def test_what_a_restart_no_longer_tells_is_a_finding() -> None:
    for name, told in (("loss", "does not tell the loss"), ("samples", "does not tell its samples in 20 steps")):

        def silent(logs: Logs, name: str = name) -> None:
            for line in logs.steps():
                line.pop(name)

        assert told in differences(usual(), resumed(silent), SAVE)[0].words


def test_a_restart_that_saves_nothing_or_at_the_end_alone_is_told() -> None:
    (found,) = differences(usual(None, published((20, "aa"), (30, "bb"))), resumed(published((20, "aa"))), SAVE)
    assert found.words == "it made no save of step 30, as the run did"

    def silent(logs: Logs) -> None:
        published((40, "cc"))(logs)
        for lines in logs.trainers():
            lines[1:] = [line for line in lines[1:] if line.get("event") != "checkpoint.committed" or line["step"] > 30]

    run = usual(None, published((20, "aa"), (30, "bb"), (40, "cc")))
    (found,) = differences(run, resumed(silent), SAVE)
    assert found.words == "it made no save of step 30, as the run did"
    assert differences(run, resumed(published((40, "cc"))), SAVE) == [], "it was told, and two looks missed it"


def test_the_next_saves_must_hold_the_same_tensors() -> None:
    run = usual(None, published((20, "aa"), (30, "bb"), (40, "cc")))
    assert same_tensors(run.run) == []
    assert differences(run, resumed(published((30, "bb"))), SAVE) == []
    (found,) = differences(run, resumed(published((20, "zz"), (30, "xx"), (40, "yy"))), SAVE)
    text = "its save of step 30 holds other tensors than without the stop: 1 of 2, of 128 bytes"
    assert (found.kind, found.words) == (Kind.SAVED, text)
    assert differences(Usual(run.run, ENDS, False, {}), resumed(published((30, "xx"))), SAVE) == []
    assert resume_comparison.published(run.run).keys() == {20, 30, 40}
    run = usual(None, published((30, "bb"), (40, "cc")))
    again = resumed(published((30, "bb"), (40, "yy")))
    (found,) = differences(run, again, SAVE)
    assert found.words.startswith("its save of step 40 holds other tensors")
    assert resume_comparison.first_other_save(run, again, SAVE) == 40


def test_an_update_that_was_skipped_is_told() -> None:
    (found,) = differences(usual(), resumed(at(25, applied=False)), SAVE)
    assert found.words == "it skipped the update of 1 step, not without the stop: 25"
    (found,) = differences(usual(None, at(25, applied=False)), resumed(), SAVE)
    assert found.words == "it applied the update of 1 step, which was skipped without the stop: 25"
    chance = replace(usual(0.01), apart={"applied": 1.0})
    assert differences(chance, resumed(at(25, applied=False)), SAVE) == [], "a repeat did, too"


def test_saves_of_different_steps_that_hold_the_same() -> None:
    def by_micro_batches(logs: Logs) -> None:
        """The third save is of another half of the same step."""
        third = (line for line in logs.all("checkpoint.committed") if line["step"] == 30)
        change(third, step=10, path="/run/ckpt_30.pt")

    saves = published((10, "aa"), (20, "bb"), (30, "aa"))
    (found,) = same_tensors(run_of(saves))
    assert found.words == "the saves of steps 10, 30 hold the same tensors"
    assert same_tensors(run_of(saves, by_micro_batches)) == []


def test_where_only_a_place_is_told_each_step_begins_where_the_last_one_ended() -> None:
    def told(shift: int) -> Logs:
        logs = simulate(JOB, ()).logs()
        for line in (each for lines in logs.trainers() for each in steps(lines)):
            line.pop("digest", None)
            line |= {"first": (line["step"] - 1) * 16 + shift * (line["step"] > SAVE), "count": 16}
        return logs

    def cut(logs: Logs) -> Timeline:
        for lines in logs.trainers():
            lines[:] = [line for line in lines if line.get("event") != "step" or line["step"] > SAVE]
            find(lines, "restored")["step"] = SAVE
        return load(simulate(JOB, ()), logs)

    run = Usual(load(simulate(JOB, ()), told(0)), [])
    assert differences(run, cut(told(0)), SAVE) == on_other_ranks(run, cut(told(0)), SAVE) == []
    (found,) = differences(run, cut(told(16)), SAVE)
    assert found.words == "at step 21 its position in the data is another than without the stop"
    (found,) = on_other_ranks(run, cut(told(16)), SAVE)
    assert found.words == "it went on with sample 336 of the data, and sample 320 was next"


torch = pytest.importorskip("torch")


def save(folder: pathlib.Path, **changed: Any) -> pathlib.Path:
    tensors = {"model": {"weight": torch.ones(40)}, "ema": {"weight": torch.full((30,), 2.0), "bias": torch.zeros(20)}}
    tensors["ema"] |= changed
    (folder / "checkpoints").mkdir(parents=True)
    torch.save(tensors, folder / "checkpoints" / "step_30.pt")
    return folder


def test_tensors_that_differ_are_named(tmp_path: pathlib.Path) -> None:
    plan = small_jobs.job("mine", ["x"])
    run, again = save(tmp_path / "run"), save(tmp_path / "again", weight=torch.full((30,), 3.0))
    place, listing = look(plan, run)
    known = set(digests.content(place, listing.finished[0].files).listed)
    assert other_tensors(plan, run, 30, known) == []
    assert other_tensors(plan, again, 30, known) == ["ema.weight"]
    assert other_tensors(plan, again, 20, known) == other_tensors(plan, again, 30, set()) == [], (
        "nothing to hold against"
    )
