"""A suite of scenarios as one gate: first the canary that must fail, then every scenario, then one answer.

A scenario that cannot be run is inconclusive and does not keep the others from running.
"""

from __future__ import annotations

import pathlib
from dataclasses import dataclass, field

from harness.backends.contract import Backend, load_backend
from harness.campaign.experiment import new_run_id, run_repeatedly
from harness.campaign.observers import SILENT_CAMPAIGN, CampaignObserver, Stage
from harness.campaign.reading import load_scenario
from harness.errors import ChaosError, UsageError
from harness.judge.evidence import load_evidence
from harness.judge.repeats import RepeatVerdict, repeat_verdict
from harness.judge.score import Scorecard, Verdict, judge, merge
from harness.plan.capabilities import check_capabilities
from harness.plan.making import make_plan
from harness.report import write_files, write_reports
from harness.report.suite import GateResult, SuiteRow, render
from harness.run.job import execute
from harness.run.stop import StopRequest
from harness.spec.scenario import Scenario, find_scenario
from harness.spec.suite import Entry, Suite, load_suite


@dataclass(frozen=True)
class Gate:
    """Where and with what a gate runs, and who watches it."""

    backend: str
    seed: int
    reports: pathlib.Path
    scenarios: pathlib.Path
    observer: CampaignObserver = SILENT_CAMPAIGN
    stop: StopRequest = field(default_factory=StopRequest)


class Stopped(Exception):
    """The user asked for the end in the middle of a gate. Raised when everything is undone."""


def run_gate(path: pathlib.Path, gate: Gate) -> GateResult:
    """Raises `ScenarioError` before anything runs when the suite or one of its scenarios is wrong, and `Stopped`."""
    suite = load_suite(path)
    canary = load_scenario(find_scenario(suite.canary, path.parent))
    specs = [(entry, _load(entry, gate)) for entry in suite.entries]
    backend = load_backend(gate.backend)
    run_id = new_run_id(suite.name)
    gate.observer.suite(suite.name, suite.title, len(specs), gate.seed)
    canary_row = _canary(canary, gate, backend)
    if reason := _blind(canary_row, suite):
        return _report(GateResult(suite.name, suite.title, run_id, Verdict.INVALID, reason, canary_row), gate)
    rows = tuple(_row(entry, spec, gate, backend) for entry, spec in specs)
    verdict = merge(row.result.verdict for row in rows)
    return _report(GateResult(suite.name, suite.title, run_id, verdict, _reason(verdict, rows), canary_row, rows), gate)


def _blind(canary: SuiteRow, suite: Suite) -> str:
    """Why the run that had to fail does not show that this gate can go red; an empty text: it does."""
    verdict, why = canary.result.verdict, canary.result.reasons[0]
    if verdict is not Verdict.FAIL:
        return f"the canary did not fail ({verdict}: {why}): this gate is blind"
    if idle := _not_struck(canary.cards[0]):
        return f"the canary failed before {idle} struck it ({why}): this says nothing of the gate"
    if suite.canary_reason and not any(suite.canary_reason in reason for reason in canary.cards[0].reasons):
        return f"the canary failed over something else than {suite.canary_reason!r} ({why})"
    return ""


def _report(answer: GateResult, gate: Gate) -> GateResult:
    folder = gate.reports / answer.run_id
    folder.mkdir(parents=True)
    write_files(render(answer), folder)
    return answer


def _reason(verdict: Verdict, rows: tuple[SuiteRow, ...]) -> str:
    if verdict is Verdict.PASS:
        return f"all {len(rows)} scenarios passed, and the canary was caught"
    worst = [row for row in rows if row.result.verdict is verdict]
    names = ", ".join(row.name for row in worst)
    return f"{len(worst)} of {len(rows)} scenarios: {names}; {worst[0].result.reasons[0]}"


def _load(entry: Entry, gate: Gate) -> Scenario:
    return load_scenario(find_scenario(entry.scenario, gate.scenarios), entry.profile, entry.overrides)


def _canary(spec: Scenario, gate: Gate, backend: Backend) -> SuiteRow:
    """No fault-free run is needed to see that it fails."""
    plan = make_plan(spec, gate.seed, gate.backend, new_run_id(spec.name))
    check_capabilities(plan, backend.probe())
    run_dir = gate.reports / plan.run_id
    stage = Stage("canary", plan.workload.nodes)
    gate.observer.stage(stage)
    outcome = execute(plan, run_dir, backend, gate.observer, gate.stop)
    gate.observer.stage_ended(stage, outcome.outcome)
    card = judge(load_evidence(run_dir), plan.run_id)
    write_reports(card, run_dir)
    if outcome.outcome == "interrupted" or gate.stop.asked:
        raise Stopped
    gate.observer.canary(card)
    return SuiteRow(spec.name, spec.title, repeat_verdict([card]), (card,))


def _not_struck(canary: Scorecard) -> str:
    """Its faults that never acted: it failed over something else, at its start perhaps."""
    struck = {fault["id"] for fault in canary.faults if fault["t_injected"] is not None}
    planned = [str(fault["id"]) for fault in canary.evidence.run.plan.get("faults") or ()]
    return ", ".join(name for name in planned if name not in struck)


def _row(entry: Entry, spec: Scenario, gate: Gate, backend: Backend) -> SuiteRow:
    name = f"{spec.name} ({entry.profile})" if entry.profile else spec.name
    plans = (
        make_plan(spec, gate.seed, gate.backend, new_run_id(spec.name), entry.profile)
        for _ in range(entry.repeat or spec.repeat)
    )
    gate.observer.scenario(name, spec.title)
    try:
        check_capabilities(make_plan(spec, gate.seed, gate.backend, "check", entry.profile), backend.probe())
        cards, interrupted = run_repeatedly(plans, gate.reports, backend, gate.observer, gate.stop)
    except UsageError:
        raise
    except ChaosError as error:
        gate.observer.not_run(str(error))
        return SuiteRow(name, spec.title, RepeatVerdict(Verdict.INCONCLUSIVE, (str(error),)))
    if interrupted:
        raise Stopped
    return SuiteRow(name, spec.title, repeat_verdict(cards), tuple(cards))
