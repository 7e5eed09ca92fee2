"""From a command line to scenarios: what is recognised, and that what is proposed can be run."""

import pathlib
import shlex
import sys
from dataclasses import replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from simulator import Job, Outage, change, simulate

from harness.adopt import init_command
from harness.adopt.first_look import Facts, _Enough, _Passes, facts_of
from harness.adopt.init_command import _print_facts, _write, init, seen_and_unseen
from harness.adopt.mesh_seen import mesh_of
from harness.adopt.proposal import GATE, OTHERS_MOST, REHEARSALS, gate_of, propose, with_steps_left, workload_of
from harness.adopt.recognise import THREADS, framework_of, recognise
from harness.campaign.campaign_observers import SILENT_CAMPAIGN
from harness.campaign.checked_files import load_scenario
from harness.cli import default_folders
from harness.errors import UsageError
from harness.gate.suite_file import load_suite
from harness.gate.suite_run import load_entries
from harness.judge import thresholds
from harness.mesh import Mesh
from harness.node.emitter import TELLS, Axis, Emitter
from harness.plan.making import make_plan
from harness.plan.run_plan import FIRST_LOOK
from harness.run.observers import Status
from harness.run.stop import StopRequest
from harness.timeline import timeline

FACTS = Facts(40, 40, 3.0, 0.05, (10, 20, 30, 40), ("checkpoints/40.pt",), frozenset(TELLS))


@pytest.fixture(autouse=True)
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for name in ("torchrun", "accelerate", "deepspeed", "ft_launcher"):
        (bin_ / name).write_text("#!/bin/sh\n")
        (bin_ / name).chmod(0o755)
    monkeypatch.delenv(THREADS, raising=False)
    monkeypatch.setenv("PATH", f"{bin_}:{pathlib.Path(sys.executable).parent}:/usr/bin:/bin")
    (tmp_path / "train.py").write_text("import torch\nfrom transformers import Trainer\n")
    return tmp_path


@pytest.mark.parametrize(
    ("command", "trainer", "ranks"),
    [
        ("torchrun train.py", {"torchrun": "train.py"}, 1),
        ("torchrun --nproc-per-node 4 --standalone train.py -x 1", {"torchrun": "train.py", "args": ["-x", "1"]}, 4),
        ("torchrun --nnodes=1:2 --nproc_per_node=2 train.py", {"torchrun": "train.py"}, 4),
        ("torchrun --max-restarts=5 train.py", {"torchrun": "train.py", "max_restarts": 5}, 1),
        ("torchrun -m package.train --x", {"torchrun": "-m package.train", "args": ["--x"]}, 1),
        ("python -m torch.distributed.run train.py", {"torchrun": "train.py"}, 1),
        ("accelerate launch --num_processes 2 --cpu train.py", {"accelerate": "train.py"}, 2),
        ("python train.py -v", {"command": ["{python}", "train.py", "-v"]}, 1),
        ("deepspeed --num_gpus 4 train.py --deepspeed x", {"deepspeed": "train.py", "args": ["--deepspeed", "x"]}, 4),
        ("deepspeed --no_local_rank train.py", {"deepspeed": "train.py", "local_rank_arg": False}, 1),
    ],
)
def test_launchers(folder: pathlib.Path, command: str, trainer: dict[str, object], ranks: int) -> None:
    found = recognise(command.split())
    assert (found.trainer, found.ranks) == (trainer, ranks)
    (folder / "bin" / "python3").symlink_to(sys.executable)
    kept = recognise(["torchrun", "train.py"]).trainer["python"]
    assert kept == str(folder / "bin" / "python3"), "the interpreter of another environment is kept"
    for words, message in (
        ("", "write the command"),
        ("torchrun", "no script is named"),
        ("torchrun other.py", "no such file"),
        ("no-such-program train.py", "unknown program"),
    ):
        with pytest.raises(UsageError, match=message):
            recognise(words.split())


