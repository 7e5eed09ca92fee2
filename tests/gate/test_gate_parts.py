"""Parts of a gate: known failures, tags, budgets, shards; what is left out is never a full pass."""

import datetime
import json
import os
import pathlib
import re
import shlex
import shutil
from dataclasses import replace
from typing import Any

import pytest
from command_line import chaos
from judging import stored
from msgspec import structs
from scorecards import assert_verdict

from harness.campaign.campaign_observers import CampaignObserver
from harness.campaign.repeats import RepeatVerdict, repeat_verdict
from harness.errors import ScenarioError, UsageError
from harness.gate import baseline, gate_command, merging, run_figures, selection, stored_gate
from harness.gate import suite_run as module
from harness.gate.baseline_comparison import Question, Regressions, Success, compare
from harness.gate.gate_report import against_json, next_steps, yes_or_no
from harness.gate.known_failures import settle
from harness.gate.selection import Past, Shard, parse_shard
from harness.gate.stored_gate import LeftOut
from harness.gate.suite_file import KnownFailure, find_blindness_check, parse_suite
from harness.judge.score import Scorecard
from harness.judge.verdict import Verdict
from harness.report import commands

HEAD = "version: 1\nname: small\ntitle: A small gate\nscenarios:\n"
THREE = HEAD + "  - rank-kill\n  - {scenario: spot-evict, required: false}\n  - node-loss\n"
TWICE = HEAD + "  - rank-kill\n  - {scenario: rank-kill, overrides: {workload: {steps: 150}}}\n"
CODE = {"trainer_commit": "c" * 40, "trainer_diff": "clean"}
TODAY = datetime.date(2026, 11, 22)


def known(because: str | list[str], until: str = "2026-12-31") -> KnownFailure:
    return KnownFailure.model_validate({"ticket": "T-1", "until": until, "because": because})


def known_entry(scenario: str, bad: Scorecard) -> str:
    because = json.dumps(list(bad.reasons))
    return f"  - {{scenario: {scenario}, known_failure: {{ticket: T-1, until: 2026-12-31, because: {because}}}}}\n"


def settled(entry: KnownFailure, *cards: Scorecard) -> RepeatVerdict:
    return settle(entry, repeat_verdict(cards), cards, TODAY)


def test_a_known_failure_covers_what_fails_over_it_and_nothing_else(good: Scorecard, bad: Scorecard) -> None:
    own = list(bad.reasons)
    for entry, cards, verdict, said in (
        (known(own), [bad], Verdict.PASS, "known failure T-1, until 2026-12-31: it fails as expected"),
        (known("out of memory"), [bad], Verdict.FAIL, "for another reason than its known failure T-1"),
        (known(own), [bad, replace(bad, reasons=[*own, "and the disk burnt"])], Verdict.FAIL, "the disk burnt"),
        (known(own), [good] * 4 + [bad], Verdict.FAIL, "4 of 5 runs pass, but it is listed as a known"),
        (known("never recovered"), [good], Verdict.FAIL, "remove known_failure from the suite"),
        (known(own, "2026-11-21"), [good], Verdict.FAIL, "has expired; fix it or renew it"),
        (known(own, "2026-11-21"), [bad], Verdict.FAIL, "has expired; fix it or renew it"),
        (known(own, "2026-11-22"), [bad], Verdict.PASS, ""),  # the last day counts
    ):
        assert_verdict(settled(entry, *cards), verdict, first=said)
    silent = settle(known(own), repeat_verdict([bad, bad]), [bad, replace(bad, reasons=[])], TODAY)
    assert_verdict(silent, Verdict.FAIL, first="gives no reason")
    for unclear in (Verdict.INVALID, Verdict.INCONCLUSIVE):  # a run that proves nothing is not covered
        doubtful = replace(good, verdict=unclear, reasons=["no fault-free run"])
        assert settled(known("no fault-free run"), doubtful).verdict is unclear
        assert settled(known([*own, "no fault-free run"]), bad, doubtful).verdict is Verdict.INCONCLUSIVE


