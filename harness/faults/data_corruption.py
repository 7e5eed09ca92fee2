"""Training data goes bad: a shard is missing, cut short or full of garbage, or the loss of a batch is NaN."""

import contextlib
import fnmatch
import hashlib
import os
import pathlib
import random
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, PrivateAttr, model_validator

from harness.errors import FaultError
from harness.faults.contract import Context, Folder, RunPath, Targets, name_ranks, ranks_of
from harness.faults.shared import orders
from harness.log import untrusted_files
from harness.log.consequences import May
from harness.log.truth import Decision, Kind, Place, Truth
from harness.units import Duration


class DataCorruption(orders.OrderedFault):
    """Damages a shard of the training data on the disk for `duration`, or makes the loss of one batch NaN. A NaN batch
    needs a trainer that carries out orders from the folder `CHAOS_DAMAGE`, as the reference trainer does."""

    kind: Literal["missing", "truncated", "garbage", "nan_batch"] = Field(
        "missing", description="What is wrong with it."
    )
    directory: Folder = Field("data", description="The folder of the shards, below the run's.")
    file: str = Field("*", description="Which of them: a pattern; one that matches is chosen by the seed.")
    duration: Duration | None = Field(
        Duration("10s"), description="How long a shard stays so. A NaN batch lasts one step."
    )

    runbook = "F10"
    may = frozenset({May.STOP, May.MOVE})
    _sound: dict[str, str] = PrivateAttr(default_factory=dict)  # the digest of the shard before it was damaged

    @model_validator(mode="before")
    @classmethod
    def _only_shards_last(cls, given: Any) -> Any:
        if not isinstance(given, dict) or given.get("kind") != "nan_batch":
            return given
        if given.get("duration") is not None:
            raise ValueError("duration: a NaN batch is that of one step; only a damaged shard lasts")
        return given | {"duration": None}

    def true_answers(self) -> Truth:
        if self.kind == "nan_batch":
            return Truth((Kind.BAD_DATA,), Place.RANK, (Decision.IGNORE, Decision.ROLL_BACK))
        return Truth((Kind.BAD_DATA, Kind.STORAGE), Place.FILE, (Decision.IGNORE, Decision.RESTART_IN_PLACE))

    def environment(self, run_dir: pathlib.Path) -> Mapping[str, str]:
        return super().environment(run_dir) if self.kind == "nan_batch" else {}

    def describe(self, targets: Targets) -> str:
        if self.kind == "nan_batch":
            return f"one batch of {name_ranks(targets)} turns the loss into NaN"
        return f"one shard {self.file} in {self.directory}/ is {self.kind} for {self.duration}"

    def inject(self, targets: Targets, context: Context) -> None:
        if self.kind == "nan_batch":
            return self._poison(targets, context)
        assert self.duration is not None, "only a NaN batch has none"
        here = untrusted_files.files_below(context.run_dir, self.directory)
        shards = [path for path in here if pathlib.PurePath(path).parent == pathlib.PurePath(self.directory)]
        shards = fnmatch.filter(shards, f"{self.directory}/{self.file}")
        if not shards:
            raise FaultError(f"{self.directory}/{self.file}: no shard there to damage")
        dice = random.Random(context.seed)
        shard, kept = dice.choice(shards), context.run_dir / "kept" / f"{context.seed:016x}" / "shard"
        kept.parent.mkdir(parents=True, exist_ok=True)
        untrusted_files.copy_out(context.run_dir, shard, kept)
        places = {"path": shard, "kept": str(kept.relative_to(context.run_dir))}
        context.undo("faults.data_corruption", **places)
        before = self._sound[shard] = digest(context.run_dir, shard)
        self._damage(context.run_dir, shard, dice)
        context.injected()
        changed = int(digest(context.run_dir, shard) != before)
        context.effect(changed, 1, "shards damaged", ok=changed == 1, detail=f"{shard}: {self.kind}")
        context.wait(self.duration.s)
        put_back(context.run_dir, **places)

    def see_end(self, targets: Targets, context: Context) -> None:
        if self.kind == "nan_batch":
            super().see_end(targets, context)
        for shard, before in self._sound.items():
            damaged = int(digest(context.run_dir, shard) != before)
            context.ended(damaged, 0, "shards damaged", ok=not damaged, detail=shard)

    def _damage(self, run_dir: pathlib.Path, shard: str, dice: random.Random) -> None:
        if self.kind == "missing":
            return untrusted_files.remove(run_dir, shard)
        with os.fdopen(untrusted_files.open_file(run_dir, shard, os.O_RDWR), "r+b") as file:
            size = os.fstat(file.fileno()).st_size
            if self.kind == "truncated":
                file.truncate(dice.randrange(size))
            else:
                file.write(dice.randbytes(min(size, 1 << 20)))

    def _poison(self, targets: Targets, context: Context) -> None:
        for rank in ranks_of(targets):
            found = orders.order(context, rank, kind="nan")
            detail = f"rank {rank}, step {found['step']}"
            context.effect(found["changed"], 1, "batches poisoned", ok=found["changed"] == 1, detail=detail)


def put_back(run_dir: pathlib.Path, path: RunPath, kept: RunPath) -> None:
    """Puts the undamaged file back. A second call changes nothing. Refuses paths through a link."""
    with contextlib.suppress(FileNotFoundError):
        untrusted_files.move_inside(run_dir, kept, path)


UNDO = put_back


def digest(run_dir: pathlib.Path, path: str) -> str:
    try:
        with untrusted_files.open_reader(run_dir, path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    except FileNotFoundError:
        return "absent"


FAULT = DataCorruption
