"""One scenario, whole: twin, calibration, the run with its faults; the evidence ends up in one folder."""

from __future__ import annotations

import pathlib
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping

from rich.console import Console

from harness.backends.contract import Backend
from harness.campaign.fault_free import CACHE, ensure_twin, fault_free_plans, forget_twins
from harness.cli.display import Display
from harness.errors import ChaosError
from harness.judge import slowdown
from harness.judge.evidence import attach, load_evidence
from harness.judge.score import Scorecard, judge
from harness.plan.model import Plan
from harness.report import write_reports
from harness.run.job import Status, execute

MIN_FREE_BYTES = 200 * 2**20


def run_experiment(
    plan: Plan,
    reports: pathlib.Path,
    backend: Backend,
    show: Callable[[Status], None],
    say: Callable[[str], None],
) -> tuple[pathlib.Path, bool]:
    """Runs what is needed and returns the run's folder, and whether the user stopped it.

    When the workload does not even finish without a fault, that fault-free run is what is handed back to be judged.
    """
    _check_room(reports)
    run_dir = reports / plan.run_id
    cache = reports / CACHE
    cache.mkdir(exist_ok=True)
    kept = False
    # Links of its own from the start: another run beside this one may make the same twins anew.
    with tempfile.TemporaryDirectory(dir=cache, prefix=f"{plan.run_id}.") as held:
        for name, twin in fault_free_plans(plan).items():
            say(f"fault-free {name}, {twin.workload.nodes} node(s)")
            folder, outcome = ensure_twin(twin, reports, backend, show)
            say("  cached" if outcome is None else f"  {outcome.outcome}")
            if outcome is not None and outcome.outcome != "completed":
                folder.rename(run_dir)
                return run_dir, outcome.outcome == "interrupted"
            attach(pathlib.Path(held), name, folder)
            kept |= outcome is None
        say("run with faults" if plan.faults else "run")
        outcome = execute(plan, run_dir, backend, show)
        for evidence in pathlib.Path(held).iterdir():
            shutil.move(evidence, run_dir / evidence.name)
    if outcome.outcome == "completed":
        shutil.rmtree(run_dir / "checkpoints", ignore_errors=True)
        if kept and _at_another_pace(run_dir):
            return run_dir, _renew(plan, run_dir, backend, show, say)
    return run_dir, outcome.outcome == "interrupted"


def _at_another_pace(run_dir: pathlib.Path) -> bool:
    evidence = load_evidence(run_dir)
    return slowdown.of_another_pace(evidence.run, slowdown.usual_step_times(evidence.fault_free))


def _renew(
    plan: Plan, run_dir: pathlib.Path, backend: Backend, show: Callable[[Status], None], say: Callable[[str], None]
) -> bool:
    """Makes the fault-free runs once more, in the place of those of a busier or a quieter day. Where one does not
    complete, the run keeps the old one. Returns whether the user stopped it."""
    forget_twins(plan, run_dir.parent)
    for name, twin in fault_free_plans(plan).items():
        say(f"fault-free {name} once more: the one that was kept went at another pace")
        folder, outcome = ensure_twin(twin, run_dir.parent, backend, show)
        say("  cached" if outcome is None else f"  {outcome.outcome}")
        if outcome is not None and outcome.outcome != "completed":
            shutil.rmtree(folder)
            return outcome.outcome == "interrupted"
        shutil.rmtree(run_dir / name)
        attach(run_dir, name, folder)
    return False


def run_repeatedly(
    plans: Iterable[Plan],
    reports: pathlib.Path,
    backend: Backend,
    console: Console,
    done: Callable[[Scorecard, Mapping[str, pathlib.Path]], None],
) -> tuple[list[Scorecard], bool]:
    """Runs and judges plan after plan; `done` hears of each. Returns the cards, and whether the user stopped it."""
    cards = []
    for plan in plans:
        with Display(console) as display:
            run_dir, interrupted = run_experiment(plan, reports, backend, display.show, display.say)
        card = judge(load_evidence(run_dir), run_dir.name)
        done(card, write_reports(card, run_dir))
        cards.append(card)
        if interrupted:
            return cards, True
    return cards, False


def new_run_id(name: str) -> str:
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{random.SystemRandom().getrandbits(16):04x}"


def _check_room(reports: pathlib.Path) -> None:
    reports.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(reports).free
    if free < MIN_FREE_BYTES:
        raise ChaosError(f"{reports}: {free // 2**20} MiB free; a run needs {MIN_FREE_BYTES // 2**20} MiB")
