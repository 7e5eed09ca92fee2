"""A finished checkpoint rots on its disk: nothing is noticed until somebody restores from it.

Compose it with a fault that makes the job restore (`rank_kill` with `when: {following: corrupt, event: effect}`).
The originals are kept aside and put back when the run ends, unless the trainer has replaced or deleted the file.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import os
import pathlib
import random
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Literal

from pydantic import Field

from harness.backends.contract import Verb
from harness.errors import FaultError
from harness.faults.contract import Context, Fault, Folder, RunPath, Target
from harness.log import hostile

PAGE_BYTES = 4096
APPEARS_S_MAX = 30.0
CHUNK_BYTES = 1 << 20

_KINDS = {
    "bit_flip": "one bit of {file} flipped",
    "zero_page": "a page of 4 KiB of {file} zeroed",
    "truncate": "{file} truncated",
    "empty": "{file} emptied",
    "missing": "{file} deleted",
    "mixed_steps": "{file} replaced by the one of an older step",
    "wrong_manifest": "a checksum in the manifest changed",
    "stale_latest": "`latest` set back to an older checkpoint",
    "dangling_latest": "`latest` names a checkpoint that is not there",
}
Kind = Literal[
    "bit_flip",
    "zero_page",
    "truncate",
    "empty",
    "missing",
    "mixed_steps",
    "wrong_manifest",
    "stale_latest",
    "dangling_latest",
]


class CheckpointCorruption(Fault):
    """The newest finished checkpoint is damaged behind the trainer's back, on the storage itself."""

    kind: Kind = Field("bit_flip", description="What is done to it.")
    file: str = Field("largest", description="Which file of the checkpoint: largest, any, or a pattern of names.")
    directory: Folder = Field("checkpoints", description="Where the checkpoints are, below the run's folder.")
    pattern: str = Field("step-*", description="Names of finished checkpoints (folders or files) there.")
    unfinished: str = Field(".tmp-*", description="Names there while one is being written: waited for.")
    manifest: str = Field("manifest*", description="Name of the file with the checksums.")

    needs = frozenset({Verb.FILES})
    spoils = True

    def describe(self, targets: Sequence[Target]) -> str:
        file = f"the {self.file} file" if self.file == "largest" else f"file {self.file!r}"
        return f"the newest checkpoint in {self.directory}/: {_KINDS[self.kind].format(file=file)}"

    def inject(self, targets: Sequence[Target], context: Context) -> None:
        run_dir = context.run_dir
        context.wait(APPEARS_S_MAX, until=lambda: bool(self._finished(run_dir)) and not self._being_written(run_dir))
        checkpoints = self._finished(run_dir)
        if not checkpoints:
            raise FaultError(f"{self.directory}/{self.pattern}: no finished checkpoint to damage")
        aside = run_dir / "kept" / f"{context.seed:016x}"
        aside.mkdir(parents=True, exist_ok=True)
        damage = self._prepare(run_dir, checkpoints, random.Random(context.seed), aside)
        context.undo(
            "faults.checkpoint_corruption",
            path=damage.path,
            kept=str(damage.kept.relative_to(run_dir)),
            left=_fingerprint_of_ours(damage.damaged),
        )
        damage.apply()
        context.injected()
        measured, unit = damage.measure()
        ok = measured == damage.expected > 0
        context.effect(measured, damage.expected, unit, ok=ok, detail=f"{damage.path}: {self.kind}")

    def _finished(self, run_dir: pathlib.Path) -> list[str]:
        """Newest first. Names of one length sort by themselves; a longer number is a later one."""
        names = fnmatch.filter(hostile.names_in(run_dir, self.directory), self.pattern)
        return [f"{self.directory}/{name}" for name in sorted(names, key=lambda name: (len(name), name), reverse=True)]

    def _being_written(self, run_dir: pathlib.Path) -> bool:
        return bool(fnmatch.filter(hostile.names_in(run_dir, self.directory), self.unfinished))

    def _prepare(
        self, run_dir: pathlib.Path, checkpoints: Sequence[str], dice: random.Random, aside: pathlib.Path
    ) -> Damage:
        """The damaged version, made aside, so that acting is one rename."""
        if self.kind in ("stale_latest", "dangling_latest"):
            latest = f"{self.directory}/latest"
            return _point_elsewhere(run_dir, latest, checkpoints, self.kind == "stale_latest", aside)
        path = self._choose(run_dir, checkpoints[0], dice)
        kept, damaged = aside / "original", aside / "damaged"
        hostile.copy_out(run_dir, path, kept)
        if self.kind == "missing":
            return Damage(run_dir, path, kept, aside / "nothing", 1)
        other = self._older(run_dir, checkpoints, path) if self.kind == "mixed_steps" else path
        hostile.copy_out(run_dir, other, damaged)
        _CHANGES.get(self.kind, _leave)(damaged, dice)
        expected = bytes_changed(kept, damaged)
        if expected == 0:
            raise FaultError(f"{path}: {self.kind} changes nothing there")
        return Damage(run_dir, path, kept, damaged, expected)

    def _choose(self, run_dir: pathlib.Path, checkpoint: str, dice: random.Random) -> str:
        """One of the checkpoint's regular files; it may be a file itself."""
        status = hostile.status_of(run_dir, checkpoint)
        is_file = status is not None and stat.S_ISREG(status.st_mode)
        files = [checkpoint] if is_file else hostile.files_below(run_dir, checkpoint)
        pattern = self.manifest if self.kind == "wrong_manifest" else self.file
        if pattern not in ("largest", "any"):
            files = [each for each in files if pathlib.PurePath(each).match(pattern)]
        sizes = {each: found.st_size for each in files if (found := hostile.status_of(run_dir, each)) is not None}
        files = [each for each in files if sizes.get(each)]
        if not files:
            raise FaultError(f"{checkpoint}: it has no file {pattern!r} with anything in it")
        return max(files, key=lambda each: sizes[each]) if pattern == "largest" else dice.choice(files)

    def _older(self, run_dir: pathlib.Path, checkpoints: Sequence[str], path: str) -> str:
        inside = path.removeprefix(checkpoints[0])
        for checkpoint in checkpoints[1:]:
            status = hostile.status_of(run_dir, checkpoint + inside)
            if status is not None and stat.S_ISREG(status.st_mode):
                return checkpoint + inside
        raise FaultError(f"{inside}: no older checkpoint has it; {self.kind} needs two checkpoints")


