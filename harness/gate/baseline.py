"""Stores measurements of runs as a named baseline, and compares new runs with a stored baseline."""

from __future__ import annotations

import datetime
import math
import pathlib
import re
import statistics
from collections.abc import Sequence

from msgspec import structs

from harness.campaign.run_store import NotARun, Store, Wanted, by_log
from harness.errors import UsageError, choice
from harness.gate import stored_gate, stored_runs
from harness.gate.baseline_comparison import FIGURES as COMPARED
from harness.gate.baseline_comparison import Question, Regressions, Success, compare, title
from harness.gate.run_figures import Figures, Identity, RunFigures, ScenarioFigures, figures_of, gathered, identity_of
from harness.gate.run_figures import read as read_figures
from harness.judge.verdict import Verdict
from harness.report import write_files
from harness.report.run_report import ReportError
from harness.report.words import short

FOLDER = ".baselines"
FIGURES = "figures.json"  # name of the file in a gate's folder
RECOVERY_OFFSET_S = 0.1
WASTE_OFFSET_SHARE = 0.01  # share of the allocated GPU time
SOURCE_MAX = 300  # characters
READ_MAX = 5000  # most runs read, the newest first
ALLOCATED_MAX = 3.0  # factor of the new runs' GPU time; beyond it the constant would hide waste
JUDGED = (Verdict.PASS, Verdict.FAIL)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_COMMIT = re.compile(r"[0-9a-f]{4,64}(-dirty)?\Z")


def known(reports: pathlib.Path) -> list[str]:
    return sorted(path.stem for path in (reports / FOLDER).glob("*.json") if _NAME.match(path.stem))


def keep(name: str, figures: Figures, reports: pathlib.Path) -> pathlib.Path:
    """Stores measurements of runs as the baseline `name`, and replaces a stored baseline that has this name. Raises
    `UsageError` if the name is not allowed, or if none of the runs has the verdict pass or fail."""
    if not _NAME.match(name):
        raise UsageError(f"{name!r}: a baseline's name has letters, digits, dots and dashes, at most 64")
    if not any(run.verdict in JUDGED for each in figures.scenarios for run in each.runs):
        raise UsageError(f"{figures.source}: none of its runs passed or failed; a baseline needs at least one that did")
    folder = reports / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    return write_files({f"{name}.json": figures.to_text()}, folder)[f"{name}.json"]


def find(name: str, reports: pathlib.Path, wanted: Sequence[Identity] = ()) -> Figures:
    """Returns stored measurements. `name` is a path, a baseline's name, the start of a gate's id, `last` (the newest
    gate), or a commit. Raises `UsageError` if nothing has this name, or if several gates or commits have it."""
    path = pathlib.Path(name)
    if path.suffix == ".json" or path.is_file():
        return read_figures(path)
    if _NAME.match(name) and (reports / FOLDER / f"{name}.json").exists():
        return read_figures(reports / FOLDER / f"{name}.json")
    gates = sorted(reports.glob(f"*/{FIGURES}"), key=lambda path: path.stat().st_mtime)
    if name == "last":
        stored_gate.check_ended(reports, gates[-1].stat().st_mtime if gates else 0.0)
    fitting = gates[-1:] if name == "last" else [path for path in gates if path.parent.name.startswith(name)]
    if len(fitting) > 1:
        raise UsageError(f"{name!r} fits {len(fitting)} gates; write more letters")
    if fitting:
        return by_logs(read_figures(fitting[0]), reports)
    if _COMMIT.match(name) and (found := of_commit(name, reports, wanted)).scenarios:
        return found
    if name == "last":
        raise UsageError(f"no gate was run yet: none is kept in {reports}; run chaos gate SUITE --repeat 5 first")
    raise UsageError(
        f"no baseline {name!r}: neither a file, a gate nor a commit with stored runs in {reports}; "
        + choice(name, known(reports))
    )


