"""A trainer without torch that saves archives as `torch.save` does, one file each, and a pointer to the newest.

`trusting` loads what the pointer names, whatever its bytes are. `careful` verifies a checksum of each, and falls back.
"""

import hashlib
import os
import pathlib
import struct
import sys
import time
import zipfile

from harness.node.emitter import Emitter

ELEMENTS = 2000


def save(root: pathlib.Path, step: int, value: float) -> None:
    final, temporary = root / f"ckpt_{step}.pt", root / f"ckpt_{step}.pt.tmp"
    with zipfile.ZipFile(temporary, "w") as archive:
        archive.writestr("ckpt/data.pkl", b"\x80\x02}.")
        archive.writestr("ckpt/data/0", struct.pack("<d", value) * ELEMENTS)
    content = temporary.read_bytes()
    temporary.rename(final)
    (root / f"ckpt_{step}.sum").write_text(hashlib.sha256(content).hexdigest())
    (root / "latest.tmp").write_text(final.name)
    (root / "latest.tmp").rename(root / "latest")


def load(path: pathlib.Path) -> float:
    """Reads as torch does: the archive's checksums are not looked at."""
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("ckpt/data/0")
    content = path.read_bytes()[info.header_offset + 30 + len(info.filename) :][: info.file_size]
    return sum(struct.unpack(f"<{ELEMENTS}d", content))


def newest(root: pathlib.Path, careful: bool) -> tuple[int, float, list[dict[str, str]]]:
    if not careful:
        if not (root / "latest").exists():
            return 0, 0.0, []
        path = root / (root / "latest").read_text()
        return int(path.stem[5:]), load(path), []
    passed = list[dict[str, str]]()
    for path in sorted(root.glob("ckpt_*.pt"), key=lambda path: int(path.stem[5:]), reverse=True):
        expected = path.with_suffix(".sum")
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if expected.exists() and expected.read_text() == found:
            return int(path.stem[5:]), load(path), passed
        passed.append({"source": str(path), "reason": "damaged"})
    return 0, 0.0, passed


def main(run_dir: str, steps: int, manner: str) -> None:
    root = pathlib.Path(run_dir) / "checkpoints"
    emit = Emitter.open("trainer", rank=0, local_rank=0, world_size=1)
    emit("started")
    emit("rendezvous", world_size=1)
    restored, value, fallback = newest(root, manner == "careful")
    emit("restored", step=restored, source=str(root / f"ckpt_{restored}.pt"), fallback=fallback)
    begin_ns = time.monotonic_ns()
    for step in range(restored + 1, steps + 1):
        time.sleep(0.03)
        value = 1000.0 + value / 3
        begin_ns = emit("step", step=step, begin_ns=begin_ns, loss=value)
        if step % 10 == 0:
            save(root, step, value / ELEMENTS)
            emit("checkpoint.committed", step=step, kind="periodic", path=str(root / f"ckpt_{step}.pt"))
    emit("exiting", code=0, reason="completed", step=steps)


if __name__ == "__main__":
    os.umask(0o022)
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
