"""From a command line to scenarios: what is recognised, and that what is proposed can be run."""

import pathlib
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.adopt import init_command
from harness.adopt.first_look import Facts
from harness.adopt.init_command import _print_facts, _write, init, seen_and_unseen
from harness.adopt.proposal import GATE, REHEARSALS, gate_of, propose, workload_of
from harness.adopt.recognise import framework_of, recognise
from harness.campaign.checked_files import load_scenario
from harness.cli import default_folders
from harness.errors import UsageError
from harness.gate.suite_file import load_suite
from harness.gate.suite_run import load_entries
from harness.node.emitter import TELLS
from harness.plan.making import make_plan
from harness.plan.run_plan import FIRST_LOOK

FACTS = Facts(40, 40, 3.0, 0.05, (10, 20, 30, 40), ("checkpoints/40.pt",), frozenset(TELLS))


@pytest.fixture(autouse=True)
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for name in ("torchrun", "accelerate"):
        (bin_ / name).write_text("#!/bin/sh\n")
        (bin_ / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}:{pathlib.Path(sys.executable).parent}:/usr/bin:/bin")
    (tmp_path / "train.py").write_text("import torch\nfrom transformers import Trainer\n")
    return tmp_path


@pytest.mark.parametrize(
    ("command", "trainer", "ranks"),
    [
        (["torchrun", "train.py"], {"torchrun": "train.py"}, 1),
        (
            ["torchrun", "--nproc-per-node", "4", "--standalone", "train.py", "--lr", "1e-3"],
            {"torchrun": "train.py", "args": ["--lr", "1e-3"]},
            4,
        ),
        (["torchrun", "--nnodes=1:2", "--nproc_per_node=2", "train.py"], {"torchrun": "train.py"}, 4),
        (["torchrun", "--max-restarts=5", "train.py"], {"torchrun": "train.py", "max_restarts": 5}, 1),
        (["torchrun", "-m", "package.train", "--x"], {"torchrun": "-m package.train", "args": ["--x"]}, 1),
        (["python", "-m", "torch.distributed.run", "train.py"], {"torchrun": "train.py"}, 1),
        (["accelerate", "launch", "--num_processes", "2", "--cpu", "train.py"], {"accelerate": "train.py"}, 2),
        (["python", "train.py", "-v"], {"command": ["{python}", "train.py", "-v"]}, 1),
    ],
)
def test_launchers(command: Sequence[str], trainer: dict[str, object], ranks: int) -> None:
    found = recognise(command)
    assert (found.trainer, found.ranks) == (trainer, ranks)


def test_the_interpreter_of_another_environment_is_kept(folder: pathlib.Path) -> None:
    (folder / "bin" / "python3").symlink_to(sys.executable)
    assert recognise(["torchrun", "train.py"]).trainer["python"] == str(folder / "bin" / "python3")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ([], "write the command"),
        (["torchrun"], "no script is named"),
        (["torchrun", "other.py"], "no such file"),
        (["no-such-program", "train.py"], "unknown program"),
        (["sh", "train.py"], "unknown launcher"),
    ],
)
def test_a_command_that_starts_no_training_is_told(command: Sequence[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        recognise(command)


@pytest.mark.slow
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20), max_size=6))
def test_any_words_are_recognised_or_refused(words: list[str]) -> None:
    try:
        recognise(["torchrun", *words])
    except UsageError:
        return


def test_frameworks_by_what_is_imported(folder: pathlib.Path) -> None:
    assert framework_of("train.py") == "Hugging Face"
    (folder / "plain.py").write_text("import torch\n")
    assert framework_of("plain.py") == "plain PyTorch"
    (folder / "broken.py").write_text("import (\n")
    assert framework_of("broken.py") == "unknown"


@pytest.mark.parametrize("command", [["torchrun", "--nproc-per-node=2", "train.py"], ["python", "train.py"]])
@pytest.mark.parametrize("total", [None, 40])
def test_what_is_proposed_can_be_planned(folder: pathlib.Path, command: list[str], total: int | None) -> None:
    place = folder / "chaos"
    place.mkdir()
    facts = replace(FACTS, steps_total=total)
    texts = propose(workload_of(recognise(command), place), facts)
    assert len(texts) == len(REHEARSALS)
    for name, text in texts.items():
        (place / name).write_text(text)
        plan = make_plan(load_scenario(place / name), 1, "local", "run")
        assert plan.faults and plan.scenario.name == name.removesuffix(".yaml")


@pytest.mark.parametrize(
    ("total", "pass_steps", "step"),
    [
        (40, 0, 25),
        (None, 0, 25),
        (120, 64, 75),
        (None, 24, 35),
        (None, 30, 45),
        (None, 10**4, 25),
        (75, 64, 25),
        (20, 0, 15),
    ],
    ids=[
        *("after the second save", "of unknown length", "in the second pass", "in that of unknown length"),
        *("with a save at the end of a pass", "in one long pass", "too short for that", "for two saves"),
    ],
)
def test_a_fault_strikes_where_resumes_go_wrong(total: int | None, pass_steps: int, step: int) -> None:
    facts = replace(FACTS, steps_total=total, pass_steps=pass_steps)
    text = propose({"trainer": {"torchrun": "train.py"}, "nodes": 2}, facts)["rank-kill.yaml"]
    assert f"when: {{step: {step}}}" in text


