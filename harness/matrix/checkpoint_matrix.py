"""Runs a job until it has checkpoints, then restarts the job once for each damage, on a damaged copy of the
checkpoints.

The run that makes the checkpoints is in `REPORTS/<run-id>/base`, and each restart in `REPORTS/<run-id>/cells/<name>`.
Each restart on a damaged copy is compared with a restart on an undamaged copy. A copy of the checkpoints is removed as
soon as its restart ends."""

from __future__ import annotations

import pathlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from harness.backends.contract import Backend
from harness.campaign import restarts
from harness.errors import CannotRunError, ChaosError, FaultError
from harness.evidence.restarts import Losses, Restart, apart, read_restart
from harness.faults.shared import checkpoint_damage
from harness.log import untrusted_files
from harness.matrix import restart_log
from harness.matrix.cells import Cell, cells
from harness.matrix.restart_log import Answer, Came
from harness.plan.run_plan import Plan
from harness.run import drill, second_restart
from harness.run.job import Outcome, execute
from harness.run.observers import Status
from harness.run.stop import StopRequest
from harness.timeline import timeline
from harness.trainers.checkpoints.contract import Listing, list_checkpoints
from harness.trainers.checkpoints.shared.checkpoint_folder import CheckpointFolder

LOOK_S = 0.3
TOLERANCE = 10  # factor of the difference of an undamaged restart, if that is not zero


@dataclass(frozen=True)
class DamageRow:
    cell: Cell
    answer: Answer
    seconds: float


@dataclass(frozen=True)
class Matrix:
    """The results of restarts on damaged checkpoints. `newest` is the step that a restart on undamaged checkpoints
    restores."""

    run_id: str
    layout: str
    trainer: str
    newest: int
    deterministic: bool
    rows: tuple[DamageRow, ...]
    interrupted: bool = False
    planned: int = 0  # number of damages to be tried


def run_matrix(
    plan: Plan, reports: pathlib.Path, backend: Backend, stop: StopRequest, tell: Callable[[str], None]
) -> Matrix:
    """Runs a job until it has made checkpoints, then restarts the job once for each damage to a copy of the
    checkpoints. Raises `ChaosError` if the job finishes no checkpoint, or does not restore undamaged checkpoints."""
    if plan.backend not in drill.REACHED or plan.workload.checkpoint.store != "directory":
        raise CannotRunError(f"a matrix needs checkpoints in the run's folder; use one of: {', '.join(drill.REACHED)}")
    with stop.attended():
        return _Matrix(plan, reports.resolve() / plan.run_id, backend, stop, tell).run()


