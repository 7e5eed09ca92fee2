"""Objectives over stored runs: too little evidence is never a pass, and a run that was not judged hides nothing. And
`chaos history --slo`: exit codes, and mistakes with their place."""

import datetime
import fcntl
import json
import math
import pathlib
import shutil
import time
from collections.abc import Callable

import pytest
from command_line import chaos
from hypothesis import given
from hypothesis import strategies as st
from judging import edit, stored
from simulator import Logs
from typer.testing import Result

from harness.errors import ScenarioError
from harness.gate.objectives import Past, recovery_p95, runs_needed, success, waste
from harness.gate.slo_file import load_slo, parse_slo
from harness.judge.verdict import Verdict


def past(
    verdict: Verdict = Verdict.PASS, recovery_s: float | None = 5.0, wasted: float | None = 1.0, at: float = 0
) -> Past:
    return Past("run", at, verdict, recovery_s, 10.0, wasted)


FAIL, PASS, DOUBT = past(Verdict.FAIL), past(), past(Verdict.INCONCLUSIVE)


@pytest.mark.parametrize(
    ("runs", "answer"),
    [
        ([PASS] * 20, Verdict.PASS),
        ([PASS] * 19 + [FAIL], Verdict.PASS),
        ([PASS] * 18 + [FAIL] * 2, Verdict.FAIL),
        ([PASS] * 19, Verdict.INCONCLUSIVE),
        ([], Verdict.INCONCLUSIVE),
        ([DOUBT] * 50, Verdict.INCONCLUSIVE),
        ([PASS] * 20 + [DOUBT] * 2, Verdict.INCONCLUSIVE),
        ([PASS] * 20 + [DOUBT], Verdict.PASS),
        ([PASS] * 20 + [past(wasted=-1.0)] * 5, Verdict.INCONCLUSIVE),
    ],
)
def test_success(runs: list[Past], answer: Verdict) -> None:
    assert success(runs, 95.0, 20).verdict is answer
    assert [runs_needed(percent, 20) for percent in (50, 95, 99, 99.9, 100)] == [20, 20, 100, 1000, 20]


@given(st.lists(st.sampled_from([FAIL, PASS, DOUBT, past(Verdict.INVALID)]), max_size=60), st.floats(1, 100))
def test_an_objective_that_is_met_is_still_met_if_all_doubts_were_failures(runs: list[Past], percent: float) -> None:
    if success(runs, percent, 20).verdict is Verdict.PASS:
        worst = [run if run.judged else FAIL for run in runs]
        assert success(worst, percent, 20).verdict is Verdict.PASS


IMPOSSIBLE = past(recovery_s=-5.0)


@pytest.mark.parametrize(
    ("runs", "answer"),
    [
        ([past()] * 20, Verdict.PASS),
        ([past()] * 19 + [past(recovery_s=math.inf)], Verdict.PASS),
        ([past()] * 18 + [past(recovery_s=math.inf)] * 2, Verdict.FAIL),
        ([past()] * 19, Verdict.INCONCLUSIVE),
        ([past(recovery_s=None)] * 40, Verdict.INCONCLUSIVE),
        ([past()] * 20 + [past(Verdict.FAIL, None)] * 5, Verdict.INCONCLUSIVE),  # failures do not tell theirs
        ([IMPOSSIBLE] * 20, Verdict.INCONCLUSIVE),
        ([past()] * 20 + [IMPOSSIBLE] * 5, Verdict.INCONCLUSIVE),
    ],
)
def test_recovery(runs: list[Past], answer: Verdict) -> None:
    assert recovery_p95(runs, 10.0, 20).verdict is answer


def test_waste_and_its_burn_rate() -> None:
    old, new = [past(wasted=0.1)] * 40, [past(wasted=5.0, at=100.0)]
    met = waste(old, 10.0, 2.0, 50.0, 20)
    assert met.verdict is Verdict.PASS and met.observed == pytest.approx(1.0) and met.burn_rate is None
    burns = waste(old + new, 10.0, 2.0, 50.0, 20)
    assert burns.verdict is Verdict.FAIL and burns.burn_rate == pytest.approx(5.0)
    assert waste([past(wasted=2.0)] * 20, 10.0, 5.0, 50.0, 20).verdict is Verdict.FAIL
    assert waste(old[:20] + [past(wasted=None)] * 30, 10.0, 2.0, 50.0, 20).verdict is Verdict.INCONCLUSIVE
    for wasted, verdict in ((-1.0, Verdict.INCONCLUSIVE), (11.0, Verdict.INCONCLUSIVE), (10.0, Verdict.PASS)):
        assert waste([past(wasted=wasted)] * 20, 100.0, 2.0, 0, 20).verdict is verdict, "of 10 GPU-seconds"


ROOT = pathlib.Path(__file__).resolve().parents[2]
HEAD = "version: 1\nname: ours\ntitle: Ours\nobjectives:\n"


