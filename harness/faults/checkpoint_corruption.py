"""A finished checkpoint rots on its disk: nothing is noticed until somebody restores from it.

Compose it with a fault that makes the job restore (`rank_kill` with `when: {following: corrupt, event: effect}`).
The originals are kept aside and put back when the run ends, unless the trainer has replaced or deleted the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import random
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from harness.backends.contract import Verb
from harness.errors import FaultError
from harness.faults.contract import Context, Fault, Folder, Target
from harness.log.hostile import RunPath, move_inside

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
        root = context.run_dir / self.directory
        context.wait(APPEARS_S_MAX, until=lambda: bool(self._finished(root)) and not any(root.glob(self.unfinished)))
        checkpoints = self._finished(root)
        if not checkpoints:
            raise FaultError(f"{self.directory}/{self.pattern}: no finished checkpoint to damage")
        aside = context.run_dir / "kept" / f"{context.seed:016x}"
        aside.mkdir(parents=True, exist_ok=True)
        damage = self._prepare(root, checkpoints, random.Random(context.seed), aside)
        context.undo(
            "faults.checkpoint_corruption",
            path=str(damage.path.relative_to(context.run_dir)),
            kept=str(damage.kept.relative_to(context.run_dir)),
            left=fingerprint(damage.damaged),
        )
        damage.apply()
        context.injected()
        measured, unit = damage.measure()
        name = str(damage.path.relative_to(context.run_dir))
        context.effect(
            measured, damage.expected, unit, ok=measured == damage.expected > 0, detail=f"{name}: {self.kind}"
        )

    def _finished(self, root: pathlib.Path) -> list[pathlib.Path]:
        """Newest first. Names of one length sort by themselves; a longer number is a later one."""
        return sorted(root.glob(self.pattern), key=lambda path: (len(path.name), path.name), reverse=True)

    def _prepare(
        self, root: pathlib.Path, checkpoints: Sequence[pathlib.Path], dice: random.Random, aside: pathlib.Path
    ) -> Damage:
        """The damaged version, made aside, so that acting is one rename."""
        if self.kind in ("stale_latest", "dangling_latest"):
            return _point_elsewhere(root / "latest", checkpoints, self.kind == "stale_latest", aside)
        path = self._choose(checkpoints[0], dice)
        kept, damaged = aside / "original", aside / "damaged"
        shutil.copy2(path, kept)
        if self.kind == "missing":
            return Damage(path, kept, aside / "nothing", 1)
        shutil.copy2(self._older(checkpoints, path) if self.kind == "mixed_steps" else path, damaged)
        _CHANGES.get(self.kind, _leave)(damaged, dice)
        expected = bytes_changed(kept, damaged)
        if expected == 0:
            raise FaultError(f"{path.name}: {self.kind} changes nothing there")
        return Damage(path, kept, damaged, expected)

    def _choose(self, checkpoint: pathlib.Path, dice: random.Random) -> pathlib.Path:
        files = (
            [checkpoint] if checkpoint.is_file() else sorted(each for each in checkpoint.rglob("*") if each.is_file())
        )
        pattern = self.manifest if self.kind == "wrong_manifest" else self.file
        if pattern not in ("largest", "any"):
            files = [each for each in files if each.match(pattern)]
        files = [each for each in files if each.stat().st_size > 0]
        if not files:
            raise FaultError(f"{checkpoint.name}: it has no file {pattern!r} with anything in it")
        return max(files, key=lambda each: each.stat().st_size) if pattern == "largest" else dice.choice(files)

    def _older(self, checkpoints: Sequence[pathlib.Path], path: pathlib.Path) -> pathlib.Path:
        inside = path.relative_to(checkpoints[0])
        for checkpoint in checkpoints[1:]:
            if (checkpoint / inside).is_file():
                return checkpoint / inside
        raise FaultError(f"{inside}: no older checkpoint has it; {self.kind} needs two checkpoints")


@dataclass(frozen=True)
class Damage:
    """`damaged` takes the place of `path`; where there is no such file, `path` is deleted. `kept` is the original."""

    path: pathlib.Path
    kept: pathlib.Path
    damaged: pathlib.Path
    expected: int

    def apply(self) -> None:
        if os.path.lexists(self.damaged):
            os.replace(self.damaged, self.path)
        else:
            self.path.unlink()

    def measure(self) -> tuple[int, str]:
        """What is different on the disk now, read back."""
        if not os.path.lexists(self.path):
            return 1, "files gone"
        if self.kept.is_symlink() or self.path.is_symlink():
            return int(fingerprint(self.path) != fingerprint(self.kept)), "links changed"
        return bytes_changed(self.kept, self.path), "bytes changed"


def put_back(run_dir: pathlib.Path, path: RunPath, kept: RunPath, left: str | None) -> None:
    """Restores the original, if the file is still as the damage left it: a newer one is none of ours. Idempotent.

    Both are below the run's folder, and no link leads out of it.
    """
    with contextlib.suppress(FileNotFoundError):
        if fingerprint(run_dir / path) == left:
            move_inside(run_dir, kept, path)


UNDO = put_back


def fingerprint(path: pathlib.Path) -> str | None:
    """What tells one content from another: of a file, or of a link itself; `None` when it is not there."""
    if path.is_symlink():
        return f"link {os.readlink(path)}"
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def bytes_changed(one: pathlib.Path, other: pathlib.Path) -> int:
    """How many bytes differ, those included that only one of the two files has."""
    count = 0
    with one.open("rb") as left, other.open("rb") as right:
        while True:
            a, b = left.read(CHUNK_BYTES), right.read(CHUNK_BYTES)
            if not a and not b:
                return count
            if a != b:
                count += abs(len(a) - len(b)) + sum(x != y for x, y in zip(a, b, strict=False))


def _point_elsewhere(
    latest: pathlib.Path, checkpoints: Sequence[pathlib.Path], stale: bool, aside: pathlib.Path
) -> Damage:
    """`latest` is a symbolic link to a checkpoint, or a text file with its name."""
    if not os.path.lexists(latest):
        raise FaultError(f"{latest.name}: there is none beside the checkpoints")
    if stale and len(checkpoints) < 2:
        raise FaultError("stale_latest needs two checkpoints; there is one")
    name = checkpoints[1].name if stale else f"{checkpoints[0].name}-gone"
    kept, damaged = aside / "original", aside / "damaged"
    shutil.copy2(latest, kept, follow_symlinks=False)
    if latest.is_symlink():
        damaged.symlink_to(pathlib.Path(os.readlink(latest)).with_name(name))
        return Damage(latest, kept, damaged, 1)
    damaged.write_text(latest.read_text().replace(latest.read_text().strip(), name))
    return Damage(latest, kept, damaged, bytes_changed(kept, damaged))


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
