"""Makes the second restart after a run: the job's command starts from the second-newest save, and repeats the later
steps.

A restart during the run shows that the job recovers. Errors in saves after the recovery (a stale or empty state, a lost
data position) show only in a second restart. For the second restart, the newest save is removed from a copy of the
job's saves. The command must restore the second-newest save, repeat the later steps with equal results, and make equal
saves. The log of the second restart is in `RUN/second-restart/`; `harness.judge` compares this log with the run's.
"""

import os
import pathlib
import stat
from dataclasses import dataclass, replace

from harness.errors import FaultError
from harness.log import untrusted_files
from harness.log.numbered_names import pattern
from harness.run.drill import SECOND, Again, CannotDrill, Watch
from harness.run.indexes import Indexes
from harness.trainers.checkpoints.contract import FoundCheckpoint, Listing, Pointer, list_checkpoints
from harness.trainers.checkpoints.shared import names
from harness.trainers.checkpoints.shared.checkpoint_folder import CheckpointFolder
from harness.trainers.contract import Checkpoint
from harness.units import counted

STEP_TIMES = 5  # times as long as in the run, outages and all, a step may take
SERIES_MIN = 3  # names that differ in their number alone: two may be written in turn
INDEX_BYTES_MAX = 2**20  # a larger file beside the checkpoints names none of them
NOTHING_SEEN = Indexes()


@dataclass(frozen=True)
class SecondRestart:
    """The result of the second restart, which must restore step `step`. `saved_step` is the step of the newest save."""

    outcome: str  # done · failed · timeout · skipped (there is nothing to restart from) · error
    step: int | None = None
    saved_step: int | None = None
    reason: str = ""


class NothingToShow(Exception):
    """Raised if a second restart would test nothing in this run, and is therefore skipped."""


def make(again: Again, indexes: Indexes) -> None:
    def restart() -> SecondRestart:
        try:
            return _restart(again, indexes)
        except NothingToShow as why:
            return SecondRestart("skipped", reason=str(why))

    again.log("second_restart", SECOND, restart, lambda why: SecondRestart("error", reason=why))


def _restart(again: Again, indexes: Indexes) -> SecondRestart:
    saved = again.plan.workload.checkpoint
    newest, before = last_two(_listed(again.journal.run_dir, saved))
    _check_recovered(again, newest, before)
    ran_s = (again.progress.last_step_ns - again.progress.first_step_ns) / 1e9
    steps = again.progress.furthest_step
    anew_s = ran_s * (steps - before + 1) / max(steps, 1)  # those steps once more
    limit_s = again.start_limit_s + STEP_TIMES * anew_s
    why = f"second restart: the steps after the save of step {before} once more"
    again.observer.starts_again(why, again.start_s + anew_s)
    watch = Watch(again.stop, lambda _: False)  # the command ends by itself, where the run's did
    ended = again.start(SECOND, limit_s, watch, lambda place: set_back(place, saved, indexes), _nodes(again))
    left = _listed(again.journal.run_dir / SECOND, saved)
    found = SecondRestart("error", before, max((each.step or 0 for each in left.finished), default=None), ended.reason)
    if ended.outcome == "completed":
        return replace(found, outcome="done", reason="")
    if ended.outcome == "failed" or watch.ended_badly:
        return replace(found, outcome="failed")
    if ended.outcome != "aborted":
        return found
    reason = f"it was not over after {limit_s:.3g} s: {watch.progress.stuck()}"
    return replace(found, outcome="timeout", reason=reason)


def _nodes(again: Again) -> int | None:
    """Returns the number of nodes that the job had at its end, because another number would change the steps' results.
    Returns `None` for the planned number of nodes."""
    asked, ranks = again.plan.workload, again.progress.world_size
    nodes, rest = divmod(ranks, asked.ranks_per_node)
    return nodes if not rest and asked.min_nodes <= nodes < asked.max_nodes else None


def _check_recovered(again: Again, newest: int, before: int) -> None:
    restored = max((worker.restored_step or 0 for worker in again.progress.workers.values()), default=0)
    if before <= restored:
        steps = counted(again.progress.furthest_step - restored, "step")
        raise NothingToShow(f"only {steps} and {counted(int(newest > restored), 'save')} after the recovery")


def last_two(listing: Listing) -> tuple[int, int]:
    """Returns the steps of the last two saves. Raises `NothingToShow` if there are no two saves of known steps."""
    untold = next((each.path for each in listing.finished if each.step is None), None)
    if untold:
        raise NothingToShow(f"nothing tells of which step {untold} is")
    steps = sorted({each.step for each in listing.finished if each.step is not None}, reverse=True)
    if len(steps) < 2:
        raise NothingToShow(f"{'only one save is' if steps else 'no save is'} left in a layout that is known")
    return steps[0], steps[1]