def of_commit(commit: str, reports: pathlib.Path, wanted: Sequence[Identity] = ()) -> Figures:
    """Returns the measurements of the runs on one commit of the code, each judged again from its log.

    The field `source` of the result names runs whose log cannot be judged. If a scenario ran as different jobs or on
    different hardware, only one group of comparable runs counts: the group that fits `wanted`, or the largest group.
    Raises `UsageError` if several commits begin with `commit`."""

    def worth(each: ScenarioFigures) -> tuple[bool, int]:
        return any(not differences(each.identity, identity) for identity in wanted), len(each.runs)

    sets: dict[str, ScenarioFigures] = {}
    found, left_out = _stored(commit, reports)
    for each in gathered(found):
        best = sets.get(each.identity.name)
        if best is None or worth(each) > worth(best):
            sets[each.identity.name] = each
    source = f"commit {commit}" + (f", without {', '.join(left_out)}: not judged" if left_out else "")
    return Figures(source=short(source, SOURCE_MAX), made_at=now(), scenarios=tuple(sets.values()))


def by_logs(figures: Figures, reports: pathlib.Path) -> Figures:
    """Returns `figures` with each run measured again from its log, if `reports` holds the log. The field `source` of
    the result names the runs whose stored measurements differ from the log. Raises `UsageError` if a log belongs to
    another job."""
    other, scenarios = list[str](), list[ScenarioFigures]()
    for each in figures.scenarios:
        runs = [_run_by_log(run, each.identity, reports) for run in each.runs]
        other += [run.run_id for run, stored in zip(runs, each.runs, strict=True) if run != stored]
        scenarios.append(structs.replace(each, runs=tuple(runs)))
    said = f"{figures.source}; by the logs, which say otherwise: {', '.join(other)}" if other else figures.source
    return structs.replace(figures, source=short(said, SOURCE_MAX), scenarios=tuple(scenarios))


def _run_by_log(run: RunFigures, identity: Identity, reports: pathlib.Path) -> RunFigures:
    folder = reports / pathlib.PurePath(run.run_id).name
    if not (folder / "events").is_dir():
        return run
    try:
        _, report, plan = by_log(folder)
        job, found = identity_of(plan, report.environment), figures_of(report)
    except (ReportError, NotARun, ValueError):
        return RunFigures(run_id=run.run_id, verdict=Verdict.INCONCLUSIVE)
    if why := differences(job, identity):
        raise UsageError(f"{folder} is another job by its log: {'; '.join(why)}")
    return found


def _stored(commit: str, reports: pathlib.Path) -> tuple[list[tuple[Identity, RunFigures]], list[str]]:
    # Uncommitted changes make another stack: only a commit written in full, with `-dirty`, includes them.
    judged, silent = stored_runs.by_logs(Store(reports), Wanted(commit=commit), READ_MAX)
    judged = [each for each in judged if each.run.commit == commit or not each.run.commit.endswith("-dirty")]
    if len(commits := sorted({each.run.commit for each in judged})) > 1:
        raise UsageError(f"{commit!r} fits {len(commits)} commits; write more letters: {', '.join(commits)}")
    told, left_out = list[tuple[Identity, RunFigures]](), [run.run_id for run in silent]
    for run, report, plan in judged:
        try:
            told.append((identity_of(plan, report.environment), figures_of(report)))
        except ValueError:
            left_out.append(run.run_id)
    return told, left_out


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def differences(before: Identity, wanted: Identity) -> list[str]:
    """Returns a text for each property, such as seed or GPU, that differs between the runs `before` and the runs
    `wanted`."""
    found = []
    for name in ("backend", "seed", "nodes", "ranks_per_node"):
        then, here = (getattr(each, name) for each in (before, wanted))
        found += [f"{name.replace('_', ' ')} {then}, here {here}"] if then != here else []
    if wanted.steps is not None and before.steps != wanted.steps:
        found.append(f"steps {before.steps or 'unknown'}, here {wanted.steps}")
    if before.profile != wanted.profile:
        found.append(f"profile {before.profile or 'none'}, here {wanted.profile or 'none'}")
    if before.version != wanted.version:
        found.append("another version of the scenario (its workload or its faults were changed)")
    for name in sorted(before.hardware.keys() | wanted.hardware.keys()):
        then, here = (each.hardware.get(name, "unknown") for each in (before, wanted))
        found += [f"{name} {then}, here {here}"] if then != here else []
    return found


