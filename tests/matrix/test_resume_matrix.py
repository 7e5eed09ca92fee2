"""The resume matrix on a trainer that keeps all that a resume needs, and on those that forget one thing of it."""

import json
import pathlib
import sys
from typing import Any

import pytest
import small_jobs
from command_line import chaos, ended
from matrix import resuming_trainer

from harness.errors import UsageError
from harness.log.journal import Journal, mark_closed
from harness.matrix import resume_matrix
from harness.matrix.moments import Moment, Saves
from harness.matrix.sweep import Sweep, Tried
from harness.plan.making import make_plan
from harness.run.stop import stop
from harness.spec.scenario import parse_scenario

TRAINER = pathlib.Path(resuming_trainer.__file__)
SCENARIO = """\
version: 1
name: resumes
title: A run that is resumed
workload:
  trainer:
    command: ["{python}", "-S", "{trainer}", "{{checkpoints}}", "{{index}}", "{{nodes}}", "{{head}}", "{{steps}}",
      "{{checkpoint_every}}", "{bug}"]
    env: {{PYTHONPATH: {root}}}
  nodes: 2
  min_nodes: {least}
  steps: 30
  checkpoint: {{every_steps: 12}}
abort: {{if_no_step_for: 10m, wall_clock: 10m}}
"""
PASS = resuming_trainer.DATA // (2 * resuming_trainer.BATCH * resuming_trainer.ACCUMULATE)  # steps
HALF = ["--save-every", "15"]  # micro-batches: every second save falls in the middle of a step
# Bugs that do not hide each other, in one trainer; and options.
TOGETHER = {
    "sampler_epoch+end_of_epoch": [],
    "half_gradient": HALF,
    "order_by_workers+order_by_world_size+ema+exports": ["--also-with", "--num-workers 3"],
}
# What must be said of each, and of which restart: one of each kind of difference and of restart. What else differs between
# two logs is in test_resume_comparison.py.
REASONS = {
    "sampler_epoch": ("samples", "the first save after the end of pass 1", " not seen in pass 2"),
    "half_gradient": ("computed", "in the middle of a gradient accumulation", "at step 8 the gradient norm is"),
    "end_of_epoch": ("samples", "a save at the end of pass 1", "first at step 13"),
    "order_by_workers": ("samples", "the first save, with --num-workers 3", " not seen in pass 1"),
    "order_by_world_size": ("samples", "on one node less", "on 1 rank: "),
    "ema": ("saved", "the first save", "its save of step 12 holds other tensors than without the stop: 1 of "),
    "exports": ("files", "the first save", "exports/24.txt was not written"),
}


def sweep(folder: pathlib.Path, bug: str, *options: str) -> tuple[int, dict[str, Any]]:
    scenario = folder / "resumes.yaml"
    root = TRAINER.parent.parent.parent
    least = (
        1 if "order_by_world_size" in bug or bug == "none" else 2
    )  # a restart of others on fewer nodes tells nothing
    scenario.write_text(SCENARIO.format(python=sys.executable, trainer=TRAINER, root=root, bug=bug, least=least))
    where = "--reports", folder / "reports"
    result = ended("matrix", "resume", scenario, *where, "--json", "--files", *options)
    return result.exit_code, json.loads(result.stdout)


@pytest.mark.slow
@pytest.mark.healthy
def test_a_healthy_trainer_passes_after_a_stop_goes_on_and_leaves_no_copies(tmp_path: pathlib.Path) -> None:
    code, found = sweep(tmp_path, "none", "--budget", "1s")
    assert (code, found["verdict"], found["tried"], found["complete"]) == (3, "inconclusive", [], False)
    assert any("the budget" in each["why"] for each in found["not_tried"])
    made = (tmp_path / "reports" / found["run_id"] / "base" / "plan.json").stat().st_mtime_ns
    code, found = sweep(tmp_path, "none")
    folder = tmp_path / "reports" / found["run_id"]
    assert (code, found["verdict"], found["complete"]) == (0, "pass", True), found["tried"]
    assert (folder / "base" / "plan.json").stat().st_mtime_ns == made
    assert found["pass_ends"] == [PASS, 2 * PASS] and found["saves"] == [12, 24, 36, 48, 60]
    assert [each["save"] / each["step"] for each in found["tried"]] == [2] * len(found["tried"]), "micro-batches a step"
    why = {each["moment"]: each["why"] for each in found["not_tried"]}
    assert "2 batches a step" in why["a save in the middle of a gradient accumulation"]
    assert [each["resume"] for each in found["tried"]].count(1) == 6
    assert not [*folder.glob("*/checkpoints"), *folder.glob("resumed/*/checkpoints"), *folder.glob("copies")]
    assert "**PASS**" in (folder / "report.md").read_text()
    assert "the same</td>" in (folder / "report.html").read_text()
    for command in (["show"], ["score"], ["show", "--markdown"]):
        result = chaos(*command, found["run_id"], "--reports", str(tmp_path / "reports"))
        assert result.exit_code == 0 and "PASS" in result.stdout, result.output
    listed = chaos("runs", "--reports", str(tmp_path / "reports")).stdout
    assert found["run_id"] in listed and "pass" in listed