@dataclass(frozen=True)
class Damage:
    """`damaged` takes the place of `path`; where there is no such file, `path` is deleted. `kept` is the original.

    `path` is relative to the run's folder and may be written by nodes; the other two are the harness's own.
    """

    run_dir: pathlib.Path
    path: str
    kept: pathlib.Path
    damaged: pathlib.Path
    expected: int

    def apply(self) -> None:
        if os.path.lexists(self.damaged):
            hostile.move_inside(self.run_dir, str(self.damaged.relative_to(self.run_dir)), self.path)
        else:
            hostile.remove(self.run_dir, self.path)

    def measure(self) -> tuple[int, str]:
        """What is different on the disk now, read back."""
        status = hostile.status_of(self.run_dir, self.path)
        if status is None:
            return 1, "files gone"
        if self.kept.is_symlink() or stat.S_ISLNK(status.st_mode):
            changed = fingerprint(self.run_dir, self.path) != _fingerprint_of_ours(self.kept)
            return int(changed), "links changed"
        with self.kept.open("rb") as kept, hostile.open_reader(self.run_dir, self.path) as now:
            return _bytes_apart(kept, now), "bytes changed"


def put_back(run_dir: pathlib.Path, path: RunPath, kept: RunPath, left: str | None) -> None:
    """Restores the original, if the file is still as the damage left it: a newer one is none of ours. Idempotent.

    Both are below the run's folder, and no link leads out of it.
    """
    with contextlib.suppress(FileNotFoundError):  # the original was put back, or the checkpoint's folder has gone
        if fingerprint(run_dir, path) == left:
            hostile.move_inside(run_dir, kept, path)


UNDO = put_back


