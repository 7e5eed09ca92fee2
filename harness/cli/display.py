"""Shows a run's progress: as one changing line on a terminal, and as a few plain lines elsewhere."""

import contextlib
import pathlib
import time
from collections.abc import Mapping

from rich.console import Console
from rich.status import Status as Spinner
from rich.text import Text

from harness.campaign.campaign_observers import CampaignObserver, Stage
from harness.cli.output import safe
from harness.cli.terminal import print_report
from harness.judge.score import Scorecard
from harness.report import run_report
from harness.report.words import plain
from harness.run.observers import Status

REFRESH_S = 0.1
PLAIN_S = 30.0  # between two lines of progress where nothing can be overwritten
PHASES = {
    "starting": "starting the nodes",
    "startup": "workers are starting",
    "rendezvous": "workers are meeting",
    "restored": "a state was restored",
}
MOMENTS = {
    "acting": "{} begins",
    "injected": "{} is injected",
    "effect": "the effect of {} was measured",
    "healed": "{} is over",  # undone, or nothing to undo
    "recovered": "the job has recovered from {}",
}


class Display(CampaignObserver, contextlib.AbstractContextManager["Display"]):
    """Prints the progress of a scenario's jobs. Terminal markup in a trainer's texts is printed and has no effect."""

    def __init__(self, console: Console):
        self.console = console
        self._spinner: Spinner | None = None
        self._shown_at = 0.0
        self._moments: dict[str, str] = {}  # of the faults, as printed last
        self._first: tuple[float, int] | None = None  # seconds and step at which the first step of a stage was seen
        self._furthest = 0  # step of this stage

    def __exit__(self, *error: object) -> None:
        self._stop_spinner()

    def stage(self, stage: Stage) -> None:
        why = " once more: the first one had another pace" if stage.again else ""
        self._say(f"{stage.in_words}{why}" + ", which must fail" * (stage.kind == "blindness check"))
        self._moments, self._first, self._furthest, self._shown_at = {}, None, 0, time.monotonic()
        if self.console.is_terminal:
            self._spinner = self.console.status("starting")
            self._spinner.start()

    def stage_ended(self, stage: Stage, how: str) -> None:
        self._stop_spinner()
        if stage.kind == "fault-free run":
            self._say(f"  {how}")

    def status(self, status: Status) -> None:
        self._furthest = max(self._furthest, status.step)
        moments = {fault.id: fault.moment for fault in status.faults}
        changed = {fault: moment for fault, moment in moments.items() if self._moments.get(fault) != moment}
        if news := [MOMENTS[moment].format(fault) for fault, moment in changed.items()]:
            self._moments = moments
            self._say(f"  {status.elapsed_s:6.1f} s  {self._step(status)}: {', '.join(news)}")
        if status.step and self._first is None:
            self._first = status.elapsed_s, status.step
        now = time.monotonic()
        if now - self._shown_at < (REFRESH_S if self._spinner else PLAIN_S):
            return
        self._shown_at = now
        planned, over = status.steps, status.steps is not None and (status.step or self._furthest) > status.steps
        steps = f", beyond the {planned} planned" if over else f" of {planned}" if planned is not None else ""
        done = f"{self._step(status)}{steps}{self._left(status)}"
        phase = PHASES.get(status.phase) or safe(status.phase)
        if self._spinner:
            loss = f" · loss {status.loss:.3f}" if status.loss is not None else ""
            self._spinner.update(f"{phase} · {done}{loss} · {status.elapsed_s:.0f} s so far")
        else:
            self._say(f"  {status.elapsed_s:6.1f} s  {done}{f' · {phase}' * (status.phase != 'training')}")

    def _step(self, status: Status) -> str:
        return f"step {status.step}" if status.step or not self._furthest else f"restarting after step {self._furthest}"

    def _left(self, status: Status) -> str:
        if self._first is None or status.steps is None or not self._first[1] < status.step < status.steps:
            return ""
        since, first = self._first
        left = (status.steps - status.step) * (status.elapsed_s - since) / (status.step - first)
        return f", about {left:.0f} s left"

    def starts_again(self, why: str, about_s: float) -> None:
        told = f"{why}, about {about_s:.0f} s"
        if self._spinner:
            self._spinner.update(told)
        else:
            self._say(f"  {told}")

    def left_behind(self, reason: str) -> None:
        self._say(f"Not everything could be undone: {reason}")
        self._say("The harness goes on trying for some minutes; call `chaos heal` to be sure.")

    def note(self, text: str) -> None:
        self._say(text)

    def judged(self, card: Scorecard, files: Mapping[str, pathlib.Path]) -> None:
        print_report(run_report.from_scorecard(card), files.get("report.html"), self.console)

    def begins(self, name: str, about: str) -> None:
        self.console.print(f"[bold]{safe(name)}[/] · {safe(about)}")

    def _say(self, line: str) -> None:
        self.console.print(Text(plain(line)), soft_wrap=True)

    def _stop_spinner(self) -> None:
        if self._spinner:
            self._spinner.stop()
            self._spinner = None
