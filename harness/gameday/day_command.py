"""Defines the commands of a game day: `chaos gameday PLAN.yaml`, and `resume`, `note` and `stop`."""

from __future__ import annotations

import contextlib
import http.client
import json
import pathlib
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from harness.backends.contract import Backend, load_backend
from harness.campaign.campaign_observers import CampaignObserver, Stage, Together
from harness.campaign.experiment import new_run_id
from harness.cli.display import Display
from harness.cli.exports import Chosen, offering, watched
from harness.cli.output import out, safe, say
from harness.cli.shared_options import (
    REPORTS,
    SCENARIOS,
    BackendOption,
    GpuHoursOption,
    LabelOption,
    ReportsOption,
    RunArg,
    ScenariosOption,
    SeedOption,
    cap_of,
    labels_of,
)
from harness.cli.terminal import print_result
from harness.errors import INTERRUPTED, UsageError
from harness.extras import needed
from harness.gameday import day_view
from harness.gameday.attach.attach_command import run_attached_day
from harness.gameday.books import Booked
from harness.gameday.day import Ended, find_day, resume_day, run_day, twin_line
from harness.gameday.day_file import find_gameday, load_gameday
from harness.gameday.day_plan import DayPlan, plan_day, schedule, steps_needed
from harness.gameday.day_view import DayView, NewsView
from harness.gameday.requests import TEXT_MAX
from harness.gameday.starts_and_stops import Director
from harness.gameday.wing import WING
from harness.judge.verdict import EXIT_CODES
from harness.plan.capabilities import check_capabilities
from harness.report.words import one_line
from harness.run.injection import LiveJob
from harness.run.observers import Status
from harness.run.stop import stop
from harness.units import counted

PAGES = ".gamedays"  # folder beside the runs, for this user alone, with address and tokens of each page
LINGER_S = 3.0  # seconds after the day, so that every browser gets its last state
READ_S = 600.0  # seconds for which the page stays with the report, if somebody sits at the terminal
NOTE_S = 10.0


@offering(lambda export: export.live is not None)
def run(
    chosen: Chosen,
    plan: Annotated[str, typer.Argument(help="A name in scenarios/gamedays/, or a path to a YAML file.")],
    backend: BackendOption = "local",
    seed: SeedOption = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the schedule with times; start nothing.")] = False,
    step_time: Annotated[
        float, typer.Option(min=0, help="With --dry-run: seconds that a step takes, to turn steps into times.")
    ] = 0.0,
    page: Annotated[bool, typer.Option("--page/--no-page", help="Serve the live page.")] = True,
    address: Annotated[
        str, typer.Option(help="Where the page is served; any but this host's own needs TLS.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page; 0 takes any free one.")] = 0,
    tls_cert: Annotated[pathlib.Path | None, typer.Option(help="Certificate of the page, PEM.")] = None,
    tls_key: Annotated[pathlib.Path | None, typer.Option(help="Its key, PEM.")] = None,
    label: LabelOption = None,
    max_gpu_hours: GpuHoursOption = None,
    attach: Annotated[
        str,
        typer.Option(
            metavar="docker:KEY=VALUE|slurm:JOBID|kubernetes:SELECTOR",
            help="Strike a job that runs already and whose owner allows it; PLAN then has strikes. No page is served.",
        ),
    ] = "",
    reports: ReportsOption = REPORTS,
    scenarios: ScenariosOption = SCENARIOS,
) -> None:
    """Run a game day: a schedule of scenarios on one job that keeps running, with a live page.

    Exits 0 for pass, 1 for fail, 3 for inconclusive or invalid, and 4 if this machine cannot run the game day.

    Example: chaos gameday pre-launch --dry-run

    Example: chaos gameday --attach docker:job=llama my-strikes.yaml
    """
    if attach:
        raise typer.Exit(run_attached_day(attach, plan, seed, dry_run, reports, scenarios))
    engine = load_backend(backend)
    path = find_gameday(plan, scenarios)
    run_id = new_run_id(load_gameday(path)[0].name)  # the name in the file counts, whatever the file is called
    day = plan_day(path, seed, backend, run_id, scenarios).labelled(labels_of(label))
    stop.cap = cap_of(max_gpu_hours)
    out.print(f"[bold]{safe(day.name)}[/] · {safe(day.title)} · backend {safe(backend)} · seed {seed}", soft_wrap=True)
    _say_what_losses_will_not_show(day)
    if dry_run:
        _rehearse_dry(day, path, step_time, engine)
        return
    paused = next((number for number, scene in enumerate(day.scenes, 1) if scene.kind == "pause"), None)
    if paused and not page:
        raise UsageError(
            f"{path}: entry {paused} is a pause, which only a press on the page ends: run without --no-page"
        )
    capability = engine.probe()
    for act in day.acts:
        check_capabilities(act.plan, capability)
    place = (address, port, tls_cert, tls_key) if page else None
    budget = day.budget.wasted_percent
    with Display(out) as display, watched(display, chosen, None if budget is None else budget / 100) as observer:
        director = Director(day)
        with _page(day, director, reports.resolve(), place) as shown:
            ended = run_day(day, reports.resolve(), engine, director, Together(observer, shown), stop)
            shown.day_judged(ended)
            code = _tell(ended)
    raise typer.Exit(code)


