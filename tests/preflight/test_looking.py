"""What a preflight asks of the nodes, how it is stored and kept, and what its command says."""

import json
import pathlib
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from command_line import chaos, refused
from judging import EXACT
from mutants.bent import JOB, Mutant, optimizer_lost
from simulator import Logs, Outage, change, simulate

from harness.backends.contract import load_backend
from harness.campaign.campaign_observers import CampaignObserver
from harness.campaign.run_store import Store
from harness.campaign.wings import Item, stored_kind_of
from harness.errors import UsageError
from harness.evidence.logs import FAULT_FREE
from harness.judge.verdict import Verdict
from harness.node.emitter import Emitter
from harness.plan.run_plan import Plan
from harness.preflight import fitness, looking, preflight_page, stored_evidence
from harness.preflight.checklist import YES, checklist
from harness.preflight.checks.contract import check_names
from harness.preflight.fitness import ASKED, Asked, Preflight
from harness.preflight.looking import Setting
from harness.run.job import Outcome
from harness.run.stop import StopRequest


def plan(run_id: str = "preflight-x", expect: Mapping[str, Any] = {}, **workload: Any) -> Plan:
    scenario = {"name": "x", "title": "t"}
    work = {"nodes": 2} | workload
    rest = {"run_id": run_id, "seed": 1, "backend": "local", "abort": {"wall_clock_ns": 10**9}, "expect": expect}
    return Plan.from_json(rest | {"scenario": scenario, "workload": work})


@pytest.mark.parametrize(
    ("trainer", "python"),
    [
        ("reference", "{python}"),
        ({"torchrun": "train.py", "python": "/opt/venv/bin/python"}, "/opt/venv/bin/python"),
        ({"command": ["/env/bin/python3.11", "train.py"]}, "/env/bin/python3.11"),
        ({"command": ["sh", "-c", "exec python3 -m train"]}, "python3"),
        ({"command": ["./train.sh"]}, "{python}"),
    ],
)
def test_nodes_measure_with_the_trainers_python_and_look_at_its_paths_and_variables(trainer: Any, python: str) -> None:
    job = looking.nodes_plan(plan(trainer=trainer), ["links"], faults=False)
    assert job.launch().command[0] == python
    assert Plan.from_json(json.loads(json.dumps(job.to_json()))) == job
    words = ["{python}", "train.py", "--data=/mnt/data/", "--out", "{run_dir}/out"]
    own = {"command": words, "env": {"HF_HOME": "/mnt/hub", "TOKEN": "${TOKEN}"}}
    command = looking.nodes_plan(plan(trainer=own), [], faults=False).launch().command
    assert {"--path=/mnt/data", "--path=/mnt/hub", "--variable=HF_HOME", "--variable=TOKEN"} <= {*command}
    assert "--path={run_dir}/checkpoints" in command
    for saves, last, at in (([20, 40], 200, 30), ([50], 200, 75), ([20], 21, None), ([], 200, None), ([1, 2], 9, 2)):
        assert looking.kill_step(saves, last) == at, "between the first two saves"


GOOD: Mapping[str, Mapping[str, Any]] = {
    "node": {"python": "3.11", "cpus": 2, "memory_bytes": 2**30, "paths": {"/run/checkpoints": {"kind": "folder"}}},
    "software": {"torch": "2.9.1"},
    "compute": {"flops": [1e9, 1e9]},
    "links": {"to": []},
    "storage": {"bytes": 2**20, "write_s": 0.1, "fsync_s": 0.0, "read_s": 0.1, "same": True, "listed": True},
}


def made(
    reports: pathlib.Path, checks: list[str], odd: Mapping[str, Any] | None = None, name: str = "preflight-x"
) -> pathlib.Path:
    """As a run of two nodes leaves it; node 1 tells `odd`, and what it has for `None` it does not tell."""
    folder, of = reports / name, plan(run_id=name)
    (folder / "events").mkdir(parents=True)
    fitness.store(ASKED, Asked(plan=of.to_json(), checks=checks), folder)
    (folder / "plan.json").write_text(json.dumps(of.to_json()))
    harness = Emitter(folder / "events" / "harness.jsonl", {"role": "harness"})
    for node in ("node0", "node1"):
        harness("node.allocated", node=node, incarnation=1, gpus=1)
    for rank in (0, 1):
        told = {**GOOD, "links": {"to": [[1 - rank, 1e9]]}} | {"clocks": {"offsets": [[1, 0.0, 0.0]]}}
        times = [[2**24, 0.1]]
        told |= {"all_reduce": {"which": "all", "ranks": 2, "times": times}} if rank == 0 else {}
        told |= (odd or {}) if rank == 1 else {}
        place = folder / "events" / f"node{rank}"
        who = {"node": f"node{rank}", "incarnation": 1}
        agent = Emitter(place / f"agent-node{rank}.1-1.jsonl", {"role": "agent"} | who)
        trainer = Emitter(place / f"trainer-node{rank}.1-{rank}-1.jsonl", {"role": "trainer", "rank": rank} | who)
        for probe, values in told.items():
            if values is not None:
                (agent if probe == "node" else trainer)("preflight", probe=probe, values=values)
    harness("run.finished", outcome="completed", reason="done")
    return folder


