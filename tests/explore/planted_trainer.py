"""A trainer of one process without torch, whose saver has a planted bug: `planted_trainer.py CHECKPOINTS STEPS MANNER`.

`careful`: a file beside the old one, flushed, renamed over it, and its folder flushed. `not_flushed` renames it before
it is flushed. `removed_first` removes the old save before the rename. `in_place` writes over the old save. `folder_left`
saves in a new folder, and fails if a crash left one of that name. A folder's path: it saves there, too, and rather
restores from there.
"""

import os
import pathlib
import struct
import sys
import time

from harness.node.emitter import Emitter

NUMBERS = 2000


def flushed(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def save(root: pathlib.Path, step: int, value: float, manner: str) -> None:
    final, new = root / "model", root / "new"
    if manner == "folder_left":
        (root / f"new-{step}").mkdir()
        new = root / f"new-{step}" / "model"
    target = final if manner == "in_place" else new
    with target.open("wb") as file:
        file.write(struct.pack("<q", step) + struct.pack("<d", value) * NUMBERS)
        file.flush()
        if manner not in ("not_flushed", "in_place"):
            os.fsync(file.fileno())
    if manner == "removed_first":
        final.unlink(missing_ok=True)
    if target is new:
        new.rename(final)
    flushed(final)
    if manner == "folder_left":
        new.parent.rmdir()
    flushed(root)


def load(path: pathlib.Path) -> tuple[int, float]:
    if not path.exists():
        return 0, 0.0
    content = path.read_bytes()
    return struct.unpack("<q", content[:8])[0], sum(struct.unpack(f"<{NUMBERS}d", content[8:])) / NUMBERS


def main(root: pathlib.Path, steps: int, manner: str) -> None:
    emit = Emitter.open("trainer", rank=0, local_rank=0, world_size=1)
    emit("started")
    emit("rendezvous", world_size=1)
    restored, value = max(load(root / "model"), load(pathlib.Path(manner) / "model"))
    emit("restored", step=restored, source=str(root / "model"), fallback=[])
    begin_ns = time.monotonic_ns()
    for step in range(restored + 1, steps + 1):
        time.sleep(0.02)
        value = 1000.0 + value / 4
        begin_ns = emit("step", step=step, begin_ns=begin_ns, loss=value)
        if step % 5 == 0:
            save(root, step, value, manner)
            if manner.startswith("/"):
                save(pathlib.Path(manner), step, value, "careful")
            emit("checkpoint.committed", step=step, kind="periodic", path=str(root / "model"))
    emit("exiting", code=0, reason="completed", step=steps)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
