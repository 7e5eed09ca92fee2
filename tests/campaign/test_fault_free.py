"""When a fault-free run is taken from the cache, and when it is made anew."""

import fcntl
import json
import os
import pathlib
import sys
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
import yaml

from harness.campaign import fault_free, seal
from harness.campaign.fault_free import ensure_fault_free, fault_free_plans, forget_fault_free
from harness.errors import ChaosError, UsageError
from harness.log.journal import Journal
from harness.node.run_folder_view import KEPT as CACHE
from harness.plan.making import make_plan
from harness.plan.run_plan import Plan
from harness.run.job import Outcome
from harness.spec.scenario import parse_scenario
from harness.trainers.contract import Workload
from harness.trainers.shared import outcome_inputs


def plan_of(**trainer: list[str]) -> Plan:
    scenario = {
        "version": 1,
        "name": "mine",
        "title": "A trainer of one's own",
        "workload": {"trainer": {"command": ["{python}", "train.py"], **trainer}, "nodes": 3, "min_nodes": 2},
        "faults": [{"id": "kill", "fault": "rank_kill", "when": {"step": 5}, "target": {"rank": 0}}],
    }
    return make_plan(parse_scenario(yaml.safe_dump(scenario), "mine.yaml"), 1, "local", "mine-1")


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "store.py", "config.yaml", "other.py"):
        (tmp_path / name).write_text("1")
    return tmp_path


def test_a_changed_trainer_is_compared_with_a_new_fault_free_run(folder: pathlib.Path) -> None:
    plan = plan_of(control=["{python}", "store.py"], digest=["config.yaml"])
    before = plan.outcome_digest()
    (folder / "notes.txt").write_text("2")
    assert plan.outcome_digest() == before
    for changed in ("train.py", "store.py", "config.yaml", "other.py"):  # train.py may import the last one
        (folder / changed).write_text("2")
        assert plan.outcome_digest() != before
        (folder / changed).write_text("1")
    with pytest.raises(UsageError, match=r"workload\.trainer\.digest: 'model\.py' is not a file"):
        plan_of(digest=["model.py"]).outcome_digest()
    plan_of(control=["bash", "-c", "sleep 1; " * 1000]).outcome_digest()  # a long shell line names none


BY_WORDS: list[tuple[dict[str, object], str]] = [
    ({"command": ["{python}", "--config=conf/a.json"]}, "conf/a.json"),
    ({"command": ["{python}", "--data=config.yaml,conf/a.json"]}, "conf/a.json"),
    ({"command": ["{python}", "config.yaml,conf/a.json"]}, "conf/a.json"),
    ({"command": ["bash", "-c", "cd . && {python} 'my train.py' --x"]}, "my train.py"),
    ({"command": ["bash", "-c", "{python} other.py --data='conf/a.json';true"]}, "conf/a.json"),
    ({"command": ["bash", "-c", "cd . && {python} -m pkg.sub.train"]}, "pkg/model.py"),
    ({"command": ["{python}", "-m", "pkg.sub.train"]}, "pkg/sub/train.py"),
    ({"command": ["accelerate", "launch", "-m", "lib.run"], "env": {"PYTHONPATH": "more"}}, "more/lib/run.py"),
    ({"command": ["{python}", "-m", "pkg"]}, "pkg/__main__.py"),
    ({"command": ["bash", "run.sh"]}, "run.sh"),
    ({"command": ["bash", "run.sh"]}, "conf/a.json"),
    ({"command": ["bash", "run.sh"]}, "train.py"),  # "$(dirname "$0")/train.py" names no file
    ({"command": ["bash", "run.sh"]}, "pkg/model.py"),
    ({"module": "pkg.sub.train"}, "pkg/model.py"),
    ({"torchrun": "-m pkg.sub.train"}, "pkg/sub/train.py"),
    ({"accelerate": "-m pkg.sub.train"}, "pkg/sub/train.py"),
    ({"torchrun": "train.py", "args": ["--config=conf/a.json"]}, "conf/a.json"),
]