NODES = ["all_reduce", "clocks", "compute", "devices", "environment", "links", "storage"]


def found(folder: pathlib.Path, before: Preflight | None = None) -> Preflight:
    answer = stored_evidence.judged(folder, before)
    preflight_page.write(answer, folder)
    return answer


def test_a_fit_cluster_is_told_so_and_proves_nothing_that_was_not_asked(tmp_path: pathlib.Path) -> None:
    folder = made(tmp_path, NODES)
    answer = found(folder)
    assert (answer.verdict, answer.findings, answer.nodes) == (Verdict.PASS, [], ["node0", "node1"])
    assert set(NODES) < set(check_names())
    assert next(each for each in checklist(tmp_path, tmp_path)[1] if each.item is Item.CLUSTER).answer != YES
    assert Store(tmp_path).runs()[0].verdict is Verdict.PASS
    kind = stored_kind_of(folder)
    assert kind is not None and kind.judge(folder)[0].verdict is Verdict.PASS
    assert kind.values(folder)["verdict"] == "pass"


SLOW = {"event": "fault.effect", "fault": "slow", "measured": 1.0, "expected": 2.0, "unit": "times"}


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (SLOW | {"ok": True}, ""),
        (SLOW | {"ok": False}, "fault slow did not act as planned: measured 1.0 times, expected 2.0"),
        ({"event": "plan", "plan": {"faults": [{"id": "slow"}]}}, "no effect of fault slow was measured"),
        ({"event": "process.exit", "node": "node1", "incarnation": 1, "code": 137}, "node1 ended with 137"),
        ({"event": "run.finished", "outcome": "aborted", "reason": "no step"}, "did not come to its end: no step"),
    ],
)
def test_a_fault_that_did_not_act_or_a_program_that_ended_badly_proves_nothing(
    event: dict[str, Any], why: str, tmp_path: pathlib.Path
) -> None:
    folder = made(tmp_path, NODES)
    with (folder / "events" / "harness.jsonl").open("a") as log:
        log.write(json.dumps(event | {"wall_ns": time.time_ns(), "mono_ns": time.monotonic_ns()}) + "\n")
    answer = found(folder)
    told = [finding.words for _, finding in answer.findings] or [answer.why]
    assert answer.verdict is (Verdict.INCONCLUSIVE if why else Verdict.PASS) and (not why or why in told[0])


def test_where_nothing_could_be_asked_nothing_passes_nor_does_a_drill_of_another_preflight_count(
    tmp_path: pathlib.Path,
) -> None:
    answer = found(made(tmp_path, ["notice"]))
    assert (answer.verdict, answer.why) == (Verdict.INCONCLUSIVE, "nothing was judged")
    for drill in ("../elsewhere/preflight-x-drill", "preflight-y-drill"):
        fitness.store(ASKED, Asked(plan=plan().to_json(), checks=["restore"], drill=drill), tmp_path / "preflight-x")
        assert f"{drill} is no run of this preflight" in found(tmp_path / "preflight-x").why


def test_a_finding_is_on_the_page_in_junit_and_in_markdown(tmp_path: pathlib.Path) -> None:
    folder = made(tmp_path, NODES, {"links": {"to": [[0, 5e7]]}, "software": {"torch": "2.<8>"}})
    answer = found(folder)
    assert answer.verdict is Verdict.FAIL and len(answer.findings) == 2
    page = (folder / "report.html").read_text()
    assert "node1 → node0 is slow" in page and 'class="p-detect"' in page and "2.&lt;8&gt;" in page
    assert "2.<8>" not in page and "nominal" not in page
    suite = ElementTree.parse(folder / "junit.xml").getroot()[0]
    assert (suite.get("failures"), suite.get("tests")) == ("2", str(len(NODES)))
    assert "node1 → node0" in (folder / "report.md").read_text()
    alone = found(made(tmp_path, ["free_space", "devices"], name="preflight-alone"))
    page, told = preflight_page.page(alone), stored_evidence.judged(tmp_path / "preflight-alone", None)
    assert told.checks[0].verdict is None and alone.verdict is Verdict.PASS, "not judged is no reason against a launch"
    assert page.count("badge pass") == 1 and "<skipped" in (tmp_path / "preflight-alone" / "junit.xml").read_text()


