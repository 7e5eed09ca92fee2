"""The code that a sweep is of, and a stored sweep as the commands on stored runs show it: also while it is at work, and where one cause shows often."""

import json
import pathlib
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
import small_jobs
from command_line import chaos
from report_pages import Page

from harness.backends.contract import load_backend
from harness.errors import ChaosError
from harness.judge.verdict import Verdict
from harness.log.journal import Journal
from harness.matrix import resume_command, resume_report
from harness.matrix.moments import Moment
from harness.matrix.resume_comparison import Finding, Kind
from harness.matrix.sweep import BASE, NONE_FORGOTTEN, RESUMED, Forgotten, Sweep, Tried
from harness.matrix.trainer_code import code_of, is_known

NAME = "resume-mine-0123abcd"


def tried(step: int, words: str = "", beside: Forgotten = NONE_FORGOTTEN) -> Tried:
    found = (Finding(Kind.SCHEDULE, words),) if words else ()
    moment = Moment(f"save number {step}", step, step)
    return Tried(moment, str(step), found, 5, 1.0, {Kind.SAMPLES.name: 5}, "", beside)


def stored(reports: pathlib.Path, restarts: Sequence[Tried], complete: bool = True) -> Sweep:
    found = Sweep(NAME, "mine", "0123", {}, steps=40, tried=list(restarts), complete=complete)
    unjudged(reports)
    resume_report.write(found, reports / NAME)
    return found


def unjudged(reports: pathlib.Path) -> None:
    for part in (BASE, RESUMED):
        (reports / NAME / part).mkdir(parents=True, exist_ok=True)
    (reports / NAME / "plan.json").write_text(json.dumps(small_jobs.job("mine", ["x"]).to_json()))


def told(reports: pathlib.Path, *words: str) -> str:
    result = chaos(*words, "--reports", str(reports))
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def refused(reports: pathlib.Path, *words: str, code: int = 2) -> str:
    result = chaos(*words, "--reports", str(reports))
    assert isinstance(result.exception, ChaosError) and result.exception.exit_code == code, (result, result.exception)
    return str(result.exception)


def test_one_cause_is_told_once(tmp_path: pathlib.Path) -> None:
    """Whatever its numbers are; another cause stands by itself."""
    same = [tried(step, f"at step {step + 1} the learning rate is {step / 7}, and 1e-05 without") for step in range(5)]
    found = stored(tmp_path, [*same, tried(20), tried(30, "it consumed other samples")])
    first, other = found.findings
    assert first.count("the learning rate is") == 1 and first.startswith("from save number 0 (step 0): at step 1")
    likewise = "likewise from save number 1 (step 1), save number 2 (step 2), save number 3 (step 3) and 1 more"
    assert first.endswith(likewise) and other == "from save number 30 (step 30): it consumed other samples"
    assert found.why.startswith("6 of 7 restarts went wrong; from save number 0")
    pages = [(tmp_path / NAME / f"report.{kind}").read_text() for kind in ("html", "md")]
    for shown in (told(tmp_path, "show", NAME), *pages):
        assert shown.replace("&nbsp;", " ").count("at step 1 the learning rate is") <= 2, "a part, and the headline"
        assert "at step 2 the" not in shown and "at step 5 the" not in shown
    assert told(tmp_path, "show", NAME).count("the same as from save number 0") == 4


def test_a_restart_that_shows_nothing_is_not_green(tmp_path: pathlib.Path) -> None:
    silent = replace(tried(1), compared={Kind.SAMPLES.name: 0})
    finished = replace(silent, steps=0)
    found = stored(tmp_path, [tried(0), silent, finished, tried(3, "it consumed other samples")])
    assert [each.verdict.value for each in found.tried] == ["pass", "inconclusive", "pass", "fail"]
    rows = Page((tmp_path / NAME / "report.html").read_text()).rows
    assert [row[0] for row in rows[1:5]] == ["pass", "inconclusive", "pass", "fail"]
    assert rows[2][3] == "nothing could be compared" and rows[3][3] == "no step was left to do, and it did none"


def test_files_beside_the_state_that_could_not_be_compared_are_named(tmp_path: pathlib.Path) -> None:
    def fact(*restarts: Tried) -> str:
        (line,) = (each for each in resume_report.facts(stored(tmp_path, restarts)) if each.startswith("files"))
        return line

    assert fact(tried(1), tried(2)) == "files, beside the state: none could be compared"
    assert fact(tried(1), tried(2, "", Forgotten((), 3))) == "files, beside the state: 3 compared, none is missing"
    assert fact(tried(1, "", Forgotten(("best.pt is gone",), 3))) == "files, beside the state: best.pt is gone"
    asked = replace(stored(tmp_path, [tried(1)]), files=True)
    assert asked.verdict is Verdict.INCONCLUSIVE and "none could be compared" in asked.why
    seen = [tried(1), tried(2, "", Forgotten((), 3))]
    assert replace(asked, tried=seen).verdict is Verdict.PASS
    in_part = replace(asked, tried=[*seen, tried(3, "", Forgotten(unseen="out: closed"))])
    assert in_part.verdict is Verdict.INCONCLUSIVE and in_part.why.endswith("from save number 3: out: closed")
    assert fact(*in_part.tried).endswith("3 compared, none is missing; not from save number 3: out: closed")