@pytest.mark.parametrize(("trainer", "changed"), BY_WORDS)
def test_a_file_that_a_part_of_the_command_names_is_noticed(
    folder: pathlib.Path, trainer: dict[str, object], changed: str
) -> None:
    made = ("conf/a.json", "my train.py", "pkg/__init__.py", "pkg/__main__.py", "pkg/model.py")
    for name in (*made, "pkg/sub/__init__.py", "pkg/sub/train.py", "more/lib/run.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("1")
    (folder / "run.sh").write_text("# it's\nexec python -m pkg.sub.train \\\n  --config=conf/a.json\n")
    work = Workload.model_validate({"trainer": trainer, "steps": 5})
    before = outcome_inputs.source_digest(work.trainer)
    assert outcome_inputs.source_digest(work.trainer) == before
    (folder / changed).write_text((folder / changed).read_text() + " ")
    assert outcome_inputs.source_digest(work.trainer) != before
    assert "pkg" not in sys.modules, "nothing is imported"


def test_what_a_command_writes_is_no_code_and_a_module_that_appears_is_another_trainer(folder: pathlib.Path) -> None:
    line = "{python} train.py <config.yaml >out.txt 2>&1 && {python} other.py 2>>err.txt | tee -a copy.txt; cat end.txt"
    for name in ("out.txt", "err.txt", "copy.txt", "end.txt"):
        (folder / name).touch()
    # A key may say that it is written.
    words = ["{python}", "--log-file=out.txt", "--output=err.txt", "trainer.save=copy.txt", "--catalog=end.txt"]
    read = ["train.py", "config.yaml", "other.py", "end.txt"]
    for command, names in ((["bash", "-c", line], read), (words, ["end.txt"])):
        trainer = Workload.model_validate({"trainer": {"command": command}, "steps": 5}).trainer
        assert [file.name for file in trainer.files()] == names
    work = Workload.model_validate({"trainer": {"module": "new.train"}, "steps": 5})
    before = outcome_inputs.source_digest(work.trainer)
    assert outcome_inputs.code_of(work.trainer) is None
    (folder / "new").mkdir()
    (folder / "new" / "train.py").write_text("1")
    assert outcome_inputs.source_digest(work.trainer) != before and outcome_inputs.code_of(work.trainer)


@pytest.mark.parametrize(
    ("command", "known"),
    [
        (["{python}", "train.py"], True),
        (["./program"], True),
        (["/bin/sh", "-c", "run --config=config.yaml"], False),
        (["{python}", "-m", "torch.distributed.run", "/app/train.py"], False),
        ([sys.executable, "-m", "installed"], False),
    ],
)
def test_a_cached_run_says_where_no_file_of_the_code_is_known(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch, command: list[str], known: bool
) -> None:
    (folder / "program").touch(0o755)
    monkeypatch.setattr(seal, "holds", lambda _: True)
    monkeypatch.setattr(fault_free, "_flaw", lambda *_: "")
    observer = Mock()
    ensure_fault_free(plan_of(command=command), folder, Mock(), observer)
    assert observer.note.called is not known
    assert known or "--fresh-fault-free" in observer.note.call_args.args[0]


def test_forgotten_fault_free_runs_are_those_of_this_plan(folder: pathlib.Path) -> None:
    plan, of_another = plan_of(), plan_of(digest=["other.py"])
    mine, others = (
        [folder / CACHE / other.plan.outcome_digest() for other in fault_free_plans(each).values()]
        for each in (plan, of_another)
    )
    for place in (*mine, *others):
        place.mkdir(parents=True)
    forget_fault_free(plan, folder)
    assert len(mine) == 2 and not any(place.exists() for place in mine)
    assert all(place.exists() for place in others)
    forget_fault_free(plan, folder)  # nothing is cached now: nothing to do


# What is kept

ANY: Any = None
HEADER = {"schema": 1, "writer": "w", "role": "trainer", "node": "node0", "rank": 0, "incarnation": 1, "pid": 1}
HEADER |= {"host": "h", "clock": "c", "wall_ns": 1, "mono_ns": 1}


class Jobs:
    """Jobs that cost nothing. Their trainers keep their event files open, as one that outlives its job may."""

    def __init__(self) -> None:
        self.made, self.outcome, self.seeds = 0, "completed", list[int]()
        self.open: list[Any] = []

    def execute(self, plan: Plan, run_dir: pathlib.Path, *_: object, **__: object) -> Outcome:
        self.made += 1
        journal = Journal(run_dir)
        events = run_dir / "events" / "node0"
        events.mkdir(parents=True)
        (run_dir / "checkpoints").mkdir()
        self.open.append((events / "w.jsonl").open("w", buffering=1))
        self.open[-1].write(json.dumps(HEADER | {"pid": self.made}) + "\n")
        seed = self.seeds.pop(0) if self.seeds else plan.seed
        told = [HEADER | {"role": "harness", "writer": "harness"}]
        told += [{"event": "plan", "plan": plan.to_json() | {"seed": seed}, "wall_ns": 2, "mono_ns": 2}]
        (run_dir / "events" / "harness.jsonl").write_text("".join(json.dumps(line) + "\n" for line in told))
        journal.mark_closed()
        return Outcome(self.outcome, "")


@pytest.fixture
def jobs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    jobs = Jobs()
    monkeypatch.setattr(fault_free, "execute", jobs.execute)
    monkeypatch.setenv(seal.STATE_ENV, str(tmp_path / "state"))
    yield jobs
    for file in jobs.open:
        file.close()


def test_a_fault_free_run_is_made_once_and_is_in_no_trainers_hands(folder: pathlib.Path, jobs: Jobs) -> None:
    kept, outcome = ensure_fault_free(plan_of(), folder, ANY)
    assert outcome is not None and not (kept / "checkpoints").exists()
    assert ensure_fault_free(plan_of(), folder, ANY) == (kept, None)
    assert (jobs.made, [path.name for path in (folder / CACHE).iterdir()]) == (1, [kept.name])
    before = (kept / "events" / "node0" / "w.jsonl").read_bytes()
    jobs.open[-1].write("forged\n")
    assert (kept / "events" / "node0" / "w.jsonl").read_bytes() == before
    fault_free.copy_fault_free(kept, folder / "copy")
    with (folder / "copy" / "events" / "node0" / "w.jsonl").open("a") as file:
        file.write("forged\n")
    assert seal.holds(kept)
    (folder / "state").chmod(0o777)
    with pytest.raises(ChaosError, match="not a folder that only you can write; set CHAOS_STATE to another one"):
        ensure_fault_free(plan_of(), folder, ANY, anew=True)


@pytest.mark.parametrize(("seeds", "made"), [([9], 2), ([9, 9], 2), ([1], 1)])
def test_one_that_did_something_else_is_made_again_once(
    folder: pathlib.Path, jobs: Jobs, seeds: list[int], made: int
) -> None:
    jobs.seeds, observer = list(seeds), Mock()
    kept, _ = ensure_fault_free(plan_of(), folder, ANY, observer)
    assert jobs.made == made
    told = [call.args[0] for call in observer.note.call_args_list]
    assert told == ["fault-free run: it has another seed. It is made again."] * (made - 1)
    again, outcome = ensure_fault_free(plan_of(), folder, ANY)
    assert again == kept and (outcome is None) is (seeds != [9, 9]), "what is kept is checked when it is taken"


@pytest.mark.parametrize("change", ["a line more", "a file more", "sealed with another key", "another plan's"])
def test_a_history_that_was_changed_is_made_again(folder: pathlib.Path, jobs: Jobs, change: str) -> None:
    kept, _ = ensure_fault_free(plan_of(), folder, ANY)
    log = kept / "events" / "node0" / "w.jsonl"
    if change in ("a line more", "sealed with another key"):
        log.write_text(log.read_text() + '{"event": "started"}\n')
    if change == "a file more":
        log.with_name("x.jsonl").write_text("")
    if change == "sealed with another key":
        key = seal.state_folder() / "seal-key"
        known = key.read_bytes()
        key.write_bytes(b"x" * 32)
        seal.put(kept)
        key.write_bytes(known)
    if change == "another plan's":
        other, _ = ensure_fault_free(plan_of(digest=["other.py"]), folder, ANY)
        for name in ("events/node0/w.jsonl", seal.SEAL):
            (kept / name).unlink()
            os.link(other / name, kept / name)
    made = jobs.made
    again, outcome = ensure_fault_free(plan_of(), folder, ANY)
    assert outcome is not None and jobs.made == made + 1
    assert again == kept and seal.holds(kept)


def test_a_new_one_replaces_the_old_one_only_when_it_is_complete(folder: pathlib.Path, jobs: Jobs) -> None:
    kept, _ = ensure_fault_free(plan_of(), folder, ANY)
    before = (kept / "events" / "node0" / "w.jsonl").read_bytes()
    jobs.outcome = "failed"
    attempt, outcome = ensure_fault_free(plan_of(), folder, ANY, anew=True)
    assert outcome is not None and attempt != kept and seal.holds(kept)
    assert (kept / "events" / "node0" / "w.jsonl").read_bytes() == before
    jobs.outcome = "completed"
    assert ensure_fault_free(plan_of(), folder, ANY, anew=True)[0] == kept
    assert (kept / "events" / "node0" / "w.jsonl").read_bytes() != before and seal.holds(kept)


def test_what_dead_processes_leave_is_swept(folder: pathlib.Path, jobs: Jobs) -> None:
    kept, _ = ensure_fault_free(plan_of(), folder, ANY)
    in_use, young = (fault_free.own_folder(folder, name) for name in ("in-use", "young"))
    dead, not_healed = (folder / CACHE / name for name in ("0123.dead", "0123.open"))
    for each in (dead, not_healed):
        each.mkdir()
    journal = Journal(not_healed)
    journal.record("faults.hang", {})
    journal.release()
    fault_free.release(young)
    for dry_run in (True, False):
        assert dead.exists() and young.exists()
        assert fault_free.sweep(folder, dry_run) == (sorted([dead.name, young.name]), [])
    assert in_use.exists() and not_healed.exists() and kept.exists()
    assert not dead.exists() and not young.exists()
    fault_free.release(in_use)
    assert fault_free.sweep(folder) == ([in_use.name], [])


def test_a_folder_that_is_swept_before_it_is_locked_is_made_again_and_what_cannot_be_swept_is_said(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, swept = fcntl.flock, list[str]()

    def late(descriptor: int, how: int) -> None:
        if how == fcntl.LOCK_EX and not swept:
            swept.extend(fault_free.sweep(folder)[0])
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    made = fault_free.own_folder(folder, "mine")
    assert len(swept) == 1 and made.is_dir() and fault_free.sweep(folder) == ([], [])
    fault_free.release(made)
    fault_free.sweep(folder)
    (folder / CACHE / "0123.dead").mkdir()
    monkeypatch.setattr(os, "rmdir", Mock(side_effect=PermissionError(1, "Operation not permitted", "0123.dead")))
    why = f"{folder}/.fault-free/0123.dead: cannot be removed: 0123.dead: Operation not permitted"
    assert fault_free.sweep(folder) == ([], [why])


def test_a_band_needs_repeats_where_all_runs_have_one_size(folder: pathlib.Path, jobs: Jobs) -> None:
    """Each is kept by itself; a plan that may shrink has runs of other sizes for it."""
    shrinks = plan_of()
    stays = shrinks.model_copy(update={"workload": shrinks.workload.model_copy(update={"min_nodes": 3})})
    assert [other.plan.workload.nodes for other in fault_free_plans(shrinks, band=True).values()] == [3, 2]
    assert list(fault_free_plans(stays)) == ["fault-free"], "no expectation needs a band"
    envelope = stays.model_copy(update={"expect": {"loss_continuity": {"mode": "envelope"}}})
    wanted = fault_free_plans(envelope)
    assert list(wanted) == ["fault-free", "calibration-1", "calibration-2"]
    kept = {ensure_fault_free(plan, folder, ANY, repeat=repeat)[0] for plan, repeat in wanted.values()}
    assert len(kept) == jobs.made == 3
    forget_fault_free(envelope, folder)
    assert not any(path.exists() for path in kept)