def test_what_a_node_does_not_tell_or_tells_wrongly_or_for_another_one_is_inconclusive(tmp_path: pathlib.Path) -> None:
    for place, told in enumerate((None, {"bytes": "many"}, [1])):
        answer = found(made(tmp_path / str(place), ["storage"], {"storage": told}))
        assert answer.verdict is Verdict.INCONCLUSIVE
        assert any(finding.nodes == ["node1"] for _, finding in answer.findings)
    folder = made(tmp_path, ["compute"], {"compute": None})
    who = {"role": "trainer", "node": "node0", "incarnation": 1, "rank": 1}
    emit = Emitter(folder / "events" / "node0" / "trainer-node0.1-1-2.jsonl", who)
    emit("preflight", probe="compute", values=GOOD["compute"])
    answer = found(folder)
    words = {"node1 told nothing of its speed", "node0 told something that cannot be its own"}
    assert answer.verdict is Verdict.INCONCLUSIVE and {each.words for _, each in answer.findings} == words


def test_what_became_worse_since_it_was_kept_is_named(tmp_path: pathlib.Path) -> None:
    before = found(made(tmp_path, NODES, name="preflight-before"))
    fitness.keep("month", before, tmp_path)
    now = made(tmp_path, NODES, {"links": {"to": [[0, 6.6e8]]}, "storage": GOOD["storage"]}, "preflight-now")
    assert found(now, fitness.kept("month", tmp_path, "local")).verdict is Verdict.PASS
    slower = {"all_reduce": None, "compute": {"flops": [0.74e9]}}
    answer = found(made(tmp_path, NODES, slower, "preflight-slower"), before)
    (worse,) = [each for _, each in answer.findings if each.certain]  # of one other rank there is a doubt alone
    assert worse.words == "rank 1 on node1 (FLOP/s): 74 % of what it was when the baseline was kept"
    assert worse.nodes == ["node1"]
    other = before.checks[3].judged.facts | {"torch": "2.8"}
    before.checks[3].judged.facts = other
    assert any("it was 2.8" in each.words for _, each in found(now, before).findings)


def test_only_a_fit_one_is_kept_and_only_of_the_same_engine(tmp_path: pathlib.Path) -> None:
    unfit = found(made(tmp_path, ["storage"], {"storage": None}))
    with pytest.raises(UsageError, match="inconclusive"):
        fitness.keep("x", unfit, tmp_path)
    fit = found(made(tmp_path, ["storage"], name="preflight-fit"))
    with pytest.raises(UsageError, match="was made with --faults"):
        fitness.keep("x", msgspec.structs.replace(fit, faults=True), tmp_path)
    result = chaos("preflight", "--keep", "x", "--reports", str(tmp_path))
    assert result.exit_code == 0, result.exception
    assert fitness.kept("x", tmp_path, "local").run_id == "preflight-fit", "the newest one"
    with pytest.raises(UsageError, match="backend local, this is docker"):
        fitness.kept("x", tmp_path, "docker")
    for name in ("y", "../x"):
        with pytest.raises(UsageError):
            fitness.kept(name, tmp_path, "local")
        with pytest.raises(UsageError):
            fitness.keep(f"/{name}", fit, tmp_path)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "say what to check"),
        (["rank-kill", "--checklist"], "say what to check"),
        (["rank-kill", "--only", "link"], "links"),
        (["rank-kill", "--against", "none"], "no preflight was kept"),
        (["--keep", "x"], "no preflight is in"),
        (["rank-kill", "--keep", "a/b"], "a name has letters"),
        (["rank-kill", "--keep", "x", "--faults"], "nothing is held against"),
        (["rank-kill", "--only", "restore", "--faults"], "asks the trainer"),
    ],
)
def test_mistakes_are_told(tmp_path: pathlib.Path, words: list[str], told: str) -> None:
    assert told in refused("preflight", *words, "--reports", str(tmp_path))


def healthy(logs: Logs, /) -> None: ...