def test_a_sweep_that_is_at_work_says_so(tmp_path: pathlib.Path) -> None:
    unjudged(tmp_path)
    journal = Journal(tmp_path / NAME)
    assert "the sweep is at work, in its run without faults" in told(tmp_path, "show", "last")
    assert "the sweep is at work" in refused(tmp_path, "show", "last", "--json", code=3)
    stored(tmp_path, [tried(1)], complete=False)
    assert "the sweep is at work, 1 restart so far" in told(tmp_path, "show", "last")
    before = (tmp_path / NAME / "resume.json").read_bytes()
    assert "the sweep is at work" in refused(tmp_path, "score", NAME)
    assert (tmp_path / NAME / "resume.json").read_bytes() == before
    journal.release()
    assert "at work" not in told(tmp_path, "show", "last")


def test_commands_for_one_run_name_what_a_sweep_has(tmp_path: pathlib.Path) -> None:
    stored(tmp_path, [tried(1)])
    assert time.strftime("%Y-%m-%d", time.gmtime()) in told(tmp_path, "runs")
    assert "export one of" in refused(tmp_path, "export", NAME, "--perfetto", str(tmp_path / "trace.json"))
    assert not (tmp_path / "trace.json").exists()
    (tmp_path / "other" / "events").mkdir(parents=True)
    assert "is no run of one scenario" in refused(tmp_path, "compare", NAME, str(tmp_path / "other"))


def test_what_a_resumed_job_left_wrong_is_counted_once(tmp_path: pathlib.Path) -> None:
    """A resume that begins from what a wrong one saved shows its error again, perhaps in other words."""
    first, second, third = tried(10, "other samples"), tried(20, "another loss"), tried(30, "another rate")
    row = [first, *(replace(each, moment=replace(each.moment, resume=n)) for n, each in ((2, second), (3, third)))]
    found = replace(stored(tmp_path, row), saves=[10, 20, 30])
    assert found.findings == ["from save number 10 (step 10): other samples"]
    assert found.why.startswith("1 of 3 restarts went wrong")
    again = [told[0] for _, told in found.told_once()][1]
    assert again.startswith("it began from a save of a wrong restart (save number 10)")
    own = replace(found, tried=[replace(first, found=()), *row[1:]])
    assert own.findings == ["from save number 20 (step 20): another loss"], "the row went wrong at its second resume"


def test_a_restart_from_which_nothing_follows_is_no_pass(tmp_path: pathlib.Path) -> None:
    odd = replace(tried(2), unsure="it has another seed, so it was not the run's job")
    found = stored(tmp_path, [tried(1), odd])
    assert odd.waits and not replace(odd, compared={}).waits, "for repeats; another job shows nothing"
    assert found.verdict is Verdict.INCONCLUSIVE and found.why.endswith("so it was not the run's job")
    assert "inconclusive: it has another seed" in (tmp_path / NAME / "report.md").read_text()


def test_how_far_restarts_were_followed_is_told(tmp_path: pathlib.Path) -> None:
    ends = replace(tried(1), moment=Moment("a save at the end of pass 1", 1, 1), to_end=True)
    found = stored(tmp_path, [ends, tried(2)])
    (line,) = (each for each in resume_report.facts(found) if "followed" in each)
    assert line.startswith("followed to the end of the job: from a save at the end of a pass; followed only to some ")
    assert line.endswith("do not show: from save number 2")
    assert "5, to the end" in (tmp_path / NAME / "report.html").read_text()
    assert [each["to_end"] for each in resume_report.plain(found)["tried"]] == [True, False]


def test_findings_of_a_sweep_that_was_stopped_are_printed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = [(f"moment {number}", "there is none") for number in range(7)]
    begun = {"a notice": "it led to no save"}
    found = replace(stored(tmp_path, [tried(1, "other samples")]), interrupted=True, not_tried=missing, not_had=begun)
    monkeypatch.setattr(resume_command, "run_sweep", lambda plan, setting: found)
    plan = small_jobs.job("mine", ["x"])
    code = resume_command.sweep(plan, None, tmp_path, "1m", None, None, False, None, [], False)  # type: ignore[arg-type]
    lines = [" ".join(each.split()) for each in capsys.readouterr().out.splitlines()]
    assert code == 130 and "from save number 1 (step 1): other samples" in lines
    assert "a notice not tried: it led to no save" in lines, "it was announced"
    assert lines[-1] == "not tried: 7 moments; the report says why"


@pytest.mark.parametrize("changed", ["train.py", "model.py", "parts/net.py"])
def test_a_change_of_a_trainer_outside_of_the_scenarios_folder_is_noticed(tmp_path: pathlib.Path, changed: str) -> None:
    for name in ("train.py", "model.py", "parts/net.py", "reports/run/copied.py", "reports/run/plan.json", "a/a.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    trainer = {"command": ["{python}", str(tmp_path / "train.py")], "scenario_dir": str(tmp_path / "a")}
    plan, backend = small_jobs.job("mine", [], trainer=trainer), load_backend("local")
    before = code_of(plan, backend)
    assert is_known(plan, before)
    (tmp_path / "reports/run/copied.py").write_text("a copy of a run is no code")
    assert code_of(plan, backend) == before
    (tmp_path / changed).write_text("other")
    assert code_of(plan, backend) != before
    elsewhere = small_jobs.job("mine", ["a-program-that-is-not-here"])
    assert not is_known(elsewhere, code_of(elsewhere, backend))
