"""Defines the commands `chaos show`, `chaos score` and `chaos report`."""

import contextlib
import pathlib
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from harness.campaign.run_store import Store, part_of_a_day, usable
from harness.campaign.wings import StoredKind, sections_of, stored_kind_of
from harness.cli.output import SIGNS, note, out, print_json, say
from harness.cli.shared_options import REPORTS, JsonOption, ReportsOption, RunArg
from harness.cli.terminal import print_report, print_result
from harness.errors import UsageError
from harness.evidence.logs import load_evidence
from harness.judge.facts import repeated_steps
from harness.judge.score import judge
from harness.judge.verdict import EXIT_CODES, Verdict, merge
from harness.judge.weighing import answer
from harness.log import untrusted_files
from harness.log.journal import is_running
from harness.report import markdown, run_report, write_reports
from harness.report.commands import REHEARSALS
from harness.units import counted


def show(
    run: RunArg,
    json: JsonOption = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="For a pull request: Markdown.")] = False,
    reports: ReportsOption = REPORTS,
) -> None:
    """Show a stored run from its report.json, without judging it again.

    The exit code is 0 for every verdict.

    Example: chaos show last
    """
    passed_over: list[str] = []
    folder, kind = usable(run, reports, _judged, passed_over)
    for why in passed_over:
        note(f"passed over: {why}")
    if kind:
        if json:
            print_json(kind.values(folder))
        elif as_markdown:
            out.file.write(run_report.read_regular(folder / "report.md").decode(errors="replace"))
        else:
            print_result(kind.read(folder), folder)
        return
    report = run_report.read(folder / "report.json")
    if json:
        print_json(report.to_json())
    elif as_markdown:
        out.file.write(markdown.render(report, sections_of(report)))
    else:
        page = folder / "report.html"
        print_report(report, page if page.exists() else None, out)


def _judged(folder: pathlib.Path) -> StoredKind | None:
    kind = stored_kind_of(folder)
    judged = (folder / (kind.report if kind else "report.json")).exists()
    if judged or (kind and is_running(folder)):  # such a result shows its state while it is at work
        return kind
    if not is_running(folder):
        raise UsageError(f"{folder.name} was not judged yet; judge it with: chaos score {folder}")
    newest = next((run for run in Store(folder.parent).runs() if run.verdict is not None), None)
    other = f"; the newest that was judged: chaos show {folder.parent / newest.run_id}" if newest else ""
    raise UsageError(f"{folder} is at work, and is judged at its end{other}")


def score(
    run: Annotated[
        list[str] | None,
        typer.Argument(help="A run's folder, its id or the beginning of it, or 'last'. With --log: further logs."),
    ] = None,
    rehearsal: Annotated[str | None, typer.Option(help="Judge this rehearsal by its part of the log alone.")] = None,
    log: Annotated[
        list[pathlib.Path] | None,
        typer.Option(help="Instead of a run: a log of any job, the oldest first; several are allowed."),
    ] = None,
    read: Annotated[str, typer.Option(help="What wrote these logs: a reader, like megatron, or its YAML.")] = "",
    json: Annotated[bool, typer.Option("--json", help="With --log, for programs: JSON on standard output.")] = False,
    reports: ReportsOption = REPORTS,
) -> None:
    """Judge a stored run again, by its event log; or any job's restarts, by its own logs.

    Exits with the codes of `chaos run`. With --rehearsal, writes the report to `rehearsal-NAME` in the run's folder.

    With --log, steps that were done again after a restart must have the same values as the first time: samples,
    learning rate, losses and gradient norms. The option --log does not find errors that occur both times, or errors in
    steps that were done only once.

    Example: chaos score --log train-1.log train-2.log --read megatron
    """
    names = run or []
    if log or read:
        if not log or not read or (names and len(log) > 1):
            raise UsageError("write --log A.log B.log … --read READER, the oldest log first, without a run")
        raise typer.Exit(_score_logs([*log, *map(pathlib.Path, names)], read, json))
    if len(names) != 1:
        raise UsageError("name one run, or logs with --log and --read")
    if json:
        raise UsageError(f"--json is for --log; for a run: chaos show {names[0]} --json")
    raise typer.Exit(EXIT_CODES[_judge(Store(reports).find(names[0]), rehearsal)])


