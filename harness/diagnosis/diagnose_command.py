"""Defines the command `chaos diagnose`, which compares diagnoses of stored runs with the faults that were injected."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer

from harness.backends.contract import load_backend
from harness.campaign.run_store import Store
from harness.cli.output import note, print_figures, print_json, say
from harness.cli.shared_options import REPORTS, BackendOption, JsonOption, ReportsOption, SeedOption
from harness.diagnosis.answer import Kind
from harness.diagnosis.built_in import DIAGNOSERS
from harness.diagnosis.costs import wasted_by_wrong_decisions
from harness.diagnosis.grading import Grade, RunGrade, grade_run
from harness.diagnosis.injected import RunTruth, truth_of_run
from harness.diagnosis.readers.contract import build_reader, read_answers, reader_names
from harness.diagnosis.scores import KindScore, Scores, Share, scores_of
from harness.diagnosis.suite import is_suite, load_runs, made, run_suite
from harness.errors import EventLogError, UsageError
from harness.log import reading
from harness.run.stop import stop
from harness.units import Duration, counted

RUN = "{run}"
TOLD = "told"  # answers of the job itself, on which it acts
CONTROL = "fault-free"  # folder of a run: the same job without a fault
SHOWN_MAX = 20  # innocents, and faults that are not graded
READ = f"Whose answers: {', '.join(DIAGNOSERS)}; of files {', '.join(reader_names())}. [default: baseline; diagnosis]"


def diagnose(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN…",
            help="Runs: folders, ids, the beginnings of these, or 'last'; or one suite file.",
        ),
    ],
    answers: Annotated[
        str | None,
        typer.Option(metavar="FILE", help=f"The answers, a file or folder; {RUN} is the folder of each run."),
    ] = None,
    read: Annotated[str | None, typer.Option(metavar="READER", help=READ)] = None,
    within: Annotated[str, typer.Option(help="A right answer later than this after a fault began is late.")] = "60s",
    json: JsonOption = False,
    seed: SeedOption = 1,
    backend: BackendOption = "local",
    stored: Annotated[bool, typer.Option("--stored", help="Of a suite: run nothing, and grade what is there.")] = False,
    reports: ReportsOption = REPORTS,
) -> None:
    """Grade a diagnoser's answers about runs.

    Checks whether each answer names, in time, the right kind of failure, the right rank or node, and the right
    decision. The truth is in each run's log: the faults that were injected, with their measured effects. Runs without a
    fault are controls, in which an answer must accuse nobody. Without --answers, the fault-free run stored with each
    run is a control, too. Exits 0 whatever the grades.

    A suite file names jobs, and the diagnosers whose answers about these jobs are graded. The seed decides which ranks
    and nodes the faults hit. All runs are kept in reports/. The same command, called again, makes only the missing
    runs.

    Example: chaos diagnose reports/* --answers '{run}/diagnosis.jsonl'
    """
    try:
        within_ns = Duration(within).ns
    except ValueError as error:
        raise UsageError(f"--within {within}: {error}") from None
    if len(runs) == 1 and is_suite(runs[0]):
        if answers or read:
            raise UsageError(f"{runs[0]}: a suite says itself who answers; leave out --answers and --read")
        _of_suite(pathlib.Path(runs[0]), within_ns, json, seed, backend, stored, reports)
        return
    if answers is None and read not in (None, *DIAGNOSERS):
        raise UsageError(f"--read {read}: name its file with --answers, or write one of: {', '.join(DIAGNOSERS)}")
    if answers is not None and RUN not in answers and len(runs) > 1:
        raise UsageError(f"--answers {answers}: with several runs write {RUN}, the folder of each run")
    reader = build_reader(read or "diagnosis") if answers is not None else None
    graded = []
    for truth, folder in _truths(runs, answers is None, reports):
        file = pathlib.Path((answers or "").replace(RUN, str(folder)))
        found = read_answers(file, reader) if reader else DIAGNOSERS[read or "baseline"](truth, seed)
        graded.append(grade_run(truth, found, within_ns))
    if not graded:
        raise UsageError("no run is left to grade")
    scores = scores_of(graded)
    if json:
        print_json(to_json(scores, graded))
    else:
        _print(scores, graded)


def _of_suite(
    path: pathlib.Path, within_ns: int, json: bool, seed: int, backend: str, stored: bool, reports: pathlib.Path
) -> None:
    suite, runs = load_runs(path, seed, backend)
    folder = reports / f"{suite.name}-{seed}"
    if not stored:
        run_suite(runs, folder, load_backend(backend), stop, note)
    there = made(runs, folder)
    if not there:
        raise UsageError(f"{folder}: no run of {path} is there")
    graded, folders = dict[str, list[RunGrade]](), dict[str, list[pathlib.Path]]()
    for run, place in there:
        truth = truth_of_run(run.name, reading.read(place / "events"))
        for name, answers in run.stack.answerers().items():
            graded.setdefault(name, []).append(grade_run(truth, answers(truth, place), within_ns))
            folders.setdefault(name, []).append(place)
    scores = {name: scores_of(each) for name, each in graded.items()}
    if TOLD in scores:
        cost = wasted_by_wrong_decisions(zip(graded[TOLD], folders[TOLD], strict=True))
        scores[TOLD] = replace(scores[TOLD], wasted_gpu_hours=cost)
    if json:
        of_each = {name: to_json(scores[name], graded[name]) for name in graded}
        print_json({"schema": 1, "suite": suite.name, "seed": seed, "planned": len(runs), "answerers": of_each})
        return
    say(f"{suite.title}: {len(there)} of {counted(len(runs), 'run')}, seed {seed}", "bold")
    heads = ("answers", "runs", "faults", "right", "right or coarse", "precision", "decision", "quiet in controls")
    print_figures((*heads, "innocents"), [_in_short(name, each, len(graded[name])) for name, each in scores.items()])
    for name, each in scores.items():
        say(f"\n{name}", "bold")
        _print(each, graded[name])


def _in_short(name: str, scores: Scores, runs: int) -> tuple[str, ...]:
    total = scores.total
    shares = (total.recall, total.found, total.precision, total.decision, scores.controls)
    return (name, str(runs), str(total.grades.total()), *map(str, shares), str(len(scores.innocents)))


def _truths(runs: Sequence[str], controls: bool, reports: pathlib.Path) -> Iterator[tuple[RunTruth, pathlib.Path]]:
    store, seen = Store(reports), set[str]()
    for name in runs:
        try:
            folder = store.find(name)
        except UsageError as error:
            if len(runs) == 1 or not pathlib.Path(name).exists():
                raise
            note(f"passed over: {error}")
            continue
        for place in (folder, folder / CONTROL) if controls else (folder,):
            if place == folder or (place / "events").is_dir():
                try:
                    log = reading.read(place / "events")
                except EventLogError as error:
                    note(f"passed over: {error}")
                    continue
                told = [(each.name, each.header, len(each.events), len(each.steps["end"])) for each in log.writers]
                mark = repr(told)
                if mark not in seen:  # several runs may share a fault-free run
                    seen.add(mark)
                    yield truth_of_run(str(place.relative_to(folder.parent)), log), folder


def _print(scores: Scores, graded: Sequence[RunGrade]) -> None:
    runs, answers = counted(len(graded), "run"), counted(sum(len(run.answers) for run in graded), "answer")
    say(f"{runs}, {scores.controls.tries} of them without a fault; {answers}", "bold")
    heads = ("kind", "faults", *Grade, "recall", "precision", "decision", "median time")
    rows = [(str(kind), score) for kind, score in scores.kinds.items()]
    print_figures(heads, [_row(name, score) for name, score in [*rows, ("all", scores.total)]])
    say("Shares with Wilson's intervals of 95 %; an unsure answer is neither right nor wrong.\n", "dim")
    say("Said (columns) about what happened (rows)", "bold")
    true = [kind for kind in Kind if any(kind is row for row, _ in scores.confusion)]
    said = [kind for kind in Kind if any(kind is column for _, column in scores.confusion)]
    print_figures(("", *said), [(row, *(str(scores.confusion.get((row, each), "·")) for each in said)) for row in true])
    say(f"\nControls in which nothing was accused: {scores.controls}")
    say(f"Benign faults without a wrong answer: {scores.benign}")
    say(f"Innocents accused: {_list([f'{part} in {run}' for run, part in scores.innocents])}")
    say(f"False alarms: {scores.total.answers[False]}")
    say(f"Victims found, {scores.index_0_in_words}", "yellow" if scores.index_0_differs else "")
    say(f"GPU-hours wasted by wrong decisions: {scores.wasted_gpu_hours}")
    say(f"Not graded: {_list([f'{run} {fault}: {why}' for run, fault, why in scores.not_graded])}")


def _list(parts: Sequence[str]) -> str:
    shown = "; ".join(parts[:SHOWN_MAX]) + "; …" * (len(parts) > SHOWN_MAX)
    return f"{len(parts)}{f' ({shown})' if parts else ''}"


def _row(name: str, score: KindScore) -> tuple[str, ...]:
    seconds = score.median_after_s
    shares = map(str, (score.recall, score.precision, score.decision))
    counts = (str(score.grades[grade]) for grade in Grade)
    return name, str(score.grades.total()), *counts, *shares, "–" if seconds is None else f"{seconds:.1f} s"


def to_json(scores: Scores, graded: Sequence[RunGrade]) -> dict[str, Any]:
    return {
        "schema": 1,
        "runs": len(graded),
        "kinds": {str(kind): _values(score) for kind, score in scores.kinds.items()},
        "all": _values(scores.total),
        "controls_not_accused": _share(scores.controls),
        "benign_not_accused": _share(scores.benign),
        "innocents": [{"run": run, "accused": part} for run, part in scores.innocents],
        "confusion": [{"true": true, "said": said, "count": n} for (true, said), n in scores.confusion.items()],
        "at_index_0": _share(scores.first) | {"others": _share(scores.others), "differs": scores.index_0_differs},
        "wasted_gpu_hours": scores.wasted_gpu_hours,
        "not_graded": [{"run": run, "fault": fault, "reason": why} for run, fault, why in scores.not_graded],
        "faults": [
            {"run": run.truth.name, "id": each.injected.id, "fault": each.injected.fault, "kind": each.kind}
            | {"grade": each.grade, "after_ns": each.after_ns, "decision_right": each.decision_right}
            for run in graded
            for each in run.faults
        ],
    }


def _values(score: KindScore) -> dict[str, Any]:
    shares = {name: _share(getattr(score, name)) for name in ("recall", "found", "precision", "decision")}
    return {"grades": dict(score.grades), "median_after_s": score.median_after_s} | shares


def _share(share: Share) -> dict[str, Any]:
    return {"hits": share.hits, "of": share.tries, "interval": share.interval}