@pytest.mark.slow
@pytest.mark.healthy
def test_a_half_accumulation_goes_on_and_so_it_does_with_other_workers(tmp_path: pathlib.Path) -> None:
    code, found = sweep(tmp_path, "none", *HALF, "--also-with", "--num-workers 3", "--also-with", "--num-workers=1")
    assert (code, found["verdict"], found["complete"]) == (0, "pass", True), found["why"]
    amid = [each for each in found["tried"] if each["micro_batches"]]
    assert [each["step"] for each in amid if "accumulation" in each["moment"]][:2] == [7, 22]
    assert [each["also_with"] for each in amid if each["also_with"]] == [["--num-workers", "3"], ["--num-workers=1"]]
    names = [each["moment"] for each in found["not_tried"]]
    assert "the first save between two steps, on one node less" in names
    assert not [each for each in names if "accumulation" in each or "workers" in each]


@pytest.mark.slow
@pytest.mark.parametrize("bugs", TOGETHER)
def test_what_is_forgotten_is_named(tmp_path: pathlib.Path, bugs: str) -> None:
    """And nothing else is accused: where the forgotten thing plays no part, the restart is right. The logs alone say it
    again."""
    code, found = sweep(tmp_path, bugs, *TOGETHER[bugs])
    assert (code, found["verdict"], found["repeats_bit_for_bit"] is not False) == (1, "fail", True)
    wrong = [each for each in found["tried"] if not each["right"]]
    for kind, moment, words in (REASONS[bug] for bug in bugs.split("+")):
        named = [each for each in wrong if moment in each["moment"] and words in each["result"]]
        assert named and all(kind in each["differs"] for each in named), (moment, words, wrong)
    assert any(each["right"] for each in found["tried"]), "the last save of the finished job"

    stored = tmp_path / "reports" / found["run_id"] / "resume.json"
    known = json.loads(stored.read_text())
    for each in known["tried"]:
        each["found"], each["ended"] = [], ""
    stored.write_text(json.dumps(known))
    where = [found["run_id"], "--reports", str(tmp_path / "reports")]
    assert chaos("show", *where).exit_code == 0
    result = chaos("score", *where)
    assert result.exit_code == 1 and found["why"] in result.stdout, result.output


@pytest.mark.slow
def test_saves_that_hold_the_same_are_a_finding_by_themselves(tmp_path: pathlib.Path) -> None:
    code, found = sweep(tmp_path, "stale_weights", "--budget", "1s")
    assert (code, found["verdict"]) == (1, "fail")
    assert found["saves_show"] == ["the saves of steps 6, 12, 18, 24, 30 hold the same tensors"]


def test_a_folder_that_is_not_ours_or_is_in_use_is_left_alone(tmp_path: pathlib.Path) -> None:
    foreign, used = tmp_path / "foreign", tmp_path / "used"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("three years")
    with pytest.raises(UsageError, match="no sweep made it"), resume_matrix._locked(foreign):
        pytest.fail("it went on")
    assert (foreign / "thesis.txt").read_text() == "three years"
    with resume_matrix._locked(used):
        (used / "base").mkdir()
        with pytest.raises(UsageError, match="another sweep"), resume_matrix._locked(used):
            pytest.fail("two at a time")
    journal = Journal(used / "base")
    with pytest.raises(UsageError, match="another sweep"), resume_matrix._locked(used):
        pytest.fail("its run goes on")
    journal.record("faults.rank_kill", {})
    journal.release()
    with pytest.raises(UsageError, match="chaos heal"), resume_matrix._locked(used):
        pytest.fail("its journal would be lost")
    mark_closed(used / "base")
    with resume_matrix._locked(used):
        pass


