"""Makes fault-free runs (the same workload and seed without faults) once, and caches them by all inputs.

A stored run is added or replaced by renaming its whole folder, so that no reader sees half of a run. Folders that dead
processes left are removed. The cache holds two kinds of folders:

    .fault-free/<digest>/            a complete run, with a seal (`harness.campaign.seal`)
    .fault-free/<name>.<random>/     a folder in use by the process that holds its lock
"""

import contextlib
import fcntl
import os
import pathlib
import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from harness.backends.contract import Backend
from harness.campaign import seal
from harness.campaign.campaign_observers import SILENT_CAMPAIGN, CampaignObserver
from harness.errors import EventLogError, FaultError
from harness.evidence.logs import CALIBRATION, FAULT_FREE
from harness.evidence.made_as_asked import Asked
from harness.log import files, untrusted_files
from harness.log.journal import is_closed, is_running
from harness.node.run_folder_view import KEPT as CACHE
from harness.plan.run_plan import Plan
from harness.run.job import Outcome, execute
from harness.run.stop import StopRequest
from harness.timeline import timeline
from harness.trainers.shared import outcome_inputs

REPEATS = 2  # fault-free runs beside the first, for a band of one world size
CODE_UNKNOWN = (
    "The fault-free run is one of before, and no file of the trainer's code is known: name its files under digest:, or "
    "use --fresh-fault-free if the code has changed."
)
_locks: dict[str, int] = {}  # folder → descriptor that holds its lock


def ensure_fault_free(
    plan: Plan,
    reports: pathlib.Path,
    backend: Backend,
    observer: CampaignObserver = SILENT_CAMPAIGN,
    stop: StopRequest | None = None,
    *,
    anew: bool = False,
    repeat: int = 0,
    before: Plan | None = None,
) -> tuple[pathlib.Path, Outcome | None]:
    """Returns the folder of a completed fault-free run of `plan`, and the run's outcome or, for a stored run, `None`.

    A stored run is used if its log has not changed since it was stored, and agrees with the plan. With `anew`, a new
    run is made, and replaces the stored run when it has completed. If the log of a new run does not agree with the
    plan, the run is made again once. `repeat` is a number that distinguishes several runs of the same plan. `before` is
    the plan of the run with faults that will be compared with the fault-free run. A run that did not complete is not
    stored; its folder and outcome are returned for the report.
    """
    digest = plan.outcome_digest() + (f"-{repeat}" if repeat else "")
    kept = cache(reports) / digest
    if not anew and seal.holds(kept) and not _flaw(plan, kept):
        if not outcome_inputs.code_of(plan.workload.trainer):
            observer.note(CODE_UNKNOWN)
        return kept, None
    for last in (False, True):
        attempt = own_folder(reports, digest)
        outcome = execute(plan, attempt, backend, observer, stop, before=before)
        if outcome.outcome != "completed":
            return attempt, outcome
        keep(attempt, kept)
        release(attempt)
        if last or not (why := _flaw(plan, kept)):
            break
        observer.note(f"fault-free run: {why}. It is made again.")
    return kept, outcome


def _flaw(plan: Plan, made: pathlib.Path) -> str:
    try:
        run = timeline.load(made)
    except EventLogError as error:
        return str(error)
    code = {"source_digest": outcome_inputs.source_digest(plan.workload.trainer)}
    asked = Asked(plan.to_json(), code, resumes_at=0)
    return asked.broken_by(run) or ("it restarted" if len(run.epochs) > 1 else "")


def keep(attempt: pathlib.Path, kept: pathlib.Path) -> None:
    with contextlib.suppress(FaultError):  # too much is kept then, and nothing else is wrong
        untrusted_files.remove_tree(attempt, "checkpoints")
    # The events become our own copies, which no process left over has open.
    files.attach(attempt / "events", attempt / "copied")
    untrusted_files.remove_tree(attempt, "events")
    os.rename(attempt / "copied", attempt / "events")
    seal.put(attempt)
    with contextlib.suppress(FaultError):  # the folder is out of the way, and swept later
        _set_aside(kept)
    try:
        os.rename(attempt, kept)
    except OSError:  # another run was faster: the newer one stays
        if not seal.holds(kept):
            raise
        untrusted_files.remove_tree(attempt.parent, attempt.name)


class FaultFree(NamedTuple):
    plan: Plan
    repeat: int = 0


