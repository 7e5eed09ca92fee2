"""Runs a suite as one gate: first a scenario that must fail (the blindness check), then all scenarios of the suite.

A scenario that cannot be run gets the verdict inconclusive, and the gate goes on with the next scenario."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from harness.backends.contract import Backend, load_backend
from harness.campaign import wings
from harness.campaign.campaign_observers import SILENT_CAMPAIGN, CampaignObserver, Stage, staged
from harness.campaign.checked_files import load_scenario
from harness.campaign.experiment import new_run_id, run_repeatedly
from harness.campaign.repeats import RepeatVerdict, repeat_verdict
from harness.errors import ChaosError, ScenarioError, UsageError
from harness.evidence.logs import load_evidence
from harness.gate import baseline, stored_gate
from harness.gate.baseline_comparison import RUNS_MIN, RUNS_USUAL, Regressions
from harness.gate.gate_report import GateResult, SuiteRow, render
from harness.gate.known_failures import settle
from harness.gate.run_figures import HARDWARE, Figures, figures_of_cards, identity_of
from harness.gate.selection import Chosen, Shard, by_weight, look_back, needed_s, not_passed, of_shard, tagged
from harness.gate.stored_gate import LeftOut, Part, Run, Stored
from harness.gate.suite_file import KnownFailure, Suite, SuiteEntry, find_blindness_check, load_suite
from harness.judge.guarantee import guarantees
from harness.judge.score import Scorecard, judge
from harness.judge.verdict import Verdict, merge
from harness.plan.capabilities import check_capabilities
from harness.plan.making import make_plan
from harness.plan.run_plan import Plan
from harness.report import write_files, write_reports
from harness.report.view import in_words
from harness.report.words import one_line
from harness.run import provenance
from harness.run.job import execute
from harness.run.stop import StopRequest
from harness.spec.document import Document, read_text
from harness.spec.scenario import Scenario, find_beside
from harness.trainers.shared.outcome_inputs import environment_facts
from harness.units import counted

NEEDS = "put the trainer into a git checkout, with a commit"
SAME_CODE = (
    "trainer_commit",
    "trainer_diff",
    "data_digest",
    "image_digest",
)  # facts that tell code apart


@dataclass(frozen=True)
class Gate:
    backend: str
    seed: int
    reports: pathlib.Path
    scenarios: pathlib.Path
    observer: CampaignObserver = SILENT_CAMPAIGN
    stop: StopRequest = field(default_factory=StopRequest)
    against: str = ""  # baseline, in the form that `baseline.find` takes
    repeat: int | None = None  # runs of each scenario; `None`: as the suite and its scenarios say
    tag: str = ""  # only scenarios with this tag
    fail_fast: bool = False
    budget_s: float | None = None  # from the start of the gate
    shard: Shard | None = None
    last_failed: bool = False  # only scenarios that did not pass in gate `add`, or in the suite's newest
    add: str = ""  # earlier gate whose runs count as well
    today: datetime.date = field(default_factory=datetime.date.today)


@dataclass(frozen=True)
class Earlier:
    """The runs of an earlier gate that the present gate counts as its own (`--add`). `asked` holds the names of the
    scenarios to run again."""

    cards: Sequence[Scorecard]
    asked: frozenset[str]

    def of(self, plan: Plan) -> list[Scorecard]:
        """Returns the earlier gate's runs of `plan`. If `plan` sets no number of steps, runs with any number of steps
        are returned."""
        wanted = _told(plan.to_json(), plan.to_json())
        return [card for card in self.cards if _told(card.evidence.run.plan, plan.to_json()) == wanted]

    def check(self, plan: Plan, backend: Backend) -> None:
        """Raises `UsageError` if an earlier run of `plan` used other code than now, or if this is unknown."""
        here = provenance.facts(plan, backend) if self.cards else {}
        for card in self.of(plan):
            for name in SAME_CODE:
                if (then := card.environment.get(name)) != (now := here.get(name)):
                    raise UsageError(f"--add: {card.run_id} had {name} {then or 'unknown'}, here {now or 'unknown'}")
            if not _is_known(plan, backend):
                raise UsageError(f"--add: cannot verify that {card.run_id} ran the current code: {NEEDS}")


def _told(plan: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    steps = plan["workload"].get("steps") if wanted["workload"].get("steps") else None
    told = {**plan, "run_id": "", "workload": {**plan["workload"], "steps": steps}}
    return dict(json.loads(json.dumps(told)))


class Stopped(Exception):
    pass


def run_gate(path: pathlib.Path, gate: Gate) -> GateResult:
    """Runs the suite in the file `path` as a gate. Raises `ScenarioError`, before anything runs, for mistakes in the
    suite or in a scenario. Raises `UsageError` if the baseline is of another job or machine, and `Stopped` if the user
    stops the gate."""
    begun = time.monotonic()
    guarantees()  # a plug-in that cannot be used is refused now, not after the first run
    suite = load_suite(path)
    broken = load_scenario(find_blindness_check(suite, path, gate.scenarios))
    every = load_entries(path, suite, gate.scenarios)
    specs = tagged(every, gate.tag) if gate.tag else every
    before = None
    if gate.add or gate.last_failed:
        before = stored_gate.find(gate.add or "last", gate.reports, suite.name, gate.backend)
    earlier = _judged_anew(before, gate, digest_of(path)) if gate.add and before else []
    asked = not_passed(before) if gate.last_failed and before else frozenset(_name(*each) for each in specs)
    if not any(_name(*each) in asked for each in specs):
        raise UsageError(f"--last-failed: none of the selected scenarios is one of these: {', '.join(sorted(asked))}")
    again = gate.last_failed and not gate.add
    specs = [each for each in specs if _name(*each) in asked] if again else specs
    names, added = tuple(_name(*each) for each in specs), before.run_id if gate.add and before else ""
    whole = (len(every), len(specs), gate.tag, gate.backend, gate.seed, digest_of(path), names)
    part = Part(*whole, again=again, added=added, repeat=gate.repeat)
    if shard := gate.shard:
        specs, part = of_shard(specs, shard), structs.replace(part, shard=shard.number, shards=shard.of)
    compared_with = _baseline(specs, gate)
    backend, added_to = load_backend(gate.backend), Earlier(earlier, asked)
    for entry, spec in specs:
        added_to.check(_check_plan(entry, spec, gate), backend)
    if not all(_is_known(plan, backend) for plan in _of_each_trainer(specs, gate)):
        gate.observer.note(f"No later gate can count the runs of this one (--add): {NEEDS}.")
    run_id = new_run_id(suite.name)
    size = counted(len(specs), "scenario")
    gate.observer.begins(suite.name, f"{suite.title} · {size} · seed {gate.seed}")
    elsewhere = "" if path.parent == gate.scenarios / "suites" else str(path)
    with _begun(gate.reports / run_id):
        check_row = _blindness_check(broken, gate, backend)
        blind = _blind(check_row, suite.blindness_reason)
        found = check_row.result
        gate.observer.note(f"  {found.verdict}{'' if blind else ', as it must'}: {in_words(found.reasons[0])}")
        named = (suite.name, suite.title, run_id, Verdict.INVALID, blind, check_row)
        answer = GateResult(*named, part=part, path=elsewhere)
        if blind:
            return _report(answer, gate)
        rows, left_out = _run_rows(specs, gate, backend, begun, added_to)
        held = _held_against(compared_with, rows, gate) if compared_with else None
        part = structs.replace(part, left_out=left_out)
        return _report(decided(replace(answer, rows=rows, held=held, part=part)), gate)


@contextlib.contextmanager
def _begun(folder: pathlib.Path) -> Iterator[None]:
    folder.mkdir(parents=True)
    (folder / stored_gate.BEGAN).touch()
    try:
        yield
    finally:
        (folder / stored_gate.BEGAN).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it holds the answer
            folder.rmdir()


def _judged_anew(before: Stored, gate: Gate, digest: str) -> list[Scorecard]:
    if (before.part.digest, before.part.seed) != (digest, gate.seed):
        raise UsageError(f"--add {gate.add}: gate {before.run_id} ran another suite file or another seed")
    here, cards = environment_facts(), []
    for run_id in dict.fromkeys(run.run_id for row in before.scenarios if not row.swept for run in row.runs):
        try:
            # The runs are judged again: the verdicts in the stored gate do not count.
            card = judge(load_evidence(gate.reports / pathlib.PurePath(run_id).name), run_id)
        except ChaosError as error:
            raise UsageError(f"--add {gate.add}: run {one_line(run_id)}: {error}") from error
        if card.evidence.run.plan.get("run_id") != run_id:
            raise UsageError(f"--add {gate.add}: run {one_line(run_id)}: its log is that of another run")
        for name in ("python", "torch", *HARDWARE):
            if (then := card.environment.get(name)) != (now := here.get(name)):
                raise UsageError(f"--add {gate.add}: its runs had {name} {then or 'unknown'}, here {now or 'unknown'}")
        cards.append(card)
    return cards


def load_entries(path: pathlib.Path, suite: Suite, scenarios: pathlib.Path) -> list[Chosen]:
    """Returns each entry of a suite with its scenario. Raises `ScenarioError` if an entry has mistakes, or if two
    entries of the suite are equal."""
    document = Document(read_text(path), str(path))
    every: list[Chosen] = []
    for place, entry in enumerate(suite.entries):
        try:
            scenario = find_beside(entry.scenario, path.parent, scenarios)
            every.append((entry, load_scenario(scenario, entry.profile, entry.overrides)))
        except (ScenarioError, UsageError) as error:
            document.problem(("scenarios", place), str(error).replace("\n", "; "))
    document.raise_problems()
    _check_twice(document, every)
    return every


def _name(entry: SuiteEntry, spec: Scenario) -> str:
    return entry.named(spec.name)


def _check_twice(document: Document, specs: Sequence[Chosen]) -> None:
    """Refuses two entries with equal name, workload and faults, because their runs could not be told apart."""
    seen = dict[tuple[str, str], int]()
    for place, (entry, spec) in enumerate(specs):
        parts = spec.model_dump(mode="json", include={"workload", "faults", "limits"})
        parts["workload"].pop("trainer", None)  # the trainer is under test
        first = seen.setdefault((_name(entry, spec), json.dumps(parts, sort_keys=True)), place)
        if first != place:
            why = f"{_name(entry, spec)} does the same as scenarios.{first}, with the same workload and faults; "
            document.problem(("scenarios", place), f"{why}use repeat: for more runs of it, or a profile")
    document.raise_problems()


def _of_each_trainer(specs: Sequence[Chosen], gate: Gate) -> list[Plan]:
    plans = (_check_plan(entry, spec, gate) for entry, spec in specs if entry.matrix is None)
    return list({repr(plan.workload.trainer.files()): plan for plan in plans}.values())


def _is_known(plan: Plan, backend: Backend) -> bool:
    here = provenance.facts(plan, backend)
    return any(here.get(name) for name in ("trainer_diff", "image_digest"))


def digest_of(suite: pathlib.Path) -> str:
    return hashlib.sha256(suite.read_bytes()).hexdigest()[:16]


def _run_rows(
    specs: Sequence[Chosen], gate: Gate, backend: Backend, begun: float, earlier: Earlier
) -> tuple[tuple[SuiteRow, ...], tuple[LeftOut, ...]]:
    rows: dict[int, SuiteRow] = {}  # by place in the suite, which may have a scenario twice
    left_out = []
    past = look_back(specs, gate.reports, gate.backend) if gate.budget_s is not None else {}
    failed = ""
    for place in by_weight(specs, past) if past else range(len(specs)):
        entry, spec = specs[place]
        why = f"{failed} had failed" if failed else ""
        before = earlier.of(_check_plan(entry, spec, gate)) if earlier.cards else []
        runs = 0 if before and _name(entry, spec) not in earlier.asked else _repeats(entry, spec, gate)
        if not why and runs and gate.budget_s is not None:
            need = needed_s(entry, runs, past)
            left = gate.budget_s - (time.monotonic() - begun)
            if need > left:
                why = f"it takes about {need:.0f} s, and {max(left, 0):.0f} s of the budget were left"
        if why:
            left_out.append(LeftOut(_name(entry, spec), why, entry.required))
            continue
        row = rows[place] = _row(entry, spec, gate, backend, before, runs)
        failed = row.name if gate.fail_fast and row.result.verdict is Verdict.FAIL else ""
    return tuple(rows[place] for place in sorted(rows)), tuple(left_out)


def _check_plan(entry: SuiteEntry, spec: Scenario, gate: Gate) -> Plan:
    return make_plan(spec, gate.seed, gate.backend, "check", entry.profile)


def _repeats(entry: SuiteEntry, spec: Scenario, gate: Gate) -> int:
    return gate.repeat or entry.repeat or spec.repeat


def _baseline(specs: Sequence[Chosen], gate: Gate) -> Figures | None:
    if not gate.against:
        return None
    facts = environment_facts()
    asked = [(entry, spec) for entry, spec in specs if entry.known_failure is None and entry.matrix is None]
    if few := [_name(*each) for each in asked if _repeats(*each, gate) < RUNS_MIN]:
        gate.observer.note(
            f"This gate can fail, but not pass: {', '.join(few[:3])}{' and others' if len(few) > 3 else ''} would run"
            f" fewer than {RUNS_MIN} times, and fewer are never called not worse. Give --repeat {RUNS_USUAL}."
        )
    plans = [_check_plan(*each, gate) for each in asked]
    wanted = [identity_of(plan.to_json(), facts) for plan in plans]
    found = baseline.find(gate.against, gate.reports, wanted)
    baseline.check(gate.against, found, wanted)
    return found


def _blind(check_row: SuiteRow, asked: str | None) -> str:
    said = check_row.result.reasons[0]
    if check_row.result.verdict is not Verdict.FAIL:
        return f"the blindness check did not fail ({check_row.result.verdict}: {said}), so this gate proves nothing"
    card = check_row.cards[0]
    struck = {fault.id for fault in card.evidence.run.faults if fault.injected is not None}
    planned = [str(fault["id"]) for fault in card.evidence.run.plan.get("faults") or ()]
    # A fault never acted: the check failed for another reason, perhaps at its start.
    if idle := ", ".join(name for name in planned if name not in struck):
        return f"the blindness check failed before {idle} struck it ({said}), so this gate proves nothing"
    if asked and not any(asked in reason for reason in card.reasons):
        return f"the blindness check failed for another reason than {asked!r} ({said})"
    return ""


def decided(answer: GateResult) -> GateResult:
    """Sets the gate's verdict to the worst verdict of the scenarios and of the comparison with the baseline. A gate
    that left out a required scenario cannot pass."""
    held, part = answer.held, answer.part
    verdict = merge(row.result.verdict for row in answer.rows)
    reason = _reason(verdict, answer.rows)
    if held is not None:
        worst = merge([verdict, held.verdict])
        if held.verdict is Verdict.PASS:
            reason = f"{reason}; not worse than baseline {held.baseline}"
        else:
            said = f"against baseline {held.baseline}: {held.reasons[0]}"
            reason = said if worst is not verdict else f"{reason}; {said}"
        verdict = worst
    if part.incomplete:
        full = f"not a full pass: {part.incomplete}; {reason}"
        reason = full if verdict is Verdict.PASS else f"{reason}; {part.incomplete}"
        verdict = merge([verdict, Verdict.INCONCLUSIVE])
    elif part.in_words:
        reason = f"{reason}; {part.in_words}"
    return replace(answer, verdict=verdict, reason=reason)


def _held_against(before: Figures, rows: Sequence[SuiteRow], gate: Gate) -> Regressions:
    asked = [row for row in rows if not row.known and not row.swept]
    measured = [each for row in asked for each in figures_of_cards(row.cards)]
    without = [row.name for row in asked if not figures_of_cards(row.cards)]
    held = baseline.regressions(gate.against, before, measured, without)
    known = [f"{row.name} (its failure is known)" for row in rows if row.known]
    known += [f"{row.name} (it has no figures)" for row in rows if row.swept and not row.known]
    return replace(held, not_compared=[*held.not_compared, *known])


def _report(answer: GateResult, gate: Gate) -> GateResult:
    folder = gate.reports / answer.run_id
    sets = tuple(each for row in answer.rows for each in figures_of_cards(row.cards))
    figures = Figures(source=answer.run_id, made_at=baseline.now(), scenarios=sets)
    write_files({**render(answer), baseline.FIGURES: figures.to_text()}, folder)
    return answer


def _reason(verdict: Verdict, rows: Sequence[SuiteRow]) -> str:
    if verdict is Verdict.PASS:
        known = sum(row.known for row in rows)
        failing = f", {known} of them with a known failure" if known else ""
        told = "the scenario" if len(rows) == 1 else f"all {len(rows)} scenarios"
        return f"{told} passed{failing}, and the blindness check was caught"
    if not rows:
        return "no scenario was run"
    worst = [row for row in rows if row.result.verdict is verdict]
    names = ", ".join(row.name for row in worst)
    return f"{len(worst)} of {counted(len(rows), 'scenario')}: {names}; {worst[0].result.reasons[0]}"


def _blindness_check(spec: Scenario, gate: Gate, backend: Backend) -> SuiteRow:
    plan = make_plan(spec, gate.seed, gate.backend, new_run_id(spec.name)).as_control()
    check_capabilities(plan, backend.probe())
    run_dir = gate.reports / plan.run_id
    stage = Stage("blindness check", plan.workload.nodes)
    outcome = staged(gate.observer, stage, lambda: execute(plan, run_dir, backend, gate.observer, gate.stop))
    card = judge(load_evidence(run_dir), plan.run_id)
    write_reports(card, run_dir)
    if outcome.outcome == "interrupted" or gate.stop.asked:
        raise Stopped
    return SuiteRow(spec.name, spec.title, repeat_verdict([card]), (card,))


def _row(
    entry: SuiteEntry, spec: Scenario, gate: Gate, backend: Backend, before: Sequence[Scorecard], runs: int
) -> SuiteRow:
    name, known, swept = _name(entry, spec), entry.known_failure, entry.matrix is not None

    def planned() -> Plan:
        return make_plan(spec, gate.seed, gate.backend, new_run_id(spec.name), entry.profile)

    gate.observer.begins(name, spec.title)
    cards = [card for card in before if card.verdict in baseline.JUDGED or not runs]
    if cards and not swept:
        gate.observer.note(f"{counted(len(cards), 'run')} of gate {gate.add}")
    try:
        if entry.matrix:
            return _swept(entry.matrix, name, known, planned(), spec.title, gate, backend)
        check_capabilities(_check_plan(entry, spec, gate), backend.probe())
        plans = (planned() for _ in range(runs))
        new, interrupted = run_repeatedly(plans, gate.reports, backend, gate.observer, gate.stop)
    except UsageError:
        raise
    except ChaosError as error:
        gate.observer.note(f"  inconclusive: {error}")
        return SuiteRow(name, spec.title, RepeatVerdict(Verdict.INCONCLUSIVE, (str(error),)), swept=swept)
    if interrupted:
        raise Stopped
    cards += new
    result = settle(known, repeat_verdict(cards), cards, gate.today) if known else repeat_verdict(cards)
    return SuiteRow(name, spec.title, result, tuple(cards), known=known is not None)


def _swept(
    matrix: str, name: str, known: KnownFailure | None, plan: Plan, title: str, gate: Gate, backend: Backend
) -> SuiteRow:
    check_capabilities(plan.without_faults(plan.run_id), backend.probe())
    found = wings.sweep_of(matrix)(plan, gate.reports, backend, gate.stop, gate.observer.note, bool(gate.add))
    if gate.stop.asked:
        raise Stopped
    result = RepeatVerdict(found.verdict, tuple(found.reasons))
    result = settle(known, result, (), gate.today) if known else result
    run = Run(found.run_id, found.verdict)
    return SuiteRow(name, title, result, known=known is not None, stored=(run,), swept=True)
