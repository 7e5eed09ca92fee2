"""A finished checkpoint is damaged on its disk, which nobody notices until a job restores from it.

Combine this fault with another fault that makes the job restore, such as `rank_kill` with `when: {following: corrupt,
event: effect}`. The harness keeps the original files. When the run ends, the harness puts the original files back,
unless the trainer has replaced or deleted the damaged files.
"""

import contextlib
import fnmatch
import pathlib
import random
from dataclasses import replace
from typing import Any, Self, get_args

from pydantic import Field, model_validator

from harness.backends.contract import Verb
from harness.errors import FaultError
from harness.faults.contract import Context, Fault, Folder, RunPath, Targets
from harness.faults.shared import checkpoint_damage
from harness.faults.shared.checkpoint_damage import OF_POINTERS, PARTS, POISON, Damage, Kind, OfAnyFile, Order, Part
from harness.log import untrusted_files
from harness.log.consequences import Consequences, May
from harness.log.truth import Decision, Place, Truth
from harness.log.truth import Kind as Failure
from harness.trainers.checkpoints.contract import FoundCheckpoint, Listing, list_checkpoints
from harness.trainers.checkpoints.shared import digests
from harness.trainers.checkpoints.shared.checkpoint_folder import CheckpointFolder
from harness.trainers.checkpoints.shared.names import is_temporary

APPEARS_S_MAX = 30.0
LOOK_S = 0.1
QUIET_LOOKS = 3  # so often nothing has changed: the checkpoint is finished
LEFT_LOOKS = 30  # nothing has changed for so long: what is unfinished there was left behind

_KINDS = {
    "bit_flip": "one bit of {file} flipped",
    "zero_page": "a page of 4 KiB of {file} zeroed",
    "truncate": "{file} truncated",
    "empty": "{file} emptied",
    "missing": "{file} deleted",
    "mixed_steps": "{file} replaced by the one of an older step",
    "wrong_manifest": "a checksum in the manifest changed",
    "stale_latest": "the pointer set back to an older checkpoint",
    "dangling_latest": "the pointer names a checkpoint that is not there",
    "nan": "the large tensors of {file} filled with NaN, and SHA-256 digests of it made right",
    "exploded": "the large tensors of {file} filled with huge numbers, and SHA-256 digests of it made right",
}