def _score_logs(logs: Sequence[pathlib.Path], read: str, json: bool) -> int:
    import numpy as np  # which other commands do without

    from harness.campaign import own_log

    own = own_log.executed(logs, own_log.reader_of(read))
    told = own.told
    if not len(told.step):
        raise UsageError(f"--read {read}: no step was found in {', '.join(map(str, logs))}")
    found = repeated_steps.done_again(told)
    answers = [(answer(each), each.words) for each in repeated_steps.compared(found)]
    steps, restarts = len(np.unique(told.step)), int(told.life.max())
    silent = sorted({*range(1, restarts + 1)} - {each.life for each in found})
    verdicts = [*(each for each, _ in answers), *(Verdict.INCONCLUSIVE for _ in own.doubts)]
    verdict, untold = merge(verdicts or [Verdict.INCONCLUSIVE]), own.untold
    if json:
        values: dict[str, Any] = {"schema": 1, "verdict": verdict.value, "steps": steps, "restarts": restarts}
        values["judged"] = [{"verdict": each.value, "result": text} for each, text in answers]
        print_json(values | {"restarts_not_judged": silent, "untold": untold, "doubts": own.doubts})
        return EXIT_CODES[verdict]
    say(f"{counted(steps, 'step')}, {counted(restarts, 'restart')}")
    severity = [Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.PASS]
    worst = sorted(range(len(answers)), key=lambda place: severity.index(answers[place][0]))[: own_log.SAID_MAX]
    for each, text in (answers[place] for place in sorted(worst)):
        say(f"{SIGNS[each]} {text}")
    if more := len(answers) - len(worst):
        say(f"… and {counted(more, 'restart')} more")
    if silent:
        named = ", ".join(map(str, silent[: own_log.SAID_MAX])) + ", …" * (len(silent) > own_log.SAID_MAX)
        say(f"not judged, as no step was done again after it: restart {named}")
    if untold:
        say(f"not judged, as these logs do not tell it: {', '.join(untold)}")
    for text in own.doubts:
        say(f"{SIGNS[Verdict.INCONCLUSIVE]} {text}")
    known = sum(each is not Verdict.INCONCLUSIVE for each, _ in answers)
    why = f"{known} of {counted(restarts, 'restart')} judged" if restarts else "no restart is in these logs"
    say(f"{SIGNS[verdict]} {verdict.value.upper()}  {why}")
    return EXIT_CODES[verdict]


def report(run: RunArg, reports: ReportsOption = REPORTS) -> None:
    """Write a stored run's report files again. Exits 0 whatever the verdict."""
    _judge(Store(reports).find(run), must_write=True)


def _judge(folder: pathlib.Path, rehearsal: str | None = None, must_write: bool = False) -> Verdict:
    folder, part = part_of_a_day(folder)
    kind = stored_kind_of(folder)
    if rehearsal is None and part is None and kind:
        result, write = kind.judge(folder)
        with _written_if_it_can_be(folder, must_write):
            write()
            return print_result(result, folder)
        return print_result(result)
    named = part or (rehearsal if kind else None)  # a rehearsal of a game day is no run of the day's whole job
    card = judge(load_evidence(folder, part or rehearsal), named or folder.resolve().name)
    page = None
    with _written_if_it_can_be(folder, must_write):
        target = folder / REHEARSALS / part if part else folder
        if rehearsal is not None and part is None:
            name = f"rehearsal-{urllib.parse.quote(rehearsal, safe=' ')}"  # whatever characters its name has
            untrusted_files.make_folder(folder, name)
            target = folder / name
        page = write_reports(card, target, sections_of)["report.html"]
    print_report(run_report.from_scorecard(card), page, out)
    return card.verdict


@contextlib.contextmanager
def _written_if_it_can_be(folder: pathlib.Path, must: bool) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if must:
            raise
        note(f"note: the report cannot be written in {folder}: {error.strerror or error}")
