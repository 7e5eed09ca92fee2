"""Training data gone bad: a shard missing, cut short or full of garbage, or a batch whose loss is NaN."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import random
import shutil
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, model_validator

from harness.backends.contract import Verb
from harness.errors import FaultError
from harness.faults.contract import Context, Fault, Folder, Target
from harness.faults.shared import orders as damage
from harness.log.hostile import RunPath, move_inside
from harness.units import Duration


class DataCorruption(Fault):
    """Shards on the disk are put back after `duration`; a NaN batch needs a trainer with the hook `CHAOS_DAMAGE`."""

    kind: Literal["missing", "truncated", "garbage", "nan_batch"] = Field(
        "missing", description="What is wrong with it."
    )
    directory: Folder = Field("data", description="The folder of the shards, below the run's.")
    file: str = Field("*", description="Which of them: a pattern; one that matches is chosen by the seed.")
    duration: Duration | None = Field(
        Duration("10s"), description="How long a shard stays so. A NaN batch lasts one step."
    )

    needs = frozenset({Verb.FILES})
    aims_at = "rank"
    stops = True

    @model_validator(mode="before")
    @classmethod
    def _only_shards_last(cls, given: Any) -> Any:
        if not isinstance(given, dict) or given.get("kind") != "nan_batch":
            return given
        if given.get("duration") is not None:
            raise ValueError("duration: a NaN batch lasts one step; only a damaged shard has a duration")
        return given | {"duration": None}

    def environment(self, run_dir: pathlib.Path) -> Mapping[str, str]:
        return damage.environment(run_dir) if self.kind == "nan_batch" else {}

    def describe(self, targets: Sequence[Target]) -> str:
        if self.kind == "nan_batch":
            return f"one batch of rank {', '.join(str(target.rank) for target in targets)} turns the loss into NaN"
        return f"one shard {self.file} in {self.directory}/ is {self.kind} for {self.duration}"

    def inject(self, targets: Sequence[Target], context: Context) -> None:
        if self.kind == "nan_batch":
            return self._poison(targets, context)
        assert self.duration is not None, "only a NaN batch has none"
        shards = sorted(each for each in (context.run_dir / self.directory).glob(self.file) if each.is_file())
        if not shards:
            raise FaultError(f"{self.directory}/{self.file}: no shard there to damage")
        dice = random.Random(context.seed)
        shard, kept = dice.choice(shards), self._kept(context)
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(shard, kept)
        places = {"path": str(shard.relative_to(context.run_dir)), "kept": str(kept.relative_to(context.run_dir))}
        context.undo("faults.data_corruption", **places)
        before = digest(shard)
        self._damage(shard, dice)
        context.injected()
        changed = int(digest(shard) != before)
        context.effect(changed, 1, "shards damaged", ok=changed == 1, detail=f"{shard.name}: {self.kind}")
        context.wait(self.duration.s)
        put_back(context.run_dir, **places)

    def heal(self, targets: Sequence[Target], context: Context) -> None:
        """Shards are put back by `inject`, or by their undo record at the end of the run."""
        damage.withdraw(context.run_dir, context.seed)

    def _kept(self, context: Context) -> pathlib.Path:
        return context.run_dir / "kept" / f"{context.seed:016x}" / "shard"

    def _damage(self, shard: pathlib.Path, dice: random.Random) -> None:
        size = shard.stat().st_size
        if self.kind == "missing":
            shard.unlink()
        elif self.kind == "truncated":
            os.truncate(shard, dice.randrange(size))
        else:
            with shard.open("r+b") as file:
                file.write(dice.randbytes(min(size, 1 << 20)))

    def _poison(self, targets: Sequence[Target], context: Context) -> None:
        for target in targets:
            assert target.rank is not None  # the planner resolves `aims_at: rank` to ranks
            found = damage.order(context, target.rank, kind="nan")
            detail = f"rank {target.rank}, step {found['step']}"
            context.effect(found["changed"], 1, "batches poisoned", ok=found["changed"] == 1, detail=detail)


def put_back(run_dir: pathlib.Path, path: RunPath, kept: RunPath) -> None:
    """Idempotent: the original is moved. Both are below the run's folder, and no link leads out of it."""
    with contextlib.suppress(FileNotFoundError):
        move_inside(run_dir, kept, path)


UNDO = put_back


def digest(path: pathlib.Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "absent"


FAULT = DataCorruption