def fingerprint(run_dir: pathlib.Path, path: str) -> str | None:
    """What tells one content from another: of a file, or of a link itself; `None` when it is not there."""
    status = hostile.status_of(run_dir, path)
    if status is None:
        return None
    if stat.S_ISLNK(status.st_mode):
        return f"link {hostile.link_of(run_dir, path)}"
    with hostile.open_reader(run_dir, path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def _fingerprint_of_ours(path: pathlib.Path) -> str | None:
    return fingerprint(path.parent, path.name)


def bytes_changed(one: pathlib.Path, other: pathlib.Path) -> int:
    """How many bytes differ, those included that only one of the two files has."""
    with one.open("rb") as left, other.open("rb") as right:
        return _bytes_apart(left, right)


def _bytes_apart(left: IO[bytes], right: IO[bytes]) -> int:
    count = 0
    while True:
        a, b = left.read(CHUNK_BYTES), right.read(CHUNK_BYTES)
        if not a and not b:
            return count
        if a != b:
            count += abs(len(a) - len(b)) + sum(x != y for x, y in zip(a, b, strict=False))


def _point_elsewhere(
    run_dir: pathlib.Path, latest: str, checkpoints: Sequence[str], stale: bool, aside: pathlib.Path
) -> Damage:
    """`latest` is a symbolic link to a checkpoint, or a text file with its name."""
    status = hostile.status_of(run_dir, latest)
    if status is None:
        raise FaultError(f"{latest}: there is none beside the checkpoints")
    if stale and len(checkpoints) < 2:
        raise FaultError("stale_latest needs two checkpoints; there is one")
    newest = pathlib.PurePath(checkpoints[0]).name
    name = pathlib.PurePath(checkpoints[1]).name if stale else f"{newest}-gone"
    kept, damaged = aside / "original", aside / "damaged"
    if stat.S_ISLNK(status.st_mode):
        link = hostile.link_of(run_dir, latest)
        kept.symlink_to(link)
        damaged.symlink_to(pathlib.Path(link).with_name(name))
        return Damage(run_dir, latest, kept, damaged, 1)
    hostile.copy_out(run_dir, latest, kept)
    text = kept.read_text()
    damaged.write_text(text.replace(text.strip(), name))
    return Damage(run_dir, latest, kept, damaged, bytes_changed(kept, damaged))


def _flip(path: pathlib.Path, dice: random.Random) -> None:
    with path.open("r+b") as file:
        position = dice.randrange(path.stat().st_size)
        file.seek(position)
        (value,) = file.read(1)
        file.seek(position)
        file.write(bytes([value ^ 1 << dice.randrange(8)]))


def _zero_page(path: pathlib.Path, dice: random.Random) -> None:
    """A page that was not all zeros already."""
    pages = list(range(-(-path.stat().st_size // PAGE_BYTES)))
    dice.shuffle(pages)
    with path.open("r+b") as file:
        for page in pages:
            file.seek(page * PAGE_BYTES)
            content = file.read(PAGE_BYTES)
            if any(content):
                file.seek(page * PAGE_BYTES)
                file.write(bytes(len(content)))
                return


def _truncate(path: pathlib.Path, dice: random.Random) -> None:
    os.truncate(path, dice.randrange(path.stat().st_size))


def _empty(path: pathlib.Path, dice: random.Random) -> None:
    os.truncate(path, 0)


def _wrong_checksum(path: pathlib.Path, dice: random.Random) -> None:
    text = path.read_bytes()
    checksums = list(re.finditer(rb"[0-9a-f]{32,}", text))
    if not checksums:
        raise FaultError("the manifest: no checksum in it to change")
    position = dice.choice(checksums).start() + dice.randrange(32)
    digit = b"1" if text[position : position + 1] != b"1" else b"2"
    path.write_bytes(text[:position] + digit + text[position + 1 :])


def _leave(path: pathlib.Path, dice: random.Random) -> None:
    """The other content was put there already."""


_CHANGES = {
    "bit_flip": _flip,
    "zero_page": _zero_page,
    "truncate": _truncate,
    "empty": _empty,
    "wrong_manifest": _wrong_checksum,
}

FAULT = CheckpointCorruption