class CheckpointCorruption(Fault):
    """Damages the newest finished checkpoint on the storage itself, without the trainer's knowledge."""

    kind: Kind = Field("bit_flip", description="What is done to it.")
    what: Part = Field("any", description="To what: tensor, header, metadata, pointer, or any file.")
    file: str = Field("largest", description="Which of these files: largest, any, or a pattern of names.")
    directory: Folder | None = Field(
        None, description="Where the checkpoints are; default: `workload.checkpoint.path`."
    )
    pattern: str = Field("*", description="Names of the checkpoints (folders or files) that count.")

    runbook = "F4"
    damages = True
    needs = frozenset({Verb.FILES})
    may = frozenset({May.SPOIL})
    truth = Truth((Failure.CORRUPTION, Failure.STORAGE), Place.FILE, (Decision.ROLL_BACK,))

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.what == "pointer" and self.kind in ("mixed_steps", "wrong_manifest"):
            allowed = ", ".join((*get_args(OfAnyFile), *OF_POINTERS))
            raise ValueError(f"kind {self.kind} cannot be done to a pointer; allowed there: {allowed}")
        if self.kind in POISON and self.what not in ("any", "tensor"):
            raise ValueError(f"kind {self.kind} is done to tensors; leave out `what: {self.what}`")
        if self.what != "pointer" and self.kind in OF_POINTERS and self.what != "any":
            raise ValueError(f"kind {self.kind} is done to the pointer; leave out `what: {self.what}`")
        return self

    def consequences(self) -> Consequences:
        found = super().consequences()
        return replace(found, may=found.may | {May.DIVERGE}) if self.kind in POISON else found

    def describe(self, targets: Targets) -> str:
        file = f"the {self.file} file" if self.file == "largest" else f"file {self.file!r}"
        file = "the pointer" if self.what == "pointer" else file
        where = f" in {self.directory}/" if self.directory else ""
        part = f", only in {PARTS[self.what]}" if self.what in ("tensor", "header") else ""
        return f"the newest finished checkpoint{where}: {_KINDS[self.kind].format(file=file)}{part}"

    def inject(self, targets: Targets, context: Context) -> None:
        place, listing = self._finished(context)
        aside = context.run_dir / "kept" / f"{context.seed:016x}"
        aside.mkdir(parents=True, exist_ok=True)
        order = Order(self.kind, self.what, self.file, random.Random(context.seed))
        damage = checkpoint_damage.prepare(place, listing, order, aside)
        for each in (damage, *damage.sealed):
            context.undo(
                "faults.checkpoint_corruption",
                path=each.path,
                kept=str(each.kept.relative_to(context.run_dir)),
                left=checkpoint_damage.fingerprint_of_ours(each.damaged),
            )
            each.apply()
        context.injected()
        self._report(damage, listing, context)

    def _finished(self, context: Context) -> tuple[CheckpointFolder, Listing]:
        folder = self.directory or context.checkpoints.folder
        place, quiet = CheckpointFolder.look(context.run_dir, folder), 0
        for _ in range(round(APPEARS_S_MAX / LOOK_S)):
            if quiet >= QUIET_LOOKS:
                listing = self._wanted(list_checkpoints(place, context.checkpoints.layout))
                if listing.finished and (quiet >= LEFT_LOOKS or not _being_written(place, listing)):
                    return place, listing
            context.wait(LOOK_S)
            before, place = place, CheckpointFolder.look(context.run_dir, folder)
            quiet = quiet + 1 if place == before else 0
        listing = self._wanted(list_checkpoints(place, context.checkpoints.layout))
        if not listing.finished:
            seen = f"none is recognised in {len(place.files)} files there; say workload.checkpoint.layout and .path"
            if listing.checkpoints:
                seen = f"{len(listing.checkpoints)} of layout {listing.layout} are not finished"
            raise FaultError(f"{folder}/: no finished checkpoint to damage; {seen}")
        return place, listing

    def _wanted(self, listing: Listing) -> Listing:
        found = [each for each in listing.checkpoints if fnmatch.fnmatch(each.name, self.pattern)]
        return replace(listing, checkpoints=found)

    def _report(self, damage: Damage, listing: Listing, context: Context) -> None:
        measured, unit = damage.measure()
        told = {}
        if damage.checkpoint:  # with its present digest
            place = CheckpointFolder.look(context.run_dir, self.directory or context.checkpoints.folder)
            files = [path for path in damage.checkpoint.files if path in place.sizes]
            told = _names(damage, damage.checkpoint, listing) | {"sha256": digests.content(place, files).sha256}
        changed = {"part": damage.part, "how": self.kind, "tensor_bytes": damage.tensor_bytes}
        changed |= {"sealed": True} if self.kind in POISON else {}
        context.log("fault.damaged", path=damage.path, **changed, **told)
        ok = measured == damage.expected > 0 and (damage.tensor_bytes > 0 or self.what != "tensor")
        ok &= all(each.measure()[0] == each.expected for each in damage.sealed)
        context.effect(measured, damage.expected, unit, ok=ok, detail=f"{damage.path}: {self.kind}, {damage.part}")


def _being_written(place: CheckpointFolder, listing: Listing) -> bool:
    return any(not each.whole for each in listing.checkpoints) or any(is_temporary(path) for path in place.files)


def _names(damage: Damage, found: FoundCheckpoint, listing: Listing) -> dict[str, Any]:
    names = [found.name, damage.path.rpartition("/")[2]]
    if listing.pointer and listing.pointer.target == found.path:
        names.append(listing.pointer.path.rpartition("/")[2])
    told: dict[str, Any] = {"checkpoint": found.path, "names": list(dict.fromkeys(names))}
    if found.step is None:
        return told
    return told | {"step": found.step, "copies": sum(each.step == found.step for each in listing.finished) - 1}


def put_back(run_dir: pathlib.Path, path: RunPath, kept: RunPath, left: str | None) -> None:
    """Puts the undamaged file back, unless the job has written the file since. A second call changes nothing. `path`
    and `kept` are relative to `run_dir`. A path through a link is refused."""
    with contextlib.suppress(FileNotFoundError):  # the original was put back, or the checkpoint's folder has gone
        if checkpoint_damage.fingerprint(run_dir, path) == left:
            untrusted_files.move_inside(run_dir, kept, path)


UNDO = put_back
FAULT = CheckpointCorruption
