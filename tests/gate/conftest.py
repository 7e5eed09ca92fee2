"""Whole gates whose runs cost nothing."""

import datetime
import pathlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from judging import verdict
from mutants.bent import BROKEN, JOB, KILL
from simulator import simulate

from harness.gate import suite_run as module
from harness.gate.gate_report import GateResult
from harness.gate.run_figures import RunFigures, ScenarioFigures, identity_of
from harness.gate.suite_run import Gate, run_gate
from harness.judge.score import Scorecard
from harness.plan.run_plan import Plan
from harness.run.job import Outcome
from harness.trainers.shared.outcome_inputs import environment_facts

SCENARIOS = pathlib.Path(__file__).resolve().parents[2] / "scenarios"
CODE = {"trainer_commit": "c" * 40, "trainer_diff": "clean"}
TODAY = datetime.date(2026, 11, 22)


@pytest.fixture(scope="session")
def good() -> Scorecard:
    return verdict(simulate(JOB, KILL, seed=5))


@pytest.fixture(scope="session")
def bad() -> Scorecard:
    return BROKEN[0].judge()


@pytest.fixture
def rehearse(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, good: Scorecard, bad: Scorecard) -> Any:
    """Runs a gate where runs cost nothing. `cards` are those of scenarios that do not pass, or why they cannot run;
    `check` is that of the blindness check, which is caught by default; `plans` gets that of its run."""
    kept: dict[str, Scorecard] = {}
    plans_of: dict[str, Plan] = {}

    def run(
        suite: str, cards: dict[str, Scorecard | Exception] | None = None, check: Scorecard = bad, **more: Any
    ) -> GateResult:
        def measured(cards: list[Scorecard]) -> tuple[ScenarioFigures, ...]:
            if not recovery:
                return ()
            identity = identity_of(plans_of[cards[0].run_id].to_json(), environment_facts())
            told: dict[str, Any] = {"recovery_time": recovery, "wasted_gpu_seconds": 2 * recovery}
            told["allocated_gpu_seconds"] = 80.0
            runs = tuple(RunFigures(run_id=card.run_id, verdict=card.verdict, **told) for card in cards)
            return (ScenarioFigures(identity=identity, runs=runs),)

        recovery: float = more.pop("recovery", 0.0)
        environment: dict[str, Any] = more.pop("environment", {})
        here: dict[str, Any] = more.pop("here", CODE)
        launched: list[Plan] = more.pop("plans", [])

        def pretend(plans: Iterable[Plan], *_: object) -> tuple[list[Scorecard], bool]:
            made = list(plans)
            plans_of.update({plan.run_id: plan for plan in made})
            if not made:
                return [], False
            card = (cards or {}).get(str(made[0].scenario.name), good)
            if isinstance(card, Exception):
                raise card
            named = [replace(card, run_id=plan.run_id, scenario=plan.scenario.name) for plan in made]
            for each, plan in zip(named, made, strict=True):
                kept[each.run_id] = replace(
                    each,
                    environment=environment_facts() | CODE | environment,
                    evidence=replace(each.evidence, run=replace(each.evidence.run, plan=plan.to_json())),
                )
            return [kept[each.run_id] for each in named], False

        monkeypatch.setattr("harness.run.provenance.facts", lambda *_: here)
        monkeypatch.setattr(module, "execute", lambda plan, *_: launched.append(plan) or Outcome("completed", ""))
        monkeypatch.setattr(module, "load_evidence", lambda run_dir: check.evidence)
        monkeypatch.setattr(module, "judge", lambda _, run_id: kept.get(run_id, check))
        monkeypatch.setattr(module, "write_reports", lambda *_: {})
        monkeypatch.setattr(module, "run_repeatedly", pretend)
        monkeypatch.setattr(module, "check_capabilities", lambda *_: None)
        monkeypatch.setattr(module, "figures_of_cards", measured)
        path = tmp_path / "small.yaml"
        path.write_text(suite)
        (tmp_path / "blindness-check.yaml").write_text((SCENARIOS / "suites" / "blindness-check.yaml").read_text())
        seed = more.pop("seed", 1)
        return run_gate(path, Gate("local", seed, tmp_path / "reports", SCENARIOS, today=TODAY, **more))

    run.folder = lambda answer: tmp_path / "reports" / answer.run_id  # type: ignore[attr-defined]
    return run
