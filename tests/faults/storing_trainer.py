"""A trainer without torch that saves often: each checkpoint a folder with a checksum, published by a rename."""

import hashlib
import os
import pathlib
import sys
import time

from harness.node.emitter import Emitter

DATA_BYTES = 200_000


def save(root: pathlib.Path, step: int) -> None:
    temporary, final = root / f".tmp-{step}", root / f"step-{step:08d}"
    temporary.mkdir(exist_ok=True)
    data = hashlib.shake_256(str(step).encode()).digest(DATA_BYTES)
    for name, content in (("data.bin", data), ("manifest", hashlib.sha256(data).hexdigest().encode())):
        with (temporary / name).open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    temporary.rename(final)
    root.stat()


def newest(root: pathlib.Path) -> int:
    for folder in sorted(root.glob("step-*"), reverse=True):
        content = {name: (folder / name).read_bytes() for name in ("data.bin", "manifest") if (folder / name).exists()}
        if hashlib.sha256(content.get("data.bin", b"")).hexdigest().encode() == content.get("manifest"):
            return int(folder.name[5:])
    return 0


def main(run_dir: str, steps: int) -> None:
    root = pathlib.Path(run_dir) / "checkpoints"
    emit = Emitter.open("trainer", rank=0, local_rank=0, world_size=1)
    emit("started")
    emit("rendezvous", world_size=1)
    restored = newest(root)
    emit("restored", step=restored, source="scratch", fallback=[])
    begin_ns = time.monotonic_ns()
    for step in range(restored + 1, steps + 1):
        time.sleep(0.02)
        begin_ns = emit("step", step=step, begin_ns=begin_ns, loss=1.0 / step)
        if step % 5 == 0:
            try:
                save(root, step)
                emit("checkpoint.committed", step=step, kind="periodic", path="", bytes=DATA_BYTES, duration_ns=0)
            except OSError as error:
                emit("checkpoint.failed", step=step, kind="periodic", error=os.strerror(error.errno or 0))
    emit("exiting", code=0, reason="completed", step=steps)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
