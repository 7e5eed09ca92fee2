"""A restart and a sweep judged from their logs: what the harness made for comparison is held to what was asked, and the
files beside the saves that it had not written."""

import os
import pathlib
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from judging import together
from matrix.test_resume_comparison import at, from_save, published, resumed, usual
from simulator import Logs, Outage

from harness.cli.scenarios import plan_of
from harness.judge.verdict import Verdict
from harness.matrix import restart_judged
from harness.matrix.forgotten_files import forgotten
from harness.matrix.moments import Moment
from harness.matrix.restart_judged import not_as_asked, not_repeated
from harness.matrix.resume_comparison import Usual
from harness.matrix.sweep import Tried
from harness.timeline.timeline import Timeline

SAVE = 20


def judged(
    monkeypatch: pytest.MonkeyPatch, usual: Usual, again: Timeline, moment: Moment | None = None, *names: str
) -> Tried:
    monkeypatch.setattr(restart_judged, "timeline", SimpleNamespace(load=lambda place: again))
    place = pathlib.Path("20")
    return restart_judged.judge_restart(usual, moment or from_save(SAVE), place, 1.0, tensors=names)


def with_plan(run: Timeline, **fields: Any) -> Timeline:
    return replace(run, plan={**run.plan, **fields})


def test_a_difference_that_may_be_chance_rests_on_three_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    other = resumed(at(25, rank=0, loss=lambda line: line["loss"] * 1.2))
    found = {number: judged(monkeypatch, replace(usual(0.01), repeats=number), other) for number in (1, 2, 3)}
    assert [each.verdict for each in found.values()] == [Verdict.INCONCLUSIVE, Verdict.INCONCLUSIVE, Verdict.FAIL]
    assert "the loss" in found[1].unsure and "1 repeat of the run shows" in found[1].short
    sure = judged(monkeypatch, replace(usual(0.01), repeats=1), resumed(together(shift, at(25, loss=9.5))))
    assert sure.verdict is Verdict.FAIL and [each.kind.name for each in sure.found] == ["SAMPLES"]


def shift(logs: Logs) -> None:
    for line in logs.steps(25, 25, rank=0):
        line["samples"] = [[0, 1, 1]]


def test_a_restart_of_another_job_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    other = with_plan(resumed(at(25, loss=9.5)), seed=77)
    found = judged(monkeypatch, replace(usual(), repeats=1), other)
    assert (found.verdict, found.found, found.ended) == (Verdict.INCONCLUSIVE, (), "")
    assert found.unsure == "it has another seed, so it was not the run's job"


@pytest.mark.parametrize(
    ("moment", "fields", "odd"),
    [
        ({}, {}, ""),
        ({}, {"ranks_per_node": 3}, "it has another number of ranks"),
        ({"ranks": 3}, {"ranks_per_node": 3}, ""),
        ({}, {"args": ["--workers", "3"]}, "it has other arguments"),
        ({"also": ("--workers", "3")}, {"args": ["--workers", "3"]}, ""),
        ({"nodes": 1}, {"nodes": 1}, ""),
    ],
)
def test_other_nodes_ranks_and_arguments_are_as_the_moment_asks(
    moment: dict[str, Any], fields: dict[str, Any], odd: str
) -> None:
    run = resumed()
    made = with_plan(run, workload={**run.plan["workload"], **fields})
    made = replace(made, epochs=[])
    assert not_as_asked(run, made, replace(from_save(SAVE), **moment)) == odd


@pytest.mark.parametrize(
    ("bend", "odd"),
    [
        (lambda run: run, ""),
        (lambda run: replace(run, outcome="interrupted"), "it interrupted"),
        (lambda run: with_plan(run, seed=77), "it has another seed"),
    ],
)
def test_what_is_a_repeat(bend: Callable[[Timeline], Timeline], odd: str) -> None:
    run = usual().run
    assert not_repeated(run, bend(run)) == odd