def weights_drift(logs: Logs) -> None:
    for rank in (0, 1):
        change(logs.steps(rank=rank), weights=lambda line, rank=rank: f"{line['step']}, rank {rank}", weights_ns=1)


class Engine:
    """Stands for the engine: the trainer's run without a fault ends so, and the run with a rank killed is told of."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, reports: pathlib.Path, outcome: Outcome):
        self.reports, self.outcome, self.killed, self.tried, self.bend = reports, outcome, list[Plan](), 0, healthy
        monkeypatch.setattr(looking, "execute", lambda plan, folder, *rest: self.outcome)
        monkeypatch.setattr(looking, "ensure_fault_free", self.ensure)
        monkeypatch.setattr(looking, "run_experiment", self.experiment)

    def ensure(self, plan: Plan, reports: pathlib.Path, *rest: Any, anew: bool) -> tuple[pathlib.Path, Outcome]:
        assert anew and not plan.faults
        self.tried += 1
        simulate(JOB, []).write(reports / ".fault-free" / "kept")
        return reports / ".fault-free" / "kept", self.outcome

    def experiment(self, plan: Plan, reports: pathlib.Path, *rest: Any) -> tuple[pathlib.Path, bool]:
        self.killed.append(plan)
        history = simulate(JOB, [Outage(15, "rank", victim=1)])
        logs = history.logs()
        logs.plan.update(run_id=plan.run_id, expect=dict(plan.expect))
        self.bend(logs)
        simulate(JOB, [], seed=99).write(reports / plan.run_id / FAULT_FREE)
        return history.write(reports / plan.run_id, logs), False

    def look(self, *checks: str, **expect: Any) -> Preflight:
        setting = Setting(self.reports, load_backend("local"), CampaignObserver(), StopRequest(), list(checks))
        return stored_evidence.judged(looking.look(plan(expect=expect), setting), None)


def test_a_rank_is_killed_after_the_first_save_that_the_canary_made(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(monkeypatch, tmp_path, Outcome("completed", ""))
    assert engine.look("storage").verdict is Verdict.INCONCLUSIVE, "no node told anything"
    assert not engine.killed and engine.tried == 0, "what needs no trainer starts none"
    answer = engine.look("canary", "restore")
    (killed,) = engine.killed
    (fault,) = killed.faults
    assert (fault.kind, fault.when.step, fault.targets[0].rank) == ("rank_kill", 15, 1)
    assert killed.scenario.name == "preflight-x" and killed.workload.restore_drill is False
    assert answer.drill == killed.run_id and (tmp_path / answer.drill / "report.html").exists()
    assert answer.canary is not None and answer.canary.step[-1] == JOB.steps
    assert not (tmp_path / answer.run_id / "data").exists()


@pytest.mark.parametrize(
    "case",
    [
        (EXACT, optimizer_lost, "fail", "at step 12 loss"),
        (EXACT, healthy, "pass", ""),
        ({"loss_continuity": {"max_samples_repeated": 16}}, optimizer_lost, "pass", ""),
        ({}, optimizer_lost, "pass", ""),
        ({}, weights_drift, "fail", "ranks 0, 1 each computed with other weights"),
        ({"replicas": "off"}, weights_drift, "pass", ""),
    ],
)
def test_a_resume_is_held_to_what_the_scenario_expects_of_its_trainer(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, case: tuple[dict[str, Any], Mutant, str, str]
) -> None:
    engine = Engine(monkeypatch, tmp_path, Outcome("completed", ""))
    expect, engine.bend, verdict, words = case
    answer = engine.look("restore", **expect)
    report = json.loads((tmp_path / answer.drill / "report.json").read_text())
    assert report["verdict"] == verdict and words in report["reasons"][0], report["reasons"]
    assert (answer.checks[0].verdict is Verdict.FAIL) == (verdict == "fail")


@pytest.mark.parametrize(("outcome", "verdict"), [("failed", "fail"), ("aborted", "inconclusive")])
def test_a_trainer_that_does_not_end_without_a_fault_is_kept_for_a_look(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, outcome: str, verdict: str
) -> None:
    engine = Engine(monkeypatch, tmp_path, Outcome(outcome, "node1 ended with 1"))
    answer = engine.look("canary", "restore")
    assert not engine.killed and str(answer.checks[0].verdict) == verdict
    assert "node1 ended with 1" in answer.why and (tmp_path / f"{answer.run_id}-canary" / "report.html").exists()
    assert answer.checks[1].verdict is Verdict.INCONCLUSIVE