def _say_what_losses_will_not_show(day: DayPlan) -> None:
    first, later = day.losses_unproven()
    if later:
        say(
            f"{first} may change what the job computes. Where these find other losses than the fault-free run's, they"
            f" are inconclusive: {', '.join(later)}. Rehearse {first} last, or on a day of its own."
        )
    expecting = [act.name for act in day.acts if "loss_continuity" in act.plan.expect]
    if expecting and not day.fault_free:
        say(
            "fault_free is false, so there is no run to compare losses with. These hold steps that are done again"
            f" against the first time, which shows less: {', '.join(expecting)}."
        )


def _rehearse_dry(day: DayPlan, path: pathlib.Path, step_s: float, engine: Backend) -> None:
    for line in schedule(day, step_s or None):
        say(line)
    say("Times are the earliest ones. Nothing was launched.")
    steps, needed = day.job.workload.steps, steps_needed(day, step_s)
    if steps is not None and steps < needed:
        raise UsageError(
            f"{path}: workload.steps: the job ends after {counted(steps, 'step')}, before its schedule is over; "
            f"allowed: at least {needed}, and more for pauses, rests and recoveries"
        )
    if steps is None:
        say(
            "Not checked: whether the job outlasts its schedule, as only its own command says how many steps it does."
            f" Write them as workload: {{steps: …}} (at least {needed}), and {{steps}} in its command in their place."
        )
    elif not step_s:
        say(f"Not checked: whether {steps} steps outlast these times; give --step-time, in seconds.")
    capability = engine.probe()
    for act in day.acts:
        check_capabilities(act.plan, capability)
    say(f"Backend {day.job.backend} can do every fault of it here.")


Where = tuple[str, int, pathlib.Path | None, pathlib.Path | None]