def set_back(run_dir: pathlib.Path, saved: Checkpoint, indexes: Indexes = NOTHING_SEEN) -> None:
    """Removes the last save from a copy of the saves, and makes files that name this save name the save before it.

    Raises `NothingToShow` if such files cannot be changed, and `CannotDrill` if a file cannot be removed.
    """
    listing = _listed(run_dir, saved)
    _, before = last_two(listing)
    removed = [each for each in listing.checkpoints if each.step is not None and each.step > before]
    kept = next(each for each in listing.finished if each.step == before)
    stable = next((each.path for each in removed if not _is_of_one_save(each, listing)), None)
    if stable:
        raise NothingToShow(f"{stable} may have held an earlier save before")
    try:
        if listing.pointer:
            _point_back(run_dir, listing.pointer, removed, kept)
        for each in removed:
            for path in (each.path, *each.files):
                untrusted_files.remove_tree(run_dir, path)
        _set_lists_back(run_dir, saved, removed, kept, indexes)
    except FaultError as error:
        raise CannotDrill(str(error)) from error
    listing = _listed(run_dir, saved)
    if not listing.finished or listing.finished[0].step != before:
        raise CannotDrill(f"the save of step {before} is not the newest one where all later ones are removed")


def _is_of_one_save(saved: FoundCheckpoint, listing: Listing) -> bool:
    alike = [each for each in listing.checkpoints if pattern(each.name) == pattern(saved.name)]
    return names.step_in(saved.name) == saved.step or names.is_unique(saved.name) or len(alike) >= SERIES_MIN


def _set_lists_back(
    run_dir: pathlib.Path, saved: Checkpoint, removed: list[FoundCheckpoint], kept: FoundCheckpoint, indexes: Indexes
) -> None:
    place = CheckpointFolder.look(run_dir, saved.folder)
    listing = list_checkpoints(place, saved.layout)
    mine = {file for each in listing.checkpoints for file in each.files}
    beside = [path for path in place.files if path not in mine and place.sizes[path] <= INDEX_BYTES_MAX]
    texts = {path: place.read(path, INDEX_BYTES_MAX) for path in beside}
    texts |= {path: leads.encode() for path, leads in place.links.items()}
    gone = indexes.saves - {each.name for each in listing.checkpoints}
    earlier = indexes.naming(kept.step or 0)
    for path, now in texts.items():
        named = next((each.name for each in removed if each.name.encode() in now), None)
        if named is None:
            continue
        text = earlier.get(path, b"")
        if kept.name.encode() not in text or any(each.name.encode() in text for each in removed):
            raise NothingToShow(f"{path} names {named}, which was saved last")
        if lost := next((name for name in sorted(gone) if name.encode() in text and name.encode() not in now), None):
            raise NothingToShow(f"{path} named {lost} before the last save, which is gone: let the job keep all saves")
        with os.fdopen(untrusted_files.open_file(run_dir, path, os.O_WRONLY | os.O_TRUNC), "wb") as file:
            file.write(text)  # into the same file, whose owner may write it again


def _point_back(run_dir: pathlib.Path, pointer: Pointer, removed: list[FoundCheckpoint], kept: FoundCheckpoint) -> None:
    if pointer.target in {None, kept.path}:
        return
    newest = next(each for each in removed if each.path == pointer.target)
    status = untrusted_files.status_of(run_dir, pointer.path)
    if status is not None and stat.S_ISLNK(status.st_mode):
        leads = untrusted_files.link_of(run_dir, pointer.path)
        untrusted_files.remove(run_dir, pointer.path)
        with untrusted_files.folder_of(run_dir, pointer.path) as (folder, name):
            os.symlink(leads.replace(newest.name, kept.name), name, dir_fd=folder)
        return
    text = untrusted_files.read(run_dir, pointer.path).decode(errors="replace")
    for old, new in ((newest.name, kept.name), (str(newest.step), str(kept.step))):
        if text.strip().endswith(old):
            with os.fdopen(untrusted_files.open_file(run_dir, pointer.path, os.O_WRONLY | os.O_TRUNC), "w") as file:
                file.write(text.replace(old, new))  # into the same file, whose owner may write it again
            return
    raise NothingToShow(f"{pointer.path} does not name {newest.name}")


def _listed(run_dir: pathlib.Path, saved: Checkpoint) -> Listing:
    return list_checkpoints(CheckpointFolder.look(run_dir, saved.folder), saved.layout)