@pytest.mark.parametrize(("words", "heard"), [([], False), (["--every", "{checkpoint_every}"], True)])
def test_a_rhythm_is_advised_as_the_command_hears_of_it(words: list[str], heard: bool, tmp_path: pathlib.Path) -> None:
    (tmp_path / "train.py").touch()
    trainer = {"torchrun": "train.py", "args": words}
    text = {"version": 1, "name": "a", "title": "a", "workload": {"trainer": trainer, "steps": 20}}
    plan = make_plan(parse_scenario(json.dumps(text), str(tmp_path / "a.yaml")), 1, "local", "a-1")
    assert (resume_matrix._saving_option(plan) == "--save-every") is heard


def test_every_bug_is_tried() -> None:
    assert {"none", "stale_weights", *REASONS} == set(resuming_trainer.BUGS)
    assert "+".join(TOGETHER).split("+") == sorted(REASONS, key="+".join(TOGETHER).index)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("resume rank-kill --steps 0", "--steps"),
        ("resume rank-kill --save-every -1", "--save-every"),
        ("resume rank-kill --budget soon", "--budget"),
        ("checkpoint --steps 10", "chaos matrix resume"),  # no option of that
    ],
)
def test_bad_options_are_usage_errors(tmp_path: pathlib.Path, words: str, said: str) -> None:
    result = chaos("matrix", *words.split(), "--reports", str(tmp_path))
    assert result.exit_code and said in f"{result.output}{result.exception}"
    assert not list(tmp_path.iterdir())


def test_a_command_must_take_what_an_option_changes(tmp_path: pathlib.Path) -> None:
    for option, why in (
        (("--ranks-per-node", "2"), "nothing passes it on to this trainer"),
        (("--also-with", "--seed {sed}"), "unknown placeholder {sed}"),
        (("--also-with", "'"), "No closing quotation"),
        (("--also-with", " "), "write words"),
    ):
        with pytest.raises(AssertionError, match=why):
            sweep(tmp_path, "none", *option)
    assert not (tmp_path / "reports").exists()


def test_one_restart_of_each_kind_is_followed_to_the_end(tmp_path: pathlib.Path) -> None:
    """If it fits into the budget beside the others, and no further resume begins from what it saves next."""

    plan = small_jobs.job("a", ["x"], steps=20)
    setting = resume_matrix.Setting(tmp_path, None, stop, print, 100.0)  # type: ignore[arg-type]
    sweep = resume_matrix._Sweep(plan, tmp_path, setting)
    sweep.sweep, sweep.saves = Sweep("a", "a", "", {}), Saves([12, 24, 36], [12, 24, 36])
    sweep.whole_s, sweep.longest_s = 60.0, 30.0

    def followed(resume: int = 1, save: int = 12, words: str = "the first save") -> bool:
        return sweep._follows(Moment(words, save, save, resume=resume))

    last = Moment("the last save before the end of pass 1", 24, 24)
    sweep.todo = [last, Moment("resume 2 in a row", 24, 24, resume=2)]
    assert followed(save=24, words=last.words), "60 s, and 30 s for the other one"
    assert followed(resume=2, save=24) and not followed(), "resume 2 begins from its next save"
    sweep.sweep.tried = [Tried(last, "24", (), 5, 1.0, {}, to_end=True)]
    assert not followed(save=36, words="the last save before the end of pass 2"), "one of the kind was"
    sweep.sweep.tried, sweep.longest_s = [], 50.0
    assert not followed(save=24, words=last.words), "the other one would not be tried"


def test_a_node_that_was_taken_after_its_notice_is_heard_of() -> None:
    notice = resume_matrix._Notice(stop, lambda _: False)
    notice.new_events([({"role": "harness"}, {"event": "fault.injected", "mono_ns": 1})])
    assert not notice.taken
    notice.new_events([({"role": "harness"}, {"event": "fault.taking", "mono_ns": 2})])
    assert notice.taken