class _Matrix:
    def __init__(
        self, plan: Plan, folder: pathlib.Path, backend: Backend, stop: StopRequest, tell: Callable[[str], None]
    ):
        self.folder, self.backend, self.stop, self.tell = folder, backend, stop, tell
        self.base_plan = plan.without_faults(f"{plan.run_id}-base")
        self.plan = self.base_plan.model_copy(update={"abort": restarts.LIMITS})
        self.base = folder / "base"

    def run(self) -> Matrix:
        restarts.own_folder(self.folder)
        restarts.own_folder(self.folder / "cells")
        self._make_checkpoints()
        self._leave_steps_to_do()
        place, listing = self._look(self.base)
        if not listing.finished:
            raise ChaosError(f"the trainer left no finished checkpoint in {place.folder}/ ({len(place.files)} files)")
        usual = read_restart(self.base).losses
        healthy, outcome = self._restart("undamaged")
        newest, tolerance = self._newest(healthy, outcome, usual)
        rows = []
        todo = list(cells(place, listing))
        older = len(listing.finished) > 1
        self.tell(f"{len(todo)} damages, each followed by a restart")
        for number, cell in enumerate(todo, 1):
            row = self._row(f"{number:03d}", cell, newest, {**usual, **healthy.losses}, tolerance, older)
            if self.stop.asked:  # this restart was cut short, so its result is not used
                break
            rows.append(row)
            self.tell(f"{cell.kind} of {cell.part}, {cell.file}: {row.answer.came}")
        for name in drill.saved_folders(self.plan.launch()):
            untrusted_files.remove_tree(self.base, name)
        in_words = self.plan.workload.trainer.in_words()
        told = (self.folder.name, listing.layout, in_words, newest, not tolerance, tuple(rows))
        return Matrix(*told, interrupted=self.stop.asked, planned=len(todo))

    def _look(self, run_dir: pathlib.Path) -> tuple[CheckpointFolder, Listing]:
        saved = self.plan.workload.checkpoint
        place = CheckpointFolder.look(run_dir, saved.folder)
        return place, list_checkpoints(place, saved.layout)

    def _make_checkpoints(self) -> None:
        self.tell("a run without faults makes checkpoints")
        until = restarts.Until(self.stop, self._two_are_finished())
        outcome = execute(self.base_plan, self.base, self.backend, until, until.end)
        if outcome.outcome not in ("completed", "interrupted"):
            raise ChaosError(f"the run without faults did not make checkpoints: {outcome.reason}")

    def _leave_steps_to_do(self) -> None:
        """Removes the save of the job's last step, because a restart from this save would have no step left to do."""
        _, listing = self._look(self.base)
        newest, reached = next(iter(listing.finished), None), timeline.load(self.base).reached_step
        if newest is None or newest.step is None or newest.step < reached:
            return
        try:
            second_restart.set_back(self.base, self.plan.workload.checkpoint)
        except (second_restart.NothingToShow, drill.CannotDrill) as why:
            raise ChaosError(
                f"the newest save is of step {reached}, the last one, and cannot be left out: {why}"
            ) from why

    def _two_are_finished(self) -> Callable[[Status], bool]:
        looked, since = 0.0, None

        def enough(status: Status) -> bool:
            nonlocal looked, since
            if time.monotonic() - looked < LOOK_S:
                return False
            _, listing = self._look(self.base)
            looked = time.monotonic()
            if since is None and len(listing.finished) >= 2:
                since = status.step
            quiet = all(each.whole for each in listing.checkpoints)
            return since is not None and quiet and status.step >= since + restarts.FOLLOWED_STEPS

        return enough

    def _newest(self, healthy: Restart, outcome: Outcome, usual: Losses) -> tuple[int, float]:
        if not healthy.step or healthy.told:
            raise ChaosError(f"an undamaged checkpoint was not restored: {outcome.reason or 'it started from scratch'}")
        return healthy.step, TOLERANCE * (apart(healthy.losses, usual) or 0.0)

    def _row(self, name: str, cell: Cell, newest: int, usual: Losses, tolerance: float, older: bool) -> DamageRow:
        begin, damaged = time.monotonic(), list[int]()
        try:
            found, outcome = self._restart(name, lambda folder: damaged.append(self._strike(folder, cell)))
        except FaultError as error:
            return DamageRow(cell, Answer(Came.UNKNOWN, detail=str(error), judged=False), time.monotonic() - begin)
        ended = outcome.reason if outcome.outcome == "failed" else ""
        given = (tolerance, sum(damaged), ended, older or cell.part == "pointer")
        answer = restart_log.answer(found, newest, usual, *given)
        if answer.came in (Came.SILENT, Came.WRONG) and found.step is not None and found.step < newest:
            # Some jobs do other steps after any restart from that save, with or without damage.
            if self._older is None or self._older.step != found.step:
                detail = f"{answer.detail}; no undamaged restart from step {found.step} shows what is usual"
                answer = replace(answer, came=Came.UNKNOWN, detail=detail)
            else:
                answer = restart_log.answer(found, newest, {**usual, **self._older.losses}, *given)
        return DamageRow(cell, answer, time.monotonic() - begin)

    @cached_property
    def _older(self) -> Restart | None:
        self.tell("a restart without the newest save shows its usual losses")
        try:
            return self._restart("older", self._leave_out_newest)[0]
        except (FaultError, second_restart.NothingToShow, drill.CannotDrill):
            return None

    def _leave_out_newest(self, folder: pathlib.Path) -> None:
        _, listing = self._look(folder)
        newest = listing.finished[0]
        if newest.step is not None or listing.pointer:
            second_restart.set_back(folder, self.plan.workload.checkpoint)
            return
        for path in (newest.path, *newest.files):  # its name tells no step; the restart will
            untrusted_files.remove_tree(folder, path)

    def _restart(self, name: str, change: Callable[[pathlib.Path], None] | None = None) -> tuple[Restart, Outcome]:
        def prepare(folder: pathlib.Path) -> None:
            drill.copy_saved(self.plan.launch(), self.base, folder)
            if change is not None:
                change(folder)

        plan = self.plan.again(f"{self.folder.name}-{name}")
        return restarts.restart(plan, self.folder / "cells" / name, self.backend, self.stop, prepare)

    def _strike(self, folder: pathlib.Path, cell: Cell) -> int:
        """Damages a copy of the checkpoints, and returns how many bytes of tensors the damage changed."""
        place, listing = self._look(folder)
        aside = folder / "kept"
        aside.mkdir()
        order = replace(cell.order, dice=random.Random(f"{self.plan.seed}/{cell}"))
        damage = checkpoint_damage.prepare(place, listing, order, aside)
        damage.apply()
        measured, unit = damage.measure()
        if measured != damage.expected or not measured:
            raise FaultError(f"{damage.path}: {measured} {unit}, {damage.expected} expected")
        return damage.tensor_bytes
