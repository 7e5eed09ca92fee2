"""The ruler finds a planted change, and none where there is none."""

import pathlib
import shutil

import pytest
from ruler.__main__ import ROOT, answers, claims_changed, judged, table
from ruler.histories import Stored, simulated, stored

FAILS = "yield breach(text, grounds=[Ground(Kind.ABSENCE, tuple(rows), steps, lines)])"
DOUBTS = FAILS.replace("text,", "text, __import__('harness').judge.facts.tellers.UPDATES,")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Stored]:
    found = list(simulated(tmp_path_factory.mktemp("runs"), 24, seed=1))
    return found[-8:]


def planted(folder: pathlib.Path, old: str, new: str) -> pathlib.Path:
    """A copy of this checkout's code in which one file of the judge says something else."""
    shutil.copytree(ROOT / "harness", folder / "harness", ignore=shutil.ignore_patterns("__pycache__"))
    path = next(path for path in (folder / "harness" / "judge").rglob("*.py") if old in path.read_text())
    path.write_text(path.read_text().replace(old, new))
    return folder


def test_nothing_differs_from_itself(runs: list[Stored]) -> None:
    found = judged(ROOT, runs)
    same = "8 runs: 8 equal, 0 different (verdict 0, claims 0, figures 0); other words only: 0"
    assert table(runs, found, found) == ([same], 0)
    assert {code for answer in found for _, code, _ in answer["claims"]} >= {"steps.all"}


def test_a_planted_change_is_found(runs: list[Stored], tmp_path: pathlib.Path) -> None:
    """A failure that becomes an inconclusive by an excuse: the verdict, the claim and its doubt are told."""
    other = planted(tmp_path, FAILS, DOUBTS)
    allowed = [Stored(run.name, run.path, ("fail",)) for run in runs]
    lines, different = table(allowed, judged(ROOT, runs), answers(other, runs, keep=False))
    told = "\n".join(lines)
    assert different == 1 and "1 × fail -> inconclusive" in told
    assert "steps.all: fail -> inconclusive (known.told)    simulated/00" in told
    assert "worse: simulated/0020-is_absent_in_the_middle: fail -> inconclusive (fail is right)" in told


def test_a_figure_that_differs_is_found(runs: list[Stored], tmp_path: pathlib.Path) -> None:
    other = planted(tmp_path, '"events_dropped": run.dropped', '"events_dropped": run.dropped + 1')
    lines, different = table(runs, judged(ROOT, runs), judged(other, runs))
    assert different == len(runs) and "metrics.events_dropped" in "\n".join(lines)


def test_a_crash_is_an_answer_and_the_code_of_another_checkout_is_never_judged_instead(
    runs: list[Stored], tmp_path: pathlib.Path
) -> None:
    other = planted(tmp_path, "    analysis = Analysis.of(evidence)\n", "    raise KeyError('planted')\n")
    assert [each["verdict"] for each in judged(other, runs[:1])] == ["crashed: KeyError"]
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(Exception, match="exit status 1"):
        judged(empty, runs[:1])


def test_what_changes_of_a_claim() -> None:
    one = {"claims": [["fail", "a", ""], ["fail", "a", ""], ["fail", "b", ""]]}
    other = {"claims": [["fail", "a", ""], ["invalid", "c", ""]]}
    assert list(claims_changed(one, other)) == ["a: fail -> nothing", "b: fail -> nothing", "c: nothing -> invalid"]


def test_the_histories_are_the_same_for_a_seed(runs: list[Stored], tmp_path: pathlib.Path) -> None:
    again = list(simulated(tmp_path, 24, seed=1))
    assert [run.name for run in again[-8:]] == [run.name for run in runs]
    for one, other in zip(runs, again[-8:], strict=True):
        mine = {path.relative_to(one.path): path.read_bytes() for path in one.path.rglob("*.jsonl")}
        assert mine == {path.relative_to(other.path): path.read_bytes() for path in other.path.rglob("*.jsonl")}
    assert [run.name for run in stored(tmp_path)] == sorted(f"{tmp_path.name}/{run.path.name}" for run in again)
