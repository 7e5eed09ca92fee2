"""The terminal as an observer: one line that moves on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.status import Status as Spinner
from rich.text import Text

from harness.campaign.campaign_observers import Stage
from harness.cli.output import safe
from harness.cli.terminal import print_report
from harness.judge.score import Scorecard
from harness.report import model
from harness.report.view import in_words
from harness.report.words import plain
from harness.run.observers import Heard, Status
from harness.units import counted

REFRESH_S = 0.1
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


class Display:
    """Prints what a `CampaignObserver` hears. What a trainer said is shown as plain text."""

    def __init__(self, console: Console):
        self.console = console
        self._spinner: Spinner | None = None
        self._shown_at = 0.0
        self._moments: dict[str, str] = {}  # of the faults, as printed last

    def __enter__(self) -> Display:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_spinner()

    def stage(self, stage: Stage) -> None:
        why = " once more: the stored one has another pace" if stage.again else ""
        self._say(f"{stage.in_words}{why}" + ", which must fail" * (stage.kind == "blindness check"))
        self._moments = {}
        if self.console.is_terminal:
            self._spinner = self.console.status("starting")
            self._spinner.start()

    def stage_ended(self, stage: Stage, how: str) -> None:
        self._stop_spinner()
        if stage.kind == "fault-free run":
            self._say(f"  {how}")

    def status(self, status: Status) -> None:
        moments = {fault.id: fault.moment for fault in status.faults}
        changed = {fault: moment for fault, moment in moments.items() if self._moments.get(fault) != moment}
        if news := [MOMENTS[moment].format(fault) for fault, moment in changed.items()]:
            self._moments = moments
            self._say(f"  {status.elapsed_s:6.1f} s  step {status.step}: {', '.join(news)}")
        now = time.monotonic()
        if self._spinner and now - self._shown_at > REFRESH_S:
            self._shown_at = now
            loss = f" · loss {status.loss:.3f}" if status.loss is not None else ""
            steps = f" of {status.steps}" if status.steps is not None else ""
            phase = PHASES.get(status.phase) or safe(status.phase)
            self._spinner.update(f"{phase} · step {status.step}{steps} done{loss} · {status.elapsed_s:.0f} s so far")

    def new_events(self, events: Heard) -> None:
        return None

    def left_behind(self, reason: str) -> None:
        self._say(f"Not everything could be undone: {reason}")
        self._say("The harness goes on trying for some minutes; call `chaos heal` to be sure.")

    def note(self, text: str) -> None:
        self._say(text)

    def judged(self, card: Scorecard, files: Mapping[str, pathlib.Path]) -> None:
        print_report(model.from_scorecard(card), files.get("report.html"), self.console)

    def suite(self, name: str, title: str, scenarios: int, seed: int) -> None:
        self.console.print(f"[bold]{safe(name)}[/] · {safe(title)} · {counted(scenarios, 'scenario')} · seed {seed}")

    def blindness_check(self, card: Scorecard) -> None:
        self._say(f"  {card.verdict}: {in_words(card.reasons[0])}")

    def scenario(self, name: str, title: str) -> None:
        self.console.print(f"[bold]{safe(name)}[/] · {safe(title)}")

    def not_run(self, reason: str) -> None:
        self._say(f"  inconclusive: {reason}")

    def _say(self, line: str) -> None:
        self.console.print(Text(plain(line)), soft_wrap=True)

    def _stop_spinner(self) -> None:
        if self._spinner:
            self._spinner.stop()
            self._spinner = None