def ago(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(time.time() - seconds, datetime.UTC).isoformat()


def fails(logs: Logs) -> None:
    logs.lose("step", step=range(20, 30))


def hold(tmp_path: pathlib.Path, bounds: str, *given: str) -> Result:
    path = tmp_path / "slo.yaml"
    path.write_text(HEAD + f"  - {{id: all, severity: page, runs_min: 3, {bounds}}}\n")
    return chaos("history", "--slo", str(path), "--reports", str(tmp_path / "reports"), *given)


@pytest.mark.parametrize(
    ("verdicts", "code", "word"),
    [(["pass"] * 3, 0, "met"), (["pass", "fail", "pass"], 1, "missed"), (["pass"] * 2, 3, "too little evidence")],
)
def test_the_exit_code_says_whether_it_is_met(
    tmp_path: pathlib.Path, verdicts: list[str], code: int, word: str
) -> None:
    for number, verdict in enumerate(verdicts):
        bend = fails if verdict == "fail" else lambda logs: None
        stored(tmp_path / "reports" / f"run-{number:03d}", bend, begun_at=ago(60 + number))
    done = hold(tmp_path, "success: 90%")
    assert done.exit_code == code and word in done.output and "all (page), success" in done.output
    assert "note:" not in done.output


def report(**changes: str) -> Callable[[pathlib.Path], object]:
    return lambda run: edit(run / "report.json", lambda values: values.update(changes))


@pytest.mark.parametrize(
    ("spoil", "verdict", "said"),
    [
        (report(verdict="pass"), "missed", "says verdict pass, the log fail"),
        (report(begun_at="1970-01-01T00:00:00Z"), "missed", "says begun_at 1970"),
        (lambda run: (run / "report.json").write_text("{"), "missed", "the verdict by its log: fail"),
        (lambda run: (run / "report.json").unlink(), "missed", "the verdict by its log: fail"),
        (lambda run: (run / "plan.json").unlink(), "missed", ""),
        (lambda run: shutil.rmtree(run / "events"), "not known", "run-9: its log cannot be judged"),
        (
            lambda run: (run / "events" / "harness.jsonl").write_text("{}\n"),
            "not known",
            "run-9: its log cannot be judged",
        ),
    ],
)
def test_a_run_counts_by_its_log(
    tmp_path: pathlib.Path, spoil: Callable[[pathlib.Path], object], verdict: str, said: str
) -> None:
    for number in range(3):
        stored(tmp_path / "reports" / f"run-{number}", begun_at=ago(number))
    spoil(stored(tmp_path / "reports" / "run-9", fails, begun_at=ago(9)))
    done = hold(tmp_path, "success: 90%")
    assert verdict in done.stdout and said in done.output, done.output
    assert verdict == "missed" or "1 more not judged: run-9, and these decide it" in done.stdout


def test_a_run_with_an_impossible_date_or_without_a_log_is_told(tmp_path: pathlib.Path) -> None:
    for number in range(9):
        stored(tmp_path / "reports" / f"run-{number}", begun_at=ago(number))
    stored(tmp_path / "reports" / "run-9", fails, begun_at="1970-01-01T00:00:00+00:00")
    done = hold(tmp_path, "success: 80%")
    assert done.exit_code == 0 and "9 of 9 judged runs passed; 1 more not judged: run-9" in done.stdout
    assert "run-9: it began 1970-01-01T00:00:00+00:00; allowed: from 2020 until now" in done.output
    (tmp_path / "reports" / "run-8" / "undo.jsonl").touch()
    with open(tmp_path / "reports" / "run-8" / "undo.jsonl") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "8 of 8 judged runs passed; 1 more" in hold(tmp_path, "success: 80%").stdout, "run-8 is at work"


def test_without_any_run_nothing_is_met_though_the_example_is_right(tmp_path: pathlib.Path) -> None:
    path = ROOT / "examples" / "monitoring" / "slo.yaml"
    done = chaos("history", "--slo", str(path), "--reports", str(tmp_path), "--json")
    assert done.exit_code == 3
    assert {each["verdict"] for each in json.loads(done.stdout)} == {"inconclusive"}
    assert load_slo(ROOT / "examples" / "monitoring" / "slo.yaml").name == "resilience"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("  - {id: a}\n", "a.yaml:5:5: objectives.0: it asks for nothing"),
        ("  - {id: a, succes: 99%}\n", "a.yaml:5:13: objectives.0.succes: unknown key; did you mean success?"),
        ("  - {id: a, success: 120%}\n", "a.yaml:5:13: objectives.0.success"),
        ("  - {id: a, success: 9%, faults: [evict]}\n", "unknown fault 'evict'"),
        ("  - {id: a, success: 9%}\n  - {id: a, success: 9%}\n", "already the id of another objective"),
    ],
)
def test_mistakes_are_told_with_their_place(text: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_slo(HEAD + text, "a.yaml")
    assert message in str(caught.value)