class Shown(CampaignObserver):
    def __init__(
        self, publish: Callable[[DayView, Sequence[NewsView]], None], url: str = "", director: Director | None = None
    ):
        self._publish, self._url, self._begin_ns = publish, url, time.monotonic_ns()
        self._director = director
        self.stopped = False  # the user stopped the day
        self._newest: tuple[Director, LiveJob] | None = None
        self._pauses_told = set[int]()
        self._told_ns = 0

    def stage(self, stage: Stage) -> None:
        if stage.kind == "run with faults":
            self._begin_ns = time.monotonic_ns()

    def watch(self, director: Director, job: LiveJob, now_ns: int) -> None:
        self._newest = director, job
        if director.state == "paused" and director.scene not in self._pauses_told:
            self._pauses_told.add(director.scene)
            say(f"  pause: {director.day.scenes[director.scene].what}")
            say(f"  waiting for a person to press Continue: {self._url}")
        for news in [each for each in director.feed if each.at_ns > self._told_ns]:
            say(f"  {one_line(news.text)}")
            self._told_ns = news.at_ns
        self._show(lambda view: view)

    def status(self, status: Status) -> None:
        if self._newest is None and self._director is not None:  # the day waits for the fault-free run
            elapsed_s = (time.monotonic_ns() - self._begin_ns) / 1e9
            self._publish(day_view.before(self._director, status, elapsed_s), [])

    def stage_ended(self, stage: Stage, how: str) -> None:
        if stage.kind == "run with faults":
            self._show(day_view.ended)

    def day_judged(self, ended: Ended) -> None:
        result, path = ended.result, ended.folder / "report.html"
        self.stopped = ended.interrupted
        if self._newest is not None:
            self._newest[0].books.close(
                Booked.of(result.booked) if result.booked else None
            )  # the report's figures count from now on
        self._show(lambda view: day_view.ended(view, result.verdict.value, result.reasons[0], str(path)))

    def _show(self, change: Callable[[DayView], DayView]) -> None:
        if self._newest is not None:
            director, job = self._newest
            view = day_view.view_of(director, job, self._begin_ns, time.monotonic_ns())
            self._publish(change(view), day_view.feed_for_participants(director.feed, self._begin_ns))


@contextlib.contextmanager
def _page(day: DayPlan, director: Director, reports: pathlib.Path, where: Where | None) -> Iterator[Shown]:
    if where is None:
        yield Shown(lambda view, feed: None)
        return
    with needed("the live page", "gameday", ", or run it with --no-page"):
        from harness.gameday.page.chart import drawing
        from harness.gameday.page.page_server import PageAddress, serving
    run_dir = reports / day.job.run_id
    chart = drawing(director.course, lambda: twin_line(run_dir))
    with serving(PageAddress(*where), director.desk, run_dir, chart) as served:
        shown = Shown(served.hub.publish, served.url("master"), director)
        director.watcher = shown.watch
        for role, words in (("master", "game master"), ("participant", "participants"), ("observer", "observers")):
            say(f"  page for the {words}: {served.url(role)}")
        say("  to stop: a participant or the game master presses Stop, which undoes all faults, and the job goes on;")
        say("  Ctrl-C here undoes them as well, and ends the job")
        say(f"  alerts: POST {served.address}/alerts with Authorization: Bearer {served.access.tokens['alerts']}")
        found = {
            "address": served.address,
            "token": served.access.tokens["participant"],
            "certificate": str(where[2] or ""),
        }
        with _known(reports, day.job.run_id, found):
            yield shown
        somebody = sys.stdin.isatty() and sys.stdout.isatty() and not shown.stopped
        if somebody:
            say(f"The page stays until Ctrl-C, at most {READ_S / 60:g} minutes: {served.url('master')}", "dim")
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(READ_S if somebody else LINGER_S)


@contextlib.contextmanager
def _known(reports: pathlib.Path, run_id: str, found: Mapping[str, str]) -> Iterator[None]:
    folder = reports / PAGES
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"{run_id}.json"
    path.touch(mode=0o600)
    path.write_text(json.dumps(found))
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _tell(ended: Ended) -> int:
    verdict = print_result(WING.stored[0].read(ended.folder), ended.folder)
    if ended.interrupted:
        say("Stopped by you, so the job was ended early.")
    return INTERRUPTED if ended.interrupted else EXIT_CODES[verdict]


def resume(
    run: Annotated[str, typer.Argument(help="The day's folder, its id or the beginning of it, or 'last'.")],
    reports: ReportsOption = REPORTS,
) -> None:
    """Undo faults that are still active after a crash of the harness during a game day, and judge the day.

    Example: chaos gameday resume last
    """
    with Display(out) as display:
        ended = resume_day(find_day(run, reports), display)
    (reports / PAGES / f"{ended.folder.name}.json").unlink(missing_ok=True)
    raise typer.Exit(_tell(ended))