def fault_free_plans(plan: Plan, band: bool | None = None) -> dict[str, FaultFree]:
    """Returns the plans of the fault-free runs that `plan` needs, by folder name: one run, and possibly repeats or runs
    of other sizes.

    `band` is True if repeated runs must measure a tolerance interval for the losses. If `band` is `None`, the
    scenario's `expect:` decides.
    """
    alone = plan.without_faults(f"{plan.run_id}-fault-free")
    # Runs at the other world sizes of the plan show how far rounding alone drifts.
    sizes = range(plan.workload.min_nodes, plan.workload.max_nodes)
    others = [FaultFree(plan.without_faults(f"{plan.run_id}-{size}", nodes=size)) for size in sizes[:2]]
    if not others and (expects_band(plan) if band is None else band):
        others = [FaultFree(alone.again(f"{plan.run_id}-repeat{n}"), n) for n in range(1, REPEATS + 1)]
    return {FAULT_FREE: FaultFree(alone)} | {f"{CALIBRATION}{n}": other for n, other in enumerate(others, 1)}


def another_repeat(plan: Plan, known: int) -> FaultFree:
    """Returns the plan of one more fault-free run. If the plan allows several world sizes, they are used in turn."""
    first = [other for name, other in fault_free_plans(plan).items() if name != FAULT_FREE]
    sizes = {other.plan.workload.nodes: other.plan for other in first}
    chosen = [*sizes.values()][known % len(sizes)]
    return FaultFree(chosen.again(f"{chosen.run_id}-more{known + 1}"), known + 1)


def expects_band(plan: Plan) -> bool:
    bounds = plan.expect.get("loss_continuity")
    return isinstance(bounds, Mapping) and bounds.get("mode") == "envelope"


def forget_fault_free(plan: Plan, reports: pathlib.Path) -> None:
    """Removes the stored fault-free runs of `plan`. Raises `FaultError` if a folder cannot be removed."""
    for digest in {other.plan.outcome_digest() for other in fault_free_plans(plan).values()}:
        for kept in (cache(reports) / digest, *cache(reports).glob(f"{digest}-*")):
            _set_aside(kept)


def cache(reports: pathlib.Path) -> pathlib.Path:
    """Returns the cache folder of fault-free runs, which several folders of reports may share by a link."""
    return (reports / CACHE).resolve()


def own_folder(reports: pathlib.Path, name: str) -> pathlib.Path:
    """Makes a folder in the cache that belongs to this process until the process ends or calls `release`."""
    while True:
        folder = cache(reports) / f"{name}.{secrets.token_hex(4)}"
        folder.mkdir(parents=True)
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            with contextlib.suppress(OSError):  # some network file systems lock no folders: nothing is swept there
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if folder.exists():
                _locks[str(folder)] = descriptor
                return folder
            os.close(descriptor)  # it was swept before it was locked


def release(folder: pathlib.Path) -> None:
    """Releases this process's lock on a folder that `own_folder` made, even if the folder was removed or renamed."""
    descriptor = _locks.pop(str(folder), None)
    if descriptor is not None:
        os.close(descriptor)


@contextlib.contextmanager
def borrowed(
    reports: pathlib.Path, name: str, not_removed: Callable[[FaultError], object] = lambda error: None
) -> Iterator[pathlib.Path]:
    folder = own_folder(reports, name)
    try:
        yield folder
    finally:
        try:
            untrusted_files.remove_tree(folder.parent, folder.name)
        except FaultError as error:
            not_removed(error)
        release(folder)


def sweep(reports: pathlib.Path, dry_run: bool = False) -> tuple[list[str], list[str]]:
    """Removes folders of dead processes from the cache, if all changes by their runs (such as faults) are undone.
    Returns the names of the removed folders, and a message for each folder that could not be removed."""
    removed, failed = list[str](), list[str]()
    for folder in sorted(cache(reports).glob("*.*")):
        try:
            with _dead(folder) as dead:
                if dead:
                    if not dry_run:
                        untrusted_files.remove_tree(folder.parent, folder.name)
                    removed.append(folder.name)
        except FaultError as error:
            failed.append(str(error))
    return removed, failed


@contextlib.contextmanager
def _dead(folder: pathlib.Path) -> Iterator[bool]:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield not is_running(folder) and is_closed(folder)
    except OSError:
        yield False
    finally:
        os.close(descriptor)


def _set_aside(kept: pathlib.Path) -> None:
    """Removes a stored fault-free run from the cache. If a change by the run (such as a fault) is not undone yet, only
    renames its folder, and `sweep` removes it later."""
    aside = kept.with_name(f"{kept.name}.{secrets.token_hex(4)}")
    try:
        os.rename(kept, aside)
    except FileNotFoundError:
        return
    if is_closed(aside):
        untrusted_files.remove_tree(aside.parent, aside.name)


def copy_fault_free(folder: pathlib.Path, target: pathlib.Path) -> bool:
    """Copies the events of a stored run to `target/events`. Returns False if events are missing or damaged."""
    try:
        files.attach(folder / "events", target / "events")
    except (EventLogError, FileNotFoundError):
        untrusted_files.remove_tree(target.parent, target.name)
        return False
    return True