def test_tensors_known_by_name_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    run = replace(usual(None, published((30, "bb"))), repeats=1)
    names = ["ema.weight", "ema.bias", "a", "b", "c"]
    found = judged(monkeypatch, run, resumed(published((30, "xx"))), None, *names)
    assert found.found[0].words.endswith("of 128 bytes: ema.weight, ema.bias, a and 2 more")
    assert found.tensors == tuple(names)


def without_steps(logs: Logs) -> None:
    for lines in logs.trainers():
        lines[:] = [line for line in lines if line.get("event") != "step"]


def test_a_restart_that_ended_by_itself_without_a_step_did_not_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    again = resumed()
    none = replace(resumed(without_steps), outcome="completed")
    found = judged(monkeypatch, replace(usual(), repeats=1), none)
    assert found.ended == "it ended by itself and did no step: it went on from step 20, and the run did 40 steps"
    assert found.short == "it did no step that was left" and not found.to_end
    assert judged(monkeypatch, replace(usual(), repeats=1), replace(again, outcome="completed")).to_end


def test_a_job_that_begins_again_by_itself_after_its_restart_is_not_accused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As over a crash of its libraries at its end: what it takes then is a later save, and right."""
    again = resumed(lambda logs: None, SAVE, Outage(35, "crash"))
    found = judged(monkeypatch, usual(), again)
    assert (found.verdict, found.found) == (Verdict.INCONCLUSIVE, ())
    assert "its workers began once more by themselves: rank 0 had ended with exit code" in found.short
    other = resumed(lambda logs: at(25, loss=9.5)(logs), SAVE, Outage(35, "crash"))
    assert judged(monkeypatch, replace(usual(), repeats=1), other).verdict is Verdict.FAIL


Files = dict[str, tuple[str, int]]  # name → what it holds, and when it was written
BEFORE: Files = {
    "log.txt": ("1 2 3", 1),
    "best.txt": ("0.5", 1),
    "best.bin": ("b", 1),
    "events-170000001.bin": ("a", 1),
}
RUN: Files = {**BEFORE, "note-of-base.txt": ("n", 2), "log.txt": ("1 2 3 4", 2), "best.txt": ("0.4", 2)}
RUN["epoch-1/eval.json"] = ("{}", 2)


def without(name: str, **more: tuple[str, int]) -> Files:
    return {each: file for each, file in RUN.items() if each != name} | more


@pytest.mark.parametrize(
    ("again", "expected"),
    [
        (RUN, []),
        ({**RUN, "log.txt": ("1 2 3 4 5 6", 3), "events-170000002.bin": ("b", 3)}, []),
        ({**RUN, "best.txt": BEFORE["best.txt"]}, ["best.txt was not written again"]),
        ({**RUN, "log.txt": ("4", 3)}, ["log.txt was begun anew: it holds 1 bytes, and held 5"]),
        (without("best.txt"), ["best.txt is gone"]),
        (without("best.bin"), ["best.bin is gone"]),
        (without("epoch-1/eval.json"), ["epoch-1/eval.json was not written"]),
        (without("epoch-1/eval.json", **{"epoch-7/eval.json": ("{}", 3)}), []),
    ],
)
def test_a_file_is_missed_by_its_name_and_time(again: Files, expected: list[str], tmp_path: pathlib.Path) -> None:
    folders = [tmp_path / name for name in ("before", "run", "again")]
    again = {name.replace("-of-base", "-of-resumed-5"): file for name, file in again.items()}
    for folder, files in zip(folders, (BEFORE, RUN, again), strict=True):
        for name, (text, second) in files.items():
            path = folder / "checkpoints" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            os.utime(path, (second, second))
    plan = plan_of("rank-kill", "local", 1, None, pathlib.Path("scenarios"))[1]
    before, run, restart = folders
    found = forgotten(plan, (before, run), (before, restart), ("base", "resumed-5"))
    assert found.compared == len(RUN)
    expected = [f"checkpoints/{each}" for each in expected]
    assert [*found.words] == expected
    sooner = forgotten(plan, (before, run), (before, restart), ("base", "resumed-5"), until_ns=1.5e9)
    assert sooner.compared == len(BEFORE), "what the run wrote later is not due yet"
    assert [*sooner.words] == [each for each in expected if "written" not in each]
