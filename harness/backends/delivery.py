"""Makes a zip archive of the harness's own programs for nodes (`harness/node/`), from which Python can import them.

A node needs only `python3` to run the programs in the archive. The archive is on the import path of every trainer, so
that `from harness.events import Emitter` works in a trainer.
"""

import functools
import hashlib
import io
import pathlib
import py_compile
import zipfile
from collections.abc import Iterator

from harness.backends.contract import Launch
from harness.node import boot, owner_names

NAME = "delivered.zip"
TRAINER = "reference_trainer"
_CONTENT = (
    "harness/__init__.py",
    "harness/errors.py",
    "harness/events.py",
    "harness/node/**/*.py",
    "harness/object_store/__init__.py",
    "harness/object_store/dialects.py",
    "harness/object_store/s3_*.py",
)
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip archive can hold: the same source makes the same archive


def sources() -> dict[str, pathlib.Path]:
    """Maps the path of each file in the archive for nodes to the file's path on this machine."""
    root = pathlib.Path(boot.place())
    found = sorted(path for pattern in _CONTENT for path in root.glob(pattern))
    return {str(path.relative_to(root)): path for path in found}


@functools.cache
def archive() -> bytes:
    """Returns the zip archive for nodes: the harness's source files, and the bytecode that this Python interpreter
    compiles from them. A node with another version of Python ignores the bytecode."""
    buffer = io.BytesIO()
    with owner_names.temporary_folder() as folder, zipfile.ZipFile(buffer, "w") as target:
        for name, content in _members(folder / "compiled"):
            target.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED, compresslevel=9)
    return buffer.getvalue()


def _members(scratch: pathlib.Path) -> Iterator[tuple[str, bytes]]:
    for name, path in sources().items():
        yield name, path.read_bytes()
        # Not checked against its source when it is loaded: the archive is the check, and file times do not matter.
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(str(path), str(scratch), name, doraise=True, invalidation_mode=mode)
        yield f"{name}c", scratch.read_bytes()


def digest() -> str:
    return hashlib.sha256(archive()).hexdigest()


def deliver(run_dir: pathlib.Path) -> pathlib.Path:
    """Puts the archive into the run's folder, from where nodes read it. A node never sees an incomplete archive,
    because the finished file is renamed into place."""
    fresh, place = run_dir / f"{NAME}.new", run_dir / NAME
    fresh.write_bytes(archive())
    return fresh.replace(place)


def runs_reference_trainer(workload: Launch) -> bool:
    return any(word.startswith(TRAINER) for word in (*workload.command, *(workload.control or ())))


def trainer_digest() -> str:
    return boot.trainer_digest([boot.place()])