def test_a_known_failure_needs_a_ticket_a_date_and_a_reason() -> None:
    entry = "{scenario: rank-kill, known_failure: {ticket: T-1, until: 2026-12-31, because: never recovered}}"
    entry = f"{HEAD}  - {entry}"
    assert parse_suite(entry, "s.yaml").entries[0].known_failure == known("never recovered")
    for wrong in (
        entry.replace("until: 2026-12-31, ", ""),
        entry.replace("2026-12-31", "soon"),
        entry.replace(", because: never recovered", ""),
        entry.replace("never recovered", '" "'),
        entry.replace("never recovered", "e"),
        entry.replace("never recovered", "[never recovered, e]"),
        entry.replace("never recovered", '"1234567: ... "'),
    ):
        with pytest.raises(ScenarioError, match=r"s\.yaml:5:.*known_failure"):
            parse_suite(wrong, "s.yaml")


def test_what_is_left_out_is_named_and_without_what_is_required_it_is_no_full_pass(
    rehearse: Any, bad: Scorecard, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    answer = rehearse(THREE, {"rank-kill": bad}, fail_fast=True)
    assert answer.verdict is Verdict.FAIL and [row.name for row in answer.rows] == ["rank-kill"]
    assert [each.why for each in answer.part.left_out] == ["rank-kill had failed"] * 2
    assert rehearse(THREE, {"rank-kill": bad}).part.left_out == ()
    past = {"rank-kill": Past(10, False), "spot-evict": Past(10, False), "node-loss": Past(1000, False)}
    monkeypatch.setattr(module, "look_back", lambda *_: past)
    answer = rehearse(THREE, budget_s=600)
    assert answer.verdict is Verdict.INCONCLUSIVE
    with monkeypatch.context() as patch:
        patch.setattr(gate_command, "run_gate", lambda *_: answer)
        command = ["gate", str(tmp_path / "small.yaml"), "--reports", str(tmp_path / "reports")]
        told = chaos(*command).output
    assert "INCONCLUSIVE  Not a full pass: 1 required scenario left out: node-loss (it takes about 2000 s" in told
    assert "\n  All 2 scenarios passed, and the blindness check was caught\n" in told, "one thought a line"
    with pytest.raises(UsageError, match="none of the selected scenarios is one of these: node-loss"):
        rehearse(THREE.replace("  - node-loss\n", ""), last_failed=True)
    assert [row.name for row in rehearse(THREE, last_failed=True).rows] == ["node-loss"]
    past["node-loss"], past["spot-evict"] = Past(10, False), Past(1000, False)
    answer = rehearse(THREE, budget_s=600)
    assert answer.verdict is Verdict.PASS and "without spot-evict, which are not required" in answer.reason
    assert rehearse(THREE, budget_s=0).verdict is Verdict.INCONCLUSIVE


def test_two_entries_that_do_the_same_are_refused(rehearse: Any) -> None:
    for more in ("", ", expect: {pace: off}", ', workload: {trainer: {command: [x, "{checkpoint_every}"]}}'):
        twice = HEAD + f"  - rank-kill\n  - {{scenario: rank-kill, overrides: {{repeat: 2{more}}}}}\n"
        with pytest.raises(ScenarioError, match=r"small\.yaml:6:5: scenarios\.1: rank-kill does the same as"):
            rehearse(twice)


def test_shards_are_held_against_a_baseline_together_and_of_a_scenario_twice_the_healthy_one(
    rehearse: Any, tmp_path: pathlib.Path, bad: Scorecard
) -> None:
    first = rehearse(THREE, recovery=7.0, repeat=5)
    for recovery, expected in ((7.1, Verdict.PASS), (10.6, Verdict.FAIL)):
        made = shards(rehearse, 2, recovery=recovery, repeat=5)
        merged = merging.merge_gates(made, tmp_path / "reports", first.run_id)
        assert merged.verdict is expected and merged.held and len(merged.held.answers) == 9
    failed = rehearse(TWICE, {"rank-kill": bad})
    assert failed.verdict is Verdict.FAIL and "2 of 2 scenarios" in failed.reason
    first = rehearse(TWICE, recovery=7.0, repeat=5)
    folders = [rehearse.folder(rehearse(TWICE, recovery=10.6, repeat=5, shard=Shard(i, 2))) for i in (1, 2)]

    def known(values: Any) -> None:
        for row in values["scenarios"]:
            row |= {"known_failure": True} if "scenario" in row else {}
            for run in row["runs"]:
                run["verdict"] = "fail"

    for name in ("suite.json", "figures.json"):
        _edit(folders[1], known, name)
    merged = merging.merge_gates(folders, tmp_path / "reports", first.run_id)
    assert merged.verdict is Verdict.FAIL and merged.held and len(merged.held.answers) == 3
    assert len(run_figures.read(rehearse.folder(first) / "figures.json").scenarios) == 2


def test_a_tag_selects_and_is_told_and_what_matters_most_comes_first(rehearse: Any) -> None:
    answer = rehearse(THREE, tag="crash")
    assert "rank-kill" in [row.name for row in answer.rows] and len(answer.rows) < 3
    assert "with tag crash" in answer.reason
    with pytest.raises(UsageError, match="no scenario of this suite has it; their tags are: "):
        rehearse(THREE, tag="nonsense")
    suite = parse_suite(THREE.replace("node-loss", "rank0-kill"), "s.yaml")
    specs: Any = [(entry, None) for entry in suite.entries]
    past = {"rank-kill": Past(1, False), "spot-evict": Past(1, True), "rank0-kill": Past(1, True)}
    order = [specs[place][0].name for place in selection.by_weight(specs, past)]
    assert order == ["rank0-kill", "rank-kill", "spot-evict"]


def test_a_shard_is_one_of_several() -> None:
    for text in ("0/4", "5/4", "2", "2/", "a/b", "-1/2", "1/0"):
        with pytest.raises(UsageError, match="--shard"):
            parse_shard(text)
    assert parse_shard("2/4") == Shard(2, 4)


class Notes(CampaignObserver):
    def __init__(self) -> None:
        self.told: list[str] = []

    def begins(self, name: str, about: str) -> None:
        self.told.append(name)

    def note(self, text: str) -> None:
        self.told.append(text)


def test_a_gate_is_held_against_an_earlier_one(rehearse: Any, capsys: pytest.CaptureFixture[str]) -> None:
    first, heard = rehearse(THREE, recovery=7.0, repeat=5), Notes()

    def against(recovery: float, repeat: int = 5, baseline: str = first.run_id, **more: Any) -> Any:
        return rehearse(THREE, recovery=recovery, repeat=repeat, against=baseline, **more)

    same = against(6.9)
    assert same.verdict is Verdict.PASS and same.reason.endswith(f"not worse than baseline {first.run_id}")
    assert next_steps(same) == []
    (told,) = next_steps(against(3.5))  # the baseline is of a busier host
    assert told.startswith("node-loss, rank-kill, spot-evict did much better") and "chaos baseline set" in told
    slower = against(10.6)
    assert slower.verdict is Verdict.FAIL
    assert "rank-kill: recovery time: 1.51 × the baseline" in slower.reason
    folder = rehearse.folder(slower)
    values = json.loads((folder / "suite.json").read_text())
    assert values["against"]["verdict"] == "fail" and values["against"]["comparisons"][0]["ratio"] > 1.5
    page, text, junit = ((folder / name).read_text() for name in ("report.html", "report.md", "junit.xml"))
    assert "Against baseline" in page and "Against baseline" in text and "recovery time against" in junit
    compare = f"chaos compare {first.rows[0].runs[-1].run_id} {slower.rows[0].runs[-1].run_id}"
    assert any(compare in step for step in next_steps(slower)) and compare in page
    few = against(7.0, 2, observer=heard)
    assert heard.told[0].startswith("This gate can fail, but not pass: rank-kill, ") and "--repeat 5" in heard.told[0]
    for answer, warns in ((few, True), (first, False)):
        gate_command.set_("kept", answer.run_id, folder.parent)
        assert ("Fewer than 3 judged runs: rank-kill, " in capsys.readouterr().err) is warns
    assert few.verdict is Verdict.INCONCLUSIVE and "3 more runs on each side would settle it" in few.reason
    assert_verdict(against(0.0), Verdict.INCONCLUSIVE)
    single = rehearse(THREE, recovery=7.0, repeat=1).run_id
    said = "The baseline has too few runs: make a gate with --repeat 5 on the stack that you trust, then: chaos baseline set"
    assert next_steps(against(7.1, 3, single)) == [f"{said} {single}"]


def test_a_new_scenario_is_doubt_a_known_failure_is_not_compared_and_another_gate_is_refused(
    rehearse: Any, bad: Scorecard, tmp_path: pathlib.Path
) -> None:
    alone = HEAD + "  - rank-kill\n"
    first = rehearse(alone, recovery=7.0, repeat=5)
    before = sorted((tmp_path / "reports").iterdir())
    with pytest.raises(UsageError, match="seed 1, here 2"):
        rehearse(alone, recovery=7.0, seed=2, against=first.run_id)
    other = "  - {scenario: rank-kill, overrides: {workload: {checkpoint: {every_steps: 7}}}}"
    with pytest.raises(UsageError, match="another version of the scenario"):
        rehearse(HEAD + other, against=first.run_id)
    assert sorted((tmp_path / "reports").iterdir()) == before, "before anything runs"
    more = rehearse(alone + "  - node-loss\n", recovery=7.0, repeat=5, against=first.run_id)
    assert more.verdict is Verdict.INCONCLUSIVE
    assert "node-loss: the baseline has no runs of this scenario" in more.reason
    suite = alone + known_entry("node-loss", bad)
    known_one = rehearse(suite, {"node-loss": bad}, recovery=7.0, repeat=5, against=first.run_id)
    assert known_one.verdict is Verdict.PASS and known_one.held and "1 of them with a known failure" in known_one.reason
    assert "node-loss (its failure is known)" in known_one.held.not_compared


def shards(rehearse: Any, count: int, cards: dict[str, Scorecard] | None = None, **more: Any) -> list[pathlib.Path]:
    """The folders of all shards of a gate."""
    return [rehearse.folder(rehearse(THREE, cards, shard=Shard(i, count), **more)) for i in range(1, count + 1)]


def test_shards_together_are_the_whole_gate(
    rehearse: Any, tmp_path: pathlib.Path, bad: Scorecard, good: Scorecard
) -> None:
    blind, unproven, red = (shards(rehearse, 2) for _ in range(3))
    _edit(blind[1], lambda values: values["blindness_check"].update(verdict="pass"))
    _edit(unproven[1], lambda values: values["blindness_check"].update(runs=[]))
    _edit(red[0], lambda values: values.update(verdict="fail", reason="against baseline x: worse"))
    unclear = replace(good, verdict=Verdict.INCONCLUSIVE, reasons=["the host was busy"])
    for parts, verdict, said in (
        (shards(rehearse, 3)[:2], Verdict.INCONCLUSIVE, "shard 3 of 3 (it was not given)"),
        (shards(rehearse, 2, {"spot-evict": bad}), Verdict.FAIL, ""),
        (blind, Verdict.INVALID, ""),
        (unproven, Verdict.INVALID, "shard 2: its blindness check, which must fail, did not"),
        (red, Verdict.FAIL, "shard 1 says fail: against baseline x: worse"),
        (shards(rehearse, 2, {"node-loss": unclear}), Verdict.INCONCLUSIVE, ""),
        (whole := shards(rehearse, 2), Verdict.PASS, "all 3 scenarios passed"),
    ):
        merged = merging.merge_gates(parts, tmp_path)
        assert merged.verdict is verdict and said in merged.reason
        assert not any("chaos gate" in step for step in next_steps(merged)), "nobody can run one for all shards"
    assert sorted(row.name for row in merged.rows) == ["node-loss", "rank-kill", "spot-evict"]
    assert json.loads((tmp_path / merged.run_id / "suite.json").read_text())["verdict"] == "pass"
    summary, files = tmp_path / "summary.md", [str(part / "suite.json") for part in whole]
    command = ["gate", "merge", *files, "--reports", str(tmp_path / "answer"), "--summary", str(summary)]
    assert chaos(*command).exit_code == 0
    assert "YES: all 3 scenarios passed" in summary.read_text()


def test_shards_that_do_not_belong_together_are_refused(rehearse: Any, tmp_path: pathlib.Path) -> None:
    first, _ = shards(rehearse, 2)
    other = rehearse(THREE + "  - rank0-kill\n", shard=Shard(2, 2))
    for wrong, said in (
        ([first, first], "given twice"),
        ([first, rehearse.folder(rehearse(THREE))], "is not a shard"),
        ([first, shards(rehearse, 3)[1]], "another suite, backend, seed or number"),
        ([first, rehearse.folder(other)], "another suite"),
        ([first, tmp_path], "cannot be read"),
        ([], "needs the gates"),
    ):
        with pytest.raises(UsageError, match=said):
            merging.merge_gates(wrong, tmp_path)


def _edit(folder: pathlib.Path, change: Any, name: str = "suite.json") -> None:
    values = json.loads((folder / name).read_text())
    change(values)
    (folder / name).write_text(json.dumps(values))


def test_a_shard_that_contradicts_itself_is_not_believed(rehearse: Any, tmp_path: pathlib.Path) -> None:
    for what, change in {
        "a pass without runs": lambda rows: rows[0].update(runs=[]),
        "a known failure without runs": lambda rows: rows[0].update(runs=[], known_failure=True),
        "a pass over a failed run": lambda rows: rows[0]["runs"][0].update(verdict="fail"),
        "a known failure that passes": lambda rows: rows[0].update(known_failure=True),
        "a scenario too few": lambda rows: rows.pop(0),
    }.items():
        parts = shards(rehearse, 2)
        _edit(parts[0], lambda values, change=change: change(values["scenarios"]))
        assert merging.merge_gates(parts, tmp_path).verdict is Verdict.INCONCLUSIVE, what
    parts = shards(rehearse, 2)
    _edit(parts[0], lambda values: values["scenarios"][0].update(scenario="spot-evict"))
    with pytest.raises(UsageError, match="hold spot-evict more often than the suite"):
        merging.merge_gates(parts, tmp_path)
    _edit(parts[1], lambda values: values["scenarios"].clear())
    merged = merging.merge_gates(parts, tmp_path)
    assert merged.verdict is Verdict.INCONCLUSIVE and "rank-kill (no shard holds it)" in merged.reason


def test_figures_of_a_shard_are_those_of_its_runs_and_of_its_job(rehearse: Any, tmp_path: pathlib.Path) -> None:
    other = r"figures of .* are not those of its suite\.json"
    another = r"figures\.json: .* has {}; that of its suite\.json is"
    for change, said in (
        (lambda row: row["runs"].pop(0), other),
        (lambda row: row["runs"][0].update(verdict="inconclusive"), other),
        (lambda row: row["runs"][0].update(run_id="elsewhere"), other),
        (lambda row: row["identity"].update(seed="2"), another.format("seed 2")),
        (lambda row: row["identity"].update(backend="docker"), another.format("backend docker")),
    ):
        parts = shards(rehearse, 2, recovery=7.0, repeat=5)
        assert merging.merge_gates(parts, tmp_path).verdict is Verdict.PASS
        _edit(parts[0], lambda values, change=change: change(values["scenarios"][0]), "figures.json")
        with pytest.raises(UsageError, match=said):
            merging.merge_gates(parts, tmp_path)


def test_a_merge_believes_the_logs_that_lie_beside_a_shard(rehearse: Any, tmp_path: pathlib.Path) -> None:
    parts = shards(rehearse, 2)
    run_id = json.loads((parts[0] / "suite.json").read_text())["scenarios"][0]["runs"][0]["run_id"]
    run = stored(parts[0].parent / run_id)
    assert merging.merge_gates(parts, tmp_path).verdict is Verdict.PASS
    shutil.rmtree(run)
    stored(run, lambda logs: logs.lose("step", step=range(20, 30)))
    merged = merging.merge_gates(parts, tmp_path)
    assert merged.verdict is Verdict.INCONCLUSIVE and f"says pass, but run {run_id} is fail" in merged.reason


def test_what_programs_read_of_a_gate_keeps_its_shape(rehearse: Any) -> None:
    values = json.loads((rehearse.folder(rehearse(THREE, fail_fast=True)) / "suite.json").read_text())
    keys = "schema suite title run_id verdict reason blindness_check scenarios part against answer next_steps"
    assert sorted(values) == sorted(keys.split())
    keys = "scenario title verdict reasons known_failure swept runs shares_of_bounds"
    assert sorted(values["scenarios"][0]) == sorted(values["blindness_check"]) == sorted(keys.split())
    assert sorted(values["scenarios"][0]["runs"][0]) == ["run_id", "verdict"]
    keys = "in_suite selected tag backend seed digest names shard shards left_out again added repeat"
    assert sorted(values["part"]) == sorted(keys.split()) and values["against"] is None
    question = Question("rank-kill", "recovery_time", (7.0, 7.1, 7.2), (7.0, 7.1, 7.3))
    answers = compare([question], [Success("rank-kill", 0, 3, 0, 3)])
    values = json.loads(json.dumps(against_json(Regressions("week", answers))))
    assert sorted(values) == ["baseline", "comparisons", "not_compared", "reasons", "verdict"]
    shared = ["scenario", "figure", "verdict", "reason", "more_runs", "ratio", "bounds"]
    first, second = values["comparisons"]
    assert sorted(first) == sorted([*shared, "before", "now"])
    assert sorted(second) == sorted([*shared, "failed_before", "runs_before", "failed_now", "runs_now"])


def test_a_blindness_check_is_looked_up_beside_the_suite_and_then_among_the_shipped_ones(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another file of this name in the working directory is not used."""
    shipped, own, elsewhere = (tmp_path / name for name in ("scenarios", "mine", "elsewhere"))
    for folder in (shipped / "suites", own, elsewhere):
        folder.mkdir(parents=True)
    for path in (shipped / "suites" / "blindness-check.yaml", elsewhere / "broken.yaml", elsewhere / "broken"):
        path.touch()
    monkeypatch.chdir(elsewhere)

    def found(named: str = "") -> pathlib.Path:
        text = "version: 1\nname: a\ntitle: A\nscenarios: [b]\n" + (f"blindness_check: {named}\n" if named else "")
        return find_blindness_check(parse_suite(text, "a.yaml"), own / "a.yaml", shipped)

    assert found().parent == shipped / "suites"
    with pytest.raises(UsageError, match="blindness-check' in"):
        found("blindness-check")
    for name in ("blindness-check", "broken"):
        (own / f"{name}.yaml").touch()
    assert found().parent == own
    assert found("broken") == found("broken.yaml") == own / "broken.yaml"


def test_the_answer_is_yes_or_no_with_what_to_do_next(rehearse: Any, good: Scorecard, bad: Scorecard) -> None:
    yes = rehearse(THREE)
    assert yes_or_no(yes).startswith("YES: all 3 scenarios passed") and not next_steps(yes)
    unclear = replace(good, verdict=Verdict.INCONCLUSIVE, reasons=["pace.max_slowdown: the host was busy"])
    no = rehearse(THREE, {"rank-kill": bad, "node-loss": unclear})
    assert yes_or_no(no) == "NO: of 3 scenarios, 1 failed, 1 could not be judged, 1 passed."
    failed, gate = (
        f"rank-kill failed: chaos show {no.rows[0].runs[0].run_id}",
        f"chaos gate {no.path} --add {no.run_id}",
    )
    rest = f"Run the scenarios that did not pass again, on a quiet host: {gate} --last-failed"
    assert next_steps(no) == [failed, rest]
    assert no.path.endswith("small.yaml"), "a name finds only what lies among the shipped suites"
    doubtful = Regressions("last week", [], missing=["rank-kill"])
    assert yes_or_no(replace(no, held=doubtful)).endswith("1 passed; against baseline last week: inconclusive.")
    cut = replace(no, rows=no.rows[:1])
    assert yes_or_no(cut) == "NO: of 3 scenarios, 1 failed, 2 did not run."
    compared = next_steps(replace(no, held=Regressions("last week", []), path=""))
    again = f"chaos gate small --add {no.run_id} --against 'last week' --last-failed"
    assert compared[-1].endswith(again), "else nothing is compared"
    unknown = replace(no.rows[2], cards=[replace(card, environment={}) for card in no.rows[2].cards])
    part = structs.replace(no.part, tag="gate", repeat=4)
    (whole,) = next_steps(replace(no, rows=[*no.rows[:2], unknown], path="", part=part))[1:]
    asked = "chaos gate small --tag gate --repeat 4"
    assert whole.endswith(f": {asked}"), "--add would be refused, and a part of the suite is no answer about all of it"
    again_in_part = structs.replace(no.part, again=True)
    (all_of_it,) = next_steps(replace(yes, part=again_in_part, path=""))
    assert all_of_it.endswith("for an answer about all of it: chaos gate small")
    absent = structs.replace(no.part, left_out=(LeftOut("node-loss", "no time was left", True),))
    assert next_steps(replace(yes, part=absent))[0].endswith(f"--add {yes.run_id} --last-failed")
    page = (rehearse.folder(no) / "report.html").read_text()
    assert re.findall(r">([^<]+)</a>", page) == ["report"] * 3
    box = page[page.index('class="verdict fail"') : page.index("<main>")]
    assert yes_or_no(no) in box and box.index("What to do next") < box.index("--last-failed")
    assert "pace.max_slowdown" not in page
    for name in ("report.md", "junit.xml"):
        assert yes_or_no(no) in (rehearse.folder(no) / name).read_text()


def test_the_last_gate_is_none_before_one_that_has_not_ended(rehearse: Any, tmp_path: pathlib.Path) -> None:
    reports = rehearse.folder(rehearse(THREE)).parent
    assert not [*reports.glob("*/began")] and baseline.find("last", reports)
    killed = reports / "small-20990101-000000-0001"
    killed.mkdir()
    (killed / "began").touch()
    os.utime(killed / "began", (2**32, 2**32))
    for look in (lambda: baseline.find("last", reports), lambda: stored_gate.find("last", reports, "small", "local")):
        with pytest.raises(UsageError, match="gate small-20990101-000000-0001 began later and has not ended"):
            look()
    (killed / "plan.json").touch()
    known = stored_gate.find("last", reports, "small", "local")
    assert known and baseline.find("last", reports), "it is a run's folder"


def test_only_what_did_not_pass_is_run_again(rehearse: Any, bad: Scorecard) -> None:
    with pytest.raises(UsageError, match="no gate of small on local is kept"):
        rehearse(THREE, last_failed=True)
    rehearse(THREE, {"spot-evict": bad, "node-loss": bad})
    again = rehearse(THREE, last_failed=True)
    assert [row.name for row in again.rows] == ["spot-evict", "node-loss"]
    assert yes_or_no(again).startswith("YES, for a part of the suite: ")
    assert again.verdict is Verdict.PASS and "only spot-evict, node-loss of 3 scenarios" in again.reason
    with pytest.raises(UsageError, match="every scenario passed; run the gate without it"):
        rehearse(THREE, last_failed=True)


def test_the_runs_of_an_earlier_gate_count_as_well(rehearse: Any, good: Scorecard, bad: Scorecard) -> None:
    unclear = replace(good, verdict=Verdict.INCONCLUSIVE, reasons=["the host was busy"])
    first = rehearse(THREE, {"spot-evict": unclear}, repeat=2)
    more = rehearse(THREE, add="last", last_failed=True)
    assert [len(row.runs) for row in more.rows] == [2, 1, 2], "what proved nothing is left out where there is a new run"
    assert more.verdict is Verdict.PASS and yes_or_no(more).startswith("YES: ")
    assert f"with the runs of gate {first.run_id}" in more.reason
    assert [len(row.runs) for row in rehearse(THREE, add=more.run_id).rows] == [3, 2, 3]
    rehearse(THREE, {"node-loss": bad})
    more = rehearse(THREE, add="last", repeat=5)
    assert more.verdict is Verdict.FAIL and [len(row.runs) for row in more.rows] == [6, 6, 6], "a failure stays"


def test_another_job_is_not_added_to(rehearse: Any) -> None:
    for made, suite, asked, said in (
        ({"environment": {"trainer_diff": "5f"}}, THREE, {}, "had trainer_diff 5f, here clean"),
        ({"environment": {"cpus": 4096}}, THREE, {}, "its runs had cpus 4096, here"),
        ({"environment": dict.fromkeys(CODE)}, THREE, {"here": {}}, r"cannot verify that .* ran the current code"),
        ({}, THREE, {"seed": 2}, "ran another suite file or another seed"),
        ({}, THREE.replace("  - node-loss\n", ""), {}, "ran another suite file or another seed"),
        ({}, THREE, {"add": "nothing"}, "no gate nothing of small on local is kept"),
    ):
        rehearse(THREE, **made)
        with pytest.raises(UsageError, match=said):
            rehearse(suite, **({"add": "last"} | asked))


def test_what_a_gate_prints_is_the_same_gate(
    rehearse: Any, good: Scorecard, bad: Scorecard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command is parsed by the command line, up to what it would launch."""
    unclear = replace(good, verdict=Verdict.INCONCLUSIVE, reasons=["the host was busy"])
    asked: dict[str, Any] = {"seed": 5, "tag": "gate", "repeat": 2}
    answer = rehearse(THREE, {"rank-kill": bad, "node-loss": unclear}, **asked)
    reports = rehearse.folder(answer).parent
    held = replace(answer, held=Regressions("last week", [], missing=["rank-kill"]))
    monkeypatch.setattr(commands, "here", commands.Places(str(reports)))
    whole = replace(held, part=structs.replace(held.part, again=True))
    launched: list[Any] = []

    def run_gate(path: pathlib.Path, gate: module.Gate) -> None:
        launched.append((path, gate))
        raise UsageError("far enough")

    monkeypatch.setattr(gate_command, "run_gate", run_gate)
    for each in (held, whole):
        for step in next_steps(each):
            _, command = commands.split(step)
            chaos(*shlex.split(command)[1:])
    again, all_of_it = (gate for _, gate in launched)
    assert {path.name for path, _ in launched} == {"small.yaml"}
    for gate in (again, all_of_it):
        told = gate.seed, gate.tag, gate.repeat, gate.against, gate.backend, gate.reports
        assert told == (5, "gate", 2, "last week", "local", reports)
    assert (again.add, again.last_failed) == (answer.run_id, True)
    assert (all_of_it.add, all_of_it.last_failed) == ("", False), "a part of the suite can never pass for all of it"


def test_an_interrupted_gate_has_ended_and_says_how_to_go_on(
    rehearse: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = rehearse(THREE)
    with pytest.raises(module.Stopped):
        rehearse(THREE, {"rank-kill": module.Stopped()})
    reports = rehearse.folder(before).parent
    assert [path.name for path in reports.glob("small-*")] == [before.run_id]
    assert stored_gate.find("last", reports, "small", "local").run_id == before.run_id
    assert baseline.find("last", reports).source == before.run_id

    def run_gate(*_: Any) -> None:
        raise module.Stopped

    monkeypatch.setattr(gate_command, "run_gate", run_gate)
    words = ["gate", str(tmp_path / "small.yaml"), "--reports", str(reports)]
    told = chaos(*words).output
    assert f"kept in {reports}" in told and "chaos history" in told and "again for an answer" in told


def test_a_gate_says_how_its_check_ended_and_that_no_later_one_can_add_to_it(rehearse: Any, good: Scorecard) -> None:
    told: list[Any] = [({}, {}, "  fail, as it must: "), ({"trainer_diff": "clean"}, {"check": good}, "  pass: ")]
    for here, check, said in told:
        rehearse(THREE, here=here, observer=(heard := Notes()), **check)
        assert any("--add" in note and "git checkout" in note for note in heard.told) is (not here)
        assert [line.startswith(said) for line in heard.told if line.startswith("  ")] == [True]