def note(
    run: RunArg,
    text: Annotated[str, typer.Argument(help="What you saw or did.")] = "",
    who: Annotated[str, typer.Option(help="Your name.")] = "",
    detected: Annotated[bool, typer.Option("--detected", help="You see that something is wrong.")] = False,
    acknowledged: Annotated[bool, typer.Option("--acknowledged", help="You take it.")] = False,
    mitigated: Annotated[bool, typer.Option("--mitigated", help="It is mitigated.")] = False,
    reports: ReportsOption = REPORTS,
) -> None:
    """Leave a note on a running game day, or report that a problem was detected, acknowledged or mitigated.

    Example: chaos gameday note last "loss is flat since 10:14" --detected
    """
    given = {"detected": detected, "acknowledged": acknowledged, "mitigated": mitigated}
    actions = [name for name, said in given.items() if said]
    if len(actions) > 1:
        raise UsageError(f"--{actions[0]} and --{actions[1]}: give one of them")
    if not actions and not text:
        raise UsageError("a note needs text, or one of: --detected, --acknowledged, --mitigated")
    if len(text) > TEXT_MAX:
        raise UsageError(f"a note has at most {TEXT_MAX} characters")
    refused = _post(_page_of(run, reports), {"action": (actions or ["note"])[0], "text": text, "who": who})
    if refused:
        raise UsageError(refused)
    say("The note is kept.")


def stop_faults(
    run: RunArg,
    who: Annotated[str, typer.Option(help="Your name.")] = "",
    reports: ReportsOption = REPORTS,
) -> None:
    """Stop the faults of a running game day: all faults are undone, no more are injected, and the job continues.

    Example: chaos gameday stop last
    """
    refused = _post(_page_of(run, reports), {"action": "stop", "text": "", "who": who})
    if refused:
        raise UsageError(refused)
    say("All faults are being undone, and no more are injected until the game master lifts it. The job goes on.")


def _page_of(run: str, reports: pathlib.Path) -> dict[str, str]:
    known = {path.stem: path for path in (reports / PAGES).glob("*.json")}
    names = list(known) if run == "last" else [name for name in known if name.startswith(pathlib.Path(run).name)]
    if not names:
        raise UsageError(f"no game day {run!r} is running here, or it has no page")
    newest = max(names, key=lambda name: known[name].stat().st_mtime)
    try:
        found = json.loads(known[newest].read_text())
        return {key: str(found[key]) for key in ("address", "token", "certificate")}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise UsageError(f"{known[newest]}: cannot be read: {error}") from error


def _post(page: Mapping[str, str], body: Mapping[str, str]) -> str:
    headers = {"Authorization": f"Bearer {page['token']}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{page['address']}/notes", json.dumps(body).encode(), headers, method="POST")
    try:
        trusted = ssl.create_default_context(cafile=page["certificate"]) if page["certificate"] else None
        # Without proxies: the token must not leave this machine.
        direct = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusted)
        )
        with direct.open(request, timeout=NOTE_S):
            return ""
    except urllib.error.HTTPError as error:
        with error:
            said = error.read(4096)
        with contextlib.suppress(ValueError, LookupError, TypeError):
            return str(json.loads(said)["refused"])
        return f"HTTP {error.code}"
    except (urllib.error.URLError, OSError, http.client.HTTPException) as error:
        return f"the page at {page['address']} does not answer: {getattr(error, 'reason', error)}"


class PlanFirst(TyperGroup):
    """Makes `chaos gameday PLAN.yaml` short for `chaos gameday run PLAN.yaml`."""

    def parse_args(self, context: Any, args: list[str]) -> list[str]:
        if args and args[0] != "--help" and args[0] not in self.commands:
            args = ["run", *args]
        return list(super().parse_args(context, args))


gameday = typer.Typer(
    cls=PlanFirst,
    add_completion=False,
    no_args_is_help=True,
    help="Run a schedule of scenarios on one job, with a live page.",
)
for command in (run, resume, note):
    gameday.command(command.__name__)(command)
gameday.command("stop")(stop_faults)