def check(name: str, figures: Figures, wanted: Sequence[Identity]) -> None:
    """Raises `UsageError` if the baseline's runs and the new runs (`wanted`) differ in job or machine. A scenario
    without runs in the baseline raises no error."""
    problems = []
    for identity in wanted:
        others = (each for each in figures.scenarios if each.identity.scenario == identity.scenario)
        found = figures.of(identity) or next(others, None)
        if found is not None and (why := differences(found.identity, identity)):
            problems.append(f"baseline {name}: {identity.name} cannot be compared: {'; '.join(why)}")
    if problems:
        advice = "Make a baseline for this: run the gate without --against, then `chaos baseline set NAME`."
        raise UsageError("\n".join([*problems, advice]))


def regressions(name: str, before: Figures, new: Sequence[ScenarioFigures], without: Sequence[str] = ()) -> Regressions:
    """Compares the measurements of a gate's runs (`new`) with a baseline (`before`). `without` names scenarios whose
    runs measured nothing. `new` must not hold scenarios that the suite expects to fail (known failures)."""
    questions: list[Question] = []
    successes: list[Success] = []
    missing, silent = list(without), []
    newest = {each.identity.name: each.runs[-1].run_id for each in before.scenarios if each.runs}
    for each in new:
        old = before.of(each.identity)
        if old is None:
            missing.append(each.identity.name)
            continue
        why = differences(old.identity, each.identity)  # the number of steps may be known only afterwards
        another = f"the baseline has another job: {'; '.join(why)}" if why else ""
        asked, untold = _questions(old, each, another)
        questions += asked
        silent += untold
        sides = [[run.verdict for run in side.runs] for side in (old, each)]
        failed, failed_now = (side.count(Verdict.FAIL) for side in sides)
        runs, runs_now = (sum(verdict in JUDGED for verdict in side) for side in sides)
        successes.append(Success(each.identity.name, failed, runs, failed_now, runs_now))
    return Regressions(name, compare(questions, successes), missing, silent, newest)


def _questions(old: ScenarioFigures, new: ScenarioFigures, another: str) -> tuple[list[Question], list[str]]:
    before, now_ = ([run for run in each.runs if run.verdict in JUDGED] for each in (old, new))
    shared = {run.run_id for run in before} & {run.run_id for run in now_}
    times = [[run.step_seconds for run in side if run.step_seconds] for side in (before, now_)]
    # Ratio of the new runs' step time to the old one; 1 if unknown.
    pace = statistics.median(times[1]) / statistics.median(times[0]) if all(times) else 1.0
    asked, untold = [], []
    for figure in COMPARED:
        sides = [[getattr(run, figure) for run in side] for side in (before, now_)]
        if not another and not any(value for side in sides for value in side):
            untold.append(f"{new.identity.name}: {title(figure)} (neither side has a value)")
            continue
        doubt = another or _doubt(sides) or _too_generous(figure, before, now_)
        doubt = doubt or ("the baseline holds the same runs" if shared else "")
        told = [tuple(value for value in side if value is not None) for side in sides]
        offset = RECOVERY_OFFSET_S if figure == "recovery_time" else WASTE_OFFSET_SHARE * _allocated(before)
        asked.append(Question(new.identity.name, figure, told[0], told[1], offset, doubt, pace))
    return asked, untold


def _doubt(sides: Sequence[Sequence[float | None]]) -> str:
    for words, side in zip(("baseline", "new"), sides, strict=True):
        if untold := sum(value is None for value in side):
            return f"{untold} of {len(side)} {words} runs do not report it"
        if bad := [value for value in side if value is not None and not 0 <= value < math.inf]:
            return f"{bad[0]:g} of a {words} run is impossible; a figure is 0 or more"
        if side and not any(side):
            return f"it is 0 in all {words} runs, but not in the others; check that it is still reported"
    return ""


def _allocated(runs: Sequence[RunFigures]) -> float:
    told = [run.allocated_gpu_seconds for run in runs if run.allocated_gpu_seconds]
    return statistics.median(told) if told else 0.0


def _too_generous(figure: str, before: Sequence[RunFigures], now_: Sequence[RunFigures]) -> str:
    """Returns why a comparison is refused if the baseline used much more GPU time than the new runs. A comparison adds
    1 % of the baseline's GPU time to each value, which could then hide differences."""
    given, here = _allocated(before), _allocated(now_)
    if figure == "recovery_time" or given <= ALLOCATED_MAX * here:
        return ""
    told = f"{here:g} GPU-s" if here else "none"
    return (
        f"the baseline's runs had {given:g} GPU-s each, those here {told}; at most {ALLOCATED_MAX:g} × can be compared"
    )