def test_a_restart_that_passes_over_a_damaged_save_takes_one_of_the_second_pass_too() -> None:
    facts = replace(FACTS, steps_total=120, pass_steps=64)
    texts = propose({"trainer": {"torchrun": "train.py"}, "nodes": 2}, facts)
    assert "when: {step: 85}" in texts["checkpoint-truncated.yaml"], "the save of step 80 is cut; that of 70 is taken"


def test_the_gate_of_what_is_proposed_holds_it_all_and_the_sweep(folder: pathlib.Path) -> None:
    place = folder / "chaos"
    place.mkdir()
    texts = propose(workload_of(recognise(["torchrun", "train.py"]), place), FACTS)
    _write(place, texts | {GATE: gate_of(list(texts))}, force=False)
    entries = load_entries(place / GATE, load_suite(place / GATE), default_folders.scenarios())
    assert [spec.name for _, spec in entries] == [*(each.name for each in REHEARSALS), "rank-kill"]
    assert [entry.matrix for entry, _ in entries] == [None] * len(REHEARSALS) + ["resume"]


def test_a_short_job_gets_only_what_fits_and_nothing_is_expected_of_what_could_not_be_seen() -> None:
    workload = {"trainer": {"torchrun": "train.py"}, "nodes": 2}
    short = Facts(18, 18, 3.0, 0.05, (10,), (), FACTS.told)
    assert set(propose(workload, short)) == {"rank-kill.yaml", "spot-evict.yaml", "node-loss.yaml"}
    workload = {"trainer": {"torchrun": "train.py"}, "nodes": 2}
    blind = Facts(40, None, 3.0, 0.05, (), (), frozenset({"steps"}))
    text = propose(workload, blind)["rank-kill.yaml"]
    assert "loss_continuity" not in text and "no checkpoint was seen" in text


def test_what_is_there_is_not_written_over(folder: pathlib.Path) -> None:
    place = folder / "chaos"
    place.mkdir()
    (place / "other.yaml").write_text("mine")
    (place / "node-loss.yaml").symlink_to("gone")
    with pytest.raises(UsageError, match=r"node-loss.yaml exists already; use --force to overwrite it or --folder"):
        init(["torchrun", "train.py"], folder=place)
    with pytest.raises(UsageError, match="exists already"):
        _write(place, {"node-loss.yaml": "new"}, force=False)
    _write(place, {"node-loss.yaml": "new"}, force=True)
    assert (place / "node-loss.yaml").read_text() == "new" and not (folder / "gone").exists()
    assert (place / "other.yaml").read_text() == "mine"


def test_runs_are_kept_where_one_works(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_folders.reports() == folder / "reports"
    checkout = pathlib.Path(default_folders.__file__).parents[2]
    monkeypatch.chdir(checkout / "docs")
    assert default_folders.reports() == checkout / "reports"


def test_a_job_that_goes_on_with_fewer_replicas_is_allowed_to() -> None:
    workload = {"trainer": {"command": ["x"]}, "nodes": 2}
    text = propose(workload, replace(FACTS, elastic=True))["rank-kill.yaml"]
    assert "min_nodes: 1" in text and "loss_continuity: {mode: final, max_final_gap: 5%, samples: reported}" in text
    assert "min_nodes" not in propose(workload, FACTS)["rank-kill.yaml"]


def test_no_item_is_both_seen_and_not_seen() -> None:
    """Samples by rank are the sample order, too; what a job ended by is not known before it ended."""
    told = frozenset({"steps", "loss", "samples", "checkpoints", "phases", "clocks"})
    judged, unseen, later = seen_and_unseen(replace(FACTS, told=told, steps_total=None))
    assert "sample order" in judged
    assert unseen == ["sample contents"]
    assert later == ["what was restored", "causes of exits"]
    _, unseen, later = seen_and_unseen(replace(FACTS, told=told))
    assert (unseen, later) == (["sample contents", "causes of exits"], ["what was restored"])


def test_checkpoints_that_all_runs_would_share_are_refused(tmp_path: pathlib.Path) -> None:
    inside = replace(FACTS, files=(str(tmp_path / "checkpoints" / "40.pt"),))
    _print_facts(inside, tmp_path)
    with pytest.raises(UsageError, match=r"nothing was written: .*\{checkpoints\}"):
        _print_facts(replace(FACTS, files=("/shared/ckpt.pt",)), tmp_path)


def test_the_plan_of_a_first_look_says_that_it_is_no_run(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(init_command, "look", lambda plan, *_: seen.append(plan))
    workload = workload_of(recognise(["python", "train.py"]), folder)
    init_command._look(workload, folder, folder / "reports" / "init-1", "local", 1, 20)
    assert seen[0].scenario.tags == (FIRST_LOOK,)