@pytest.mark.parametrize(
    ("command", "imports", "nodes"),
    [
        ("python train.py", "torch", 1),
        ("ft_launcher train.py", "torch", 1),
        ("sh start.sh", "torch", 1),
        ("sh -c 'python train.py'", "torch", 1),
        ("python train.py --node {index} --head {head}", "torch", 2),
        ("python train.py --out {checkpoints} --steps {steps}", "torch", 1),
        ("python train.py", "torchft", 2),
        ("torchrun train.py", "torch", 2),
        ("deepspeed train.py", "torch", 2),
    ],
)
def test_a_command_that_brings_its_own_ranks_is_a_job_of_one_start(
    folder: pathlib.Path, command: str, imports: str, nodes: int
) -> None:
    """Started on two nodes it would be two jobs that write one folder."""
    (folder / "train.py").write_text(f"import {imports}\n")
    workload = workload_of(recognise(shlex.split(command)), folder, ranks=2)
    assert (workload["nodes"], workload["ranks_per_node"]) == (nodes, 2 // nodes)


@pytest.mark.parametrize(
    ("command", "ranks", "nodes", "per_node", "said"),
    [
        ("torchrun --nproc-per-node 4 train.py", 4, 2, 2, "4 ranks, Hugging Face"),
        ("torchrun --nproc-per-node 4 train.py", 2, 1, 2, "each of the 2 starts was a job of its own"),
        ("python train.py", 2, 1, 2, "one start brought 2 ranks"),
        ("python train.py --node {index}", 6, 2, 3, "1 rank, Hugging Face"),
        ("deepspeed train.py --more 3", 2, 2, 1, "starts no rank again"),
        ("deepspeed train.py --more 3", 2, 2, 1, "torchrun --nproc-per-node 2 train.py --more 3 ("),
    ],
)
def test_what_came_up_decides_how_the_job_is_started(
    folder: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    ranks: int,
    nodes: int,
    per_node: int,
    said: str,
) -> None:
    monkeypatch.setattr(init_command, "_look", lambda *_: replace(FACTS, ranks=ranks, files=()))
    init(shlex.split(command), folder=folder / "chaos", reports=folder / "reports")
    workload = yaml.safe_load((folder / "chaos" / "rank-kill.yaml").read_text())["workload"]
    assert (workload["nodes"], workload["ranks_per_node"]) == (nodes, per_node)
    assert said in " ".join(capsys.readouterr().out.split())


def test_some_steps_are_left_after_the_last_save() -> None:
    """Else the restore drill has nothing to do, and is not judged."""
    for words, total, then, said in (
        ("--steps 40", 40, "--steps 45", "The scenarios ask for 45 steps"),
        ("--max_steps=40", None, "--max_steps=45", "ask for 45"),
        ("trainer.max_steps=40", 40, "trainer.max_steps=45", "ask for 45"),
        ("--epochs 2", 40, "--epochs 2", "Let it do 45 steps"),
        ("--save-steps 40", 40, "--save-steps 40", "Let it do 45 steps"),
        ("--train-iters 40", None, "--train-iters 45", "ask for 45"),
        ("--training.steps 40", None, "--training.steps 45", "ask for 45"),
        ("--trainer.max_steps=40", None, "--trainer.max_steps=45", "ask for 45"),
        ("--eval.max_steps=40", None, "--eval.max_steps=40", ""),
        ("--epochs 2", None, "--epochs 2", ""),
        ("--steps 43", 43, "--steps 43", ""),
    ):
        for start in (["torchrun", "train.py"], ["python", "train.py"]):
            found, remark = with_steps_left(recognise([*start, *words.split()]), replace(FACTS, steps_total=total))
            given = found.trainer.get("args") or found.trainer["command"][2:]
            assert given == then.split() and said in remark and bool(said) == bool(remark), words


@pytest.mark.parametrize(
    ("said", "mesh", "why"),
    [
        ({"dp": 2, "pp": 2, "tp": 2}, {"dp": 2, "pp": 2, "tp": 2}, ""),
        ({"dp": 1, "fsdp": 8}, {"fsdp": 8}, ""),
        ({"pp": 2, "tp": 2}, {}, "rank 4 told no place"),
        ({}, {}, "no rank told its place"),
    ],
)
def test_a_mesh_is_proposed_if_all_ranks_are_at_their_places(
    said: dict[Axis, int], mesh: dict[Axis, int], why: str
) -> None:
    of = Mesh(said)
    told = {r: {str(a): (at, said[a]) for a, at in of.of(r).items()} for r in range(of.world_size if said else 0)}
    assert mesh_of(told, 8) == (mesh, why) and list(mesh_of(told, 8)[0]) == list(mesh)
    if len(mesh) > 1:
        experts = {rank: {**place, "ep": (rank % 4, 4)} for rank, place in told.items()}
        assert mesh_of(experts, 8) == (mesh, ""), "experts lie across the other axes"
        told[1], told[2] = told[2], told[1]
        assert mesh_of(told, 8)[0] == {} and "make no mesh of 8 ranks" in mesh_of(told, 8)[1]


@pytest.mark.parametrize("anew", [False, True])
def test_a_look_tells_the_mesh_and_whether_a_restart_began_anew(tmp_path: pathlib.Path, anew: bool) -> None:
    history = simulate(Job(steps=20, every=2, mesh=(("pp", 2),)), [Outage(5, "rank")])
    logs = history.logs()
    for rank in (0, 1) if anew else ():
        change(logs.all("restored", rank=rank, life=1), step=0)
        change(logs.steps(rank=rank, life=1), step=lambda line: line["step"] - 4)
    facts = facts_of(timeline.load(history.write(tmp_path, logs)))
    assert (facts.mesh, facts.no_mesh, facts.began_anew) == ({"pp": 2}, "", 4 if anew else 0)


NOT_0 = "{rank: {not_rank: 0}}"


@pytest.mark.parametrize(
    ("mesh", "target"),
    [({"pp": 2, "dp": 2}, "{pp: last, dp: 0}"), ({"dp": 2, "tp": 2}, "{dp: 0, tp: last}"), ({"dp": 4}, NOT_0)],
)
def test_one_fault_strikes_a_place_in_the_mesh(folder: pathlib.Path, mesh: dict[Axis, int], target: str) -> None:
    workload = workload_of(recognise(["torchrun", "--nproc-per-node", "4", "train.py"]), folder)
    texts = propose(workload, replace(FACTS, mesh=mesh))
    for name, text in texts.items():
        (folder / name).write_text(text)
        plan = make_plan(load_scenario(folder / name), 1, "local", "run")
        assert plan.workload.mesh == mesh and len(plan.faults[-1].targets) == 1
    assert f"target: {target}" in texts["rank-kill.yaml"] and f"target: {NOT_0}" in texts["checkpoint-bit-flip.yaml"]
    assert "mesh:" not in propose(workload, replace(FACTS, mesh={"pp": 2}))["rank-kill.yaml"], "of another size"


RUNS = replace(FACTS, steps_total=None, steps_seen=20, ranks=2)


@pytest.mark.parametrize(
    ("command", "facts", "said"),
    [
        ("torchrun train.py --steps 100000", RUNS, "one run takes about 1 h"),
        ("torchrun train.py --steps 100000", RUNS, "About 45 steps are enough. Or strike a job that runs"),
        ("torchrun train.py", RUNS, "the end of the job was not seen"),
        ("torchrun train.py --pp 2", RUNS, "The command asks for {pp: 2}; their order is not known"),
        ("torchrun train.py", replace(RUNS, mesh={"tp": 2}), "their places in the mesh {tp: 2}"),
        ("torchrun train.py", replace(FACTS, began_anew=20), "beside the save of step 20. If a resume"),
        ("torchrun flag.py", FACTS, "flag.py takes --resume_from, which the command lacks. If a resume needs a flag"),
        ("torchrun flag.py --resume-from x", FACTS, ""),
        ("uv run torchrun train.py", FACTS, "uv stands in front of torchrun"),
        ("srun python train.py", FACTS, "chaos run --backend slurm"),
        ("bash run.sh", FACTS, "run.sh calls torchrun in line 2"),
        ("torchrun train.py", replace(FACTS, pass_steps=50), "no end of it was seen"),
        ("torchrun train.py", FACTS, "(now 20), so many that a second pass begins: more than len(loader)"),
        ("torchrun -m net.run", FACTS, "torchrun starts -m net.run, 1 rank, framework not recognised"),
        ("torchrun --nproc-per-node 2 train.py", RUNS, f"Each rank has {THREADS}=1, as torchrun gives it"),
    ],
)
def test_init_says_what_it_could_not_see_and_what_to_do(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, command: str, facts: Facts, said: str
) -> None:
    (folder / "flag.py").write_text('parser.add_argument(\n    "-r", "--resume_from")\n')
    (folder / "run.sh").write_text("# torchrun does it\nexec torchrun --nproc_per_node=$N train.py\n")
    for name in ("uv", "srun"):
        (folder / "bin" / name).symlink_to("torchrun")
    lines: list[str] = []
    monkeypatch.setattr(init_command, "say", lines.append)
    monkeypatch.setattr(init_command, "_look", lambda *_: replace(facts, files=()))
    init(shlex.split(command), folder=folder / "chaos", reports=folder / "reports")
    told = " ".join(" ".join(lines).split())
    assert said in told and ("resume needs a flag" in told) is ("If a resume" in said)
    long = "100000" in command  # four times what it needs
    assert ("wall_clock: 20040s" in (folder / "chaos" / "rank-kill.yaml").read_text()) is long


def test_the_end_of_the_first_pass_is_heard() -> None:
    """By samples that come again, on whichever rank, or by the epoch."""
    of_two_ranks = [{"samples": [[first, 4, 2]]} for first in (0, 1, 8, 9)]
    for again, over in (({"samples": [[3, 1], [12, 1]]}, True), ({"samples": [[16, 2]]}, False), ({"epoch": 2}, False)):
        passes = _Passes()
        for step in (*of_two_ranks, again):
            assert not passes.over
            passes.hear(step)
        assert passes.told and passes.over is over
    passes.hear({"epoch": 3})
    assert passes.over


def test_a_script_that_raises_at_once_ends_the_look(tmp_path: pathlib.Path) -> None:
    """Its launcher would start it again and again."""
    job, user = StopRequest(), StopRequest()
    log = tmp_path / "events" / "node0" / "agent.jsonl"
    log.parent.mkdir(parents=True)
    enough = _Enough(SILENT_CAMPAIGN, tmp_path / "events", 20, user, job)
    agent = Emitter(log, {"role": "agent", "node": "node0"})
    for code, asked in ((0, False), (1, True)):
        agent("worker.exit", rank=0, local_rank=0, pid=7, code=code)
        enough._looked = 0.0
        enough.status(Status("run", 1.0, "rendezvous", 0, None, None, [], []))
        assert (job.asked, enough.failed) == (asked, asked)


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
    assert framework_of("broken.py") == "framework not recognised"
    (folder / "net").mkdir()
    (folder / "net" / "run.py").write_text("import torch\nimport torchft\n")
    assert recognise(["torchrun", "-m", "net.run"]).framework == "torchft"


def test_a_rank_that_is_alone_on_its_node_has_no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun gives one thread to each of several ranks, unless the user says another number."""
    two = ["torchrun", "--nproc-per-node", "2", "train.py"]
    assert recognise(two).trainer.get("env") == {THREADS: "1"}
    for other in ("torchrun --nproc-per-node 4", "torchrun --nnodes 2", "accelerate launch --num_processes 2"):
        assert recognise([*other.split(), "train.py"]).trainer.get("env") is None
    monkeypatch.setenv(THREADS, "4")
    assert recognise(two).trainer.get("env") is None


@pytest.mark.parametrize("total", [None, 40])
@pytest.mark.parametrize(
    ("command", "target"),
    [
        ("torchrun --nproc-per-node=2 train.py", "{rank: {not_rank: 0}}"),
        ("python train.py", "{rank: 0}"),
        ("./start.sh", "{rank: 0}"),  # one rank, of one start
        ("./start.sh 2", "{rank: {not_rank: 0}}"),
    ],
)
def test_what_is_proposed_can_be_planned(folder: pathlib.Path, command: str, target: str, total: int | None) -> None:
    (folder / "start.sh").write_text("#!/bin/sh\npython train.py\n")
    (folder / "start.sh").chmod(0o755)
    place = folder / "chaos"
    place.mkdir()
    ranks = {"./start.sh": 1, "./start.sh 2": 2}.get(command)
    workload = workload_of(recognise(command.split()), place, *([ranks] if ranks else []))
    assert not ranks or workload["trainer"]["command"][0] == "{scenario_dir}/../start.sh"
    texts = propose(workload, replace(FACTS, steps_total=total))
    assert len(texts) == len(REHEARSALS) and f"target: {target}" in texts["rank-kill.yaml"]
    assert not ranks or "target: {node: 0}" in texts["node-loss.yaml"]
    for name, text in texts.items():
        (place / name).write_text(text)
        plan = make_plan(load_scenario(place / name), 1, "local", "run")
        assert plan.faults and plan.scenario.name == name.removesuffix(".yaml")
    _write(place, {GATE: gate_of(list(texts))}, force=False)
    entries = load_entries(place / GATE, load_suite(place / GATE), default_folders.scenarios())
    assert [spec.name for _, spec in entries] == [*(each.name for each in REHEARSALS), "rank-kill"]
    assert [entry.matrix for entry, _ in entries] == [None] * len(REHEARSALS) + ["resume"], "it holds the sweep, too"


TWO = {"trainer": {"torchrun": "train.py"}, "nodes": 2}


@pytest.mark.parametrize(
    ("total", "pass_steps", "step"),
    [(40, 0, 25), (None, 0, 25), (120, 64, 75), (None, 24, 35), (None, 30, 45), (None, 10**4, 25), (75, 64, 25), (20, 0, 15)],
)  # fmt: skip
def test_a_fault_strikes_where_resumes_go_wrong(total: int | None, pass_steps: int, step: int) -> None:
    """One long pass, and too short for a second one or for two saves, come last."""
    texts = propose(TWO, replace(FACTS, steps_total=total, pass_steps=pass_steps))
    assert f"when: {{step: {step}}}" in texts["rank-kill.yaml"]
    if (total, pass_steps) == (120, 64):
        assert "when: {step: 85}" in texts["checkpoint-truncated.yaml"], (
            "the save of step 80 is cut; that of 70 is taken"
        )


def test_a_short_job_gets_only_what_fits_and_nothing_is_expected_of_what_could_not_be_seen() -> None:
    short = Facts(18, 18, 3.0, 0.05, (10,), (), FACTS.told)
    assert set(propose(TWO, short)) == {"rank-kill.yaml", "spot-evict.yaml", "node-loss.yaml"}
    blind = Facts(40, None, 3.0, 0.05, (), (), frozenset({"steps"}))
    text = propose(TWO, blind)["rank-kill.yaml"]
    assert "loss_continuity" not in text and "no checkpoint was seen" in text
    text = propose(TWO, replace(FACTS, elastic=True))["rank-kill.yaml"]  # it goes on with fewer replicas
    assert "min_nodes: 1" in text and "loss_continuity: {mode: final, max_final_gap: 5%, samples: reported}" in text
    assert "min_nodes" not in propose(TWO, FACTS)["rank-kill.yaml"]


def test_the_bound_on_recovery_leaves_room_for_a_busier_host_than_was_seen() -> None:
    """A run is judged while others take up to half of the CPUs, and then a start may take twice as long."""
    assert OTHERS_MOST == thresholds.OTHERS_MOST
    for others, bound in ((0.0, "120s"), (0.25, "100s"), (0.5, "80s"), (0.9, "80s")):
        text = propose(TWO, replace(FACTS, start_s=20.0, others=others))["rank-kill.yaml"]
        assert f"recovery_time: {{max: {bound}}}" in text


def test_a_scenario_says_who_starts_a_dead_rank_again() -> None:
    for trainer, said in (
        ({"torchrun": "t.py"}, "the same script is started again"),
        ({"deepspeed": "t.py"}, "deepspeed starts no rank again"),
        ({"command": ["t.sh"]}, "Only this command can start a dead rank again"),
    ):
        text = propose({"trainer": trainer, "nodes": 2}, FACTS)["rank-kill.yaml"]
        assert f"workload:  # {said}" in text.replace("After a fault ", "")


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


def test_no_item_is_both_seen_and_not_seen() -> None:
    """Samples by rank are the sample order, too; what a job ended by is not known before it ended."""
    told = frozenset({"steps", "loss", "samples", "checkpoints", "phases", "clocks"})
    judged, unseen, later = seen_and_unseen(replace(FACTS, told=told, steps_total=None))
    assert "sample order" in judged
    assert unseen == ["sample contents"]
    assert later == ["what was restored", "causes of exits"]
    _, unseen, later = seen_and_unseen(replace(FACTS, told=told))
    assert (unseen, later) == (["sample contents", "causes of exits"], ["what was restored"])


def test_checkpoints_that_all_runs_would_share_are_refused_and_a_loss_that_never_changes_is_told(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _print_facts(replace(FACTS, same_loss=0.0, files=(str(tmp_path / "checkpoints" / "40.pt"),)), tmp_path)
    assert "the loss is 0 at every step" in capsys.readouterr().out
    with pytest.raises(UsageError, match=r"nothing was written: .*\{checkpoints\}.* as an argument.*\.md$"):
        _print_facts(replace(FACTS, files=("/shared/ckpt.pt",)), tmp_path)


def test_the_plan_of_a_first_look_says_that_it_is_no_run(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(init_command, "look", lambda plan, *_: seen.append(plan))
    workload = workload_of(recognise(["python", "train.py"]), folder)
    init_command._look(workload, folder, folder / "reports" / "init-1", "local", 1, 20)
    assert seen[0].scenario.tags == (FIRST_LOOK,)
