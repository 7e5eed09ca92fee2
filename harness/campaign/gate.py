"""A suite of scenarios as one gate: first the canary that must fail, then every scenario, then one answer.

A scenario that cannot be run is inconclusive and does not keep the others from running.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.backends.contract import Backend, load_backend
from harness.campaign import baseline
from harness.campaign.experiment import new_run_id, run_repeatedly
from harness.campaign.figures import Figures, figures_of_cards, identity_of
from harness.campaign.observers import SILENT_CAMPAIGN, CampaignObserver, Stage
from harness.campaign.reading import load_scenario
from harness.errors import ChaosError, UsageError
from harness.judge.comparison import Regressions
from harness.judge.evidence import load_evidence
from harness.judge.repeats import Together, together
from harness.judge.score import Scorecard, Verdict, judge, merge
from harness.plan.capabilities import check_capabilities
from harness.plan.making import make_plan
from harness.report import write_files, write_reports
from harness.report.suite import Answer, Row, render
from harness.run.job import execute
from harness.run.stop import StopRequest
from harness.spec.scenario import Scenario, find_scenario
from harness.spec.suite import Entry, Suite, load_suite
from harness.trainers.shared.outcome import environment_facts


@dataclass(frozen=True)
class Gate:
    """Where and with what a gate runs, and who watches it."""

    backend: str
    seed: int
    reports: pathlib.Path
    scenarios: pathlib.Path
    observer: CampaignObserver = SILENT_CAMPAIGN
    stop: StopRequest = field(default_factory=StopRequest)
    against: str = ""  # a baseline, as `baseline.find` takes it
    repeat: int | None = None  # in place of what the suite and its scenarios say


class Stopped(Exception):
    """The user asked for the end in the middle of a gate. Raised when everything is undone."""


def run_gate(path: pathlib.Path, gate: Gate) -> Answer:
    """Raises `ScenarioError` before anything runs when the suite or one of its scenarios is wrong, `UsageError` for a
    baseline that cannot be compared with, and `Stopped`."""
    suite = load_suite(path)
    canary = load_scenario(find_scenario(suite.canary, path.parent))
    specs = [(entry, _load(entry, gate)) for entry in suite.entries]
    before = _baseline(specs, gate)
    backend = load_backend(gate.backend)
    run_id = new_run_id(suite.name)
    gate.observer.suite(suite.name, suite.title, len(specs), gate.seed)
    bird = _canary(canary, gate, backend)
    if blind := _blind(bird, suite.canary_reason):
        return _report(Answer(suite.name, suite.title, run_id, Verdict.INVALID, blind, bird), gate)
    rows = tuple(_row(entry, spec, gate, backend) for entry, spec in specs)
    return _report(_answer(suite, run_id, bird, rows, before, gate), gate)


def _baseline(specs: Sequence[tuple[Entry, Scenario]], gate: Gate) -> Figures | None:
    """What the runs will be held against, checked before anything runs."""
    if not gate.against:
        return None
    facts = environment_facts()
    plans = [make_plan(spec, gate.seed, gate.backend, "check", entry.profile) for entry, spec in specs]
    wanted = [identity_of(plan.to_json(), facts) for plan in plans]
    found = baseline.find(gate.against, gate.reports, wanted)
    baseline.check(gate.against, found, wanted)
    return found


def _blind(bird: Row, asked: str | None) -> str:
    """Why the canary proves nothing, or an empty text where it failed as it must."""
    said = bird.result.reasons[0]
    if bird.result.verdict is not Verdict.FAIL:
        return f"the canary did not fail ({bird.result.verdict}: {said}): this gate is blind"
    if idle := _not_struck(bird.cards[0]):
        return f"the canary failed before {idle} struck it ({said}): this says nothing of the gate"
    if asked and not any(asked in reason for reason in bird.cards[0].reasons):
        return f"the canary failed over something else than {asked!r} ({said})"
    return ""


def _answer(suite: Suite, run_id: str, bird: Row, rows: tuple[Row, ...], before: Figures | None, gate: Gate) -> Answer:
    verdict = merge(row.result.verdict for row in rows)
    reason = _reason(verdict, rows)
    held = _held_against(before, rows, gate) if before else None
    if held is not None:
        verdict, reason = merge([verdict, held.verdict]), _with_baseline(verdict, reason, held)
    return Answer(suite.name, suite.title, run_id, verdict, reason, bird, rows, held)


def _held_against(before: Figures, rows: Sequence[Row], gate: Gate) -> Regressions:
    measured = [each for row in rows for each in figures_of_cards(row.cards)]
    without = [row.name for row in rows if not figures_of_cards(row.cards)]
    return baseline.regressions(gate.against, before, measured, without)


def _with_baseline(verdict: Verdict, reason: str, held: Regressions) -> str:
    if held.verdict is Verdict.PASS:
        return f"{reason}; not worse than baseline {held.baseline}"
    said = f"against baseline {held.baseline}: {held.reasons[0]}"
    return said if merge([verdict, held.verdict]) is not verdict else f"{reason}; {said}"


def _report(answer: Answer, gate: Gate) -> Answer:
    folder = gate.reports / answer.run_id
    folder.mkdir(parents=True)
    write_files({**render(answer), baseline.FIGURES: _figures(answer).to_text()}, folder)
    return answer


def _figures(answer: Answer) -> Figures:
    """What a later gate may be held against."""
    sets = tuple(each for row in answer.rows for each in figures_of_cards(row.cards))
    return Figures(source=answer.run_id, made_at=baseline.now(), scenarios=sets)


def _reason(verdict: Verdict, rows: tuple[Row, ...]) -> str:
    if verdict is Verdict.PASS:
        return f"all {len(rows)} scenarios passed, and the canary was caught"
    worst = [row for row in rows if row.result.verdict is verdict]
    names = ", ".join(row.name for row in worst)
    return f"{len(worst)} of {len(rows)} scenarios: {names}; {worst[0].result.reasons[0]}"


def _load(entry: Entry, gate: Gate) -> Scenario:
    return load_scenario(find_scenario(entry.scenario, gate.scenarios), entry.profile, entry.overrides)


def _canary(spec: Scenario, gate: Gate, backend: Backend) -> Row:
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
    return Row(spec.name, spec.title, together([card]), (card,))


def _not_struck(canary: Scorecard) -> str:
    """Its faults that never acted: it failed over something else, at its start perhaps."""
    struck = {fault["id"] for fault in canary.faults if fault["t_injected"] is not None}
    planned = [str(fault["id"]) for fault in canary.evidence.run.plan.get("faults") or ()]
    return ", ".join(name for name in planned if name not in struck)


def _row(entry: Entry, spec: Scenario, gate: Gate, backend: Backend) -> Row:
    name = f"{spec.name} ({entry.profile})" if entry.profile else spec.name
    plans = (
        make_plan(spec, gate.seed, gate.backend, new_run_id(spec.name), entry.profile)
        for _ in range(gate.repeat or entry.repeat or spec.repeat)
    )
    gate.observer.scenario(name, spec.title)
    try:
        check_capabilities(make_plan(spec, gate.seed, gate.backend, "check", entry.profile), backend.probe())
        cards, interrupted = run_repeatedly(plans, gate.reports, backend, gate.observer, gate.stop)
    except UsageError:
        raise
    except ChaosError as error:
        gate.observer.not_run(str(error))
        return Row(name, spec.title, Together(Verdict.INCONCLUSIVE, (str(error),)))
    if interrupted:
        raise Stopped
    return Row(name, spec.title, together(cards), tuple(cards))
