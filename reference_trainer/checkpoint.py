"""Saves checkpoints atomically, and restores only checkpoints that it has verified.

A checkpoint is written to a temporary folder with a SHA-256 of each file in a manifest. Every file and the folder are
fsynced, and the folder is published by one atomic rename. An older checkpoint is deleted only after the new checkpoint
has been read back. The manifest has its own checksums, because common file formats load a tensor with a flipped bit
without an error. In data parallelism, all ranks hold the same model and optimizer state, so rank 0 writes for all,
without a collective in the background. A snapshot gathers the random states of all ranks, because random states differ
between ranks. An example of the folders:

    <root>/step-00000020/   manifest.json  .metadata  __0_0.distcp
    <root>/.tmp-step-00000040-4711-1c/    what a kill in the middle leaves behind; swept at the next start
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import pathlib
import re
import shutil
import stat
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import fsspec
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import CheckpointException, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from harness.events import Emitter, abnormal

State = dict[str, Any]  # flat: name → tensor or small picklable value

MANIFEST, VERSION = "manifest.json", 1
Metrics = Mapping[str, float]  # of the step whose state it is: loss, grad_norm, lr
FAILURES = (Exception, CheckpointException)  # PyTorch's own is no Exception
DOWNLOADS_MAX = 3  # of one checkpoint, before an older one is taken
SAVE_S_MAX = 5.0  # a save that takes longer is worth an alarm
LAG_S_MAX = 10.0  # a checkpoint that another node sees may still be on its way to this one


@dataclass(frozen=True)
class Restored:
    """The result of a restore. `state` is the training's state after `step` steps, or `None` for a start from scratch.
    `fallback` lists the newer checkpoints that were refused, with the reasons."""

    step: int
    source: str
    state: State | None
    fallback: list[dict[str, str]] = field(default_factory=list)


class DamagedCheckpoint(Exception):
    """Raised for a checkpoint that must not be used."""


def folder_name(step: int) -> str:
    return f"step-{step:08d}"


# One checkpoint on a local disk


def write(root: pathlib.Path, step: int, state: State, emit: Emitter, metrics: Metrics | None = None) -> pathlib.Path:
    """Writes and publishes one checkpoint, and returns its folder. Raises `DamagedCheckpoint` if the state is not
    finite or the checkpoint does not read back, and `OSError` or torch's error if writing fails."""
    refuse_nonfinite(state)  # or it would, in the end, push the good ones out
    temporary = _temporary(root, step)
    try:
        with emit.phase("checkpoint.write"):
            temporary.mkdir(parents=True)
            dcp.save(state, storage_writer=FileSystemWriter(temporary, sync_files=True), no_dist=True)
            emit.failpoint("checkpoint.shard_written", step=step, path=str(temporary))
            _write_manifest(temporary, step, metrics or {})
        emit.failpoint("checkpoint.before_publish", step=step, path=str(temporary))
        with emit.phase("checkpoint.publish"):
            return _publish(temporary, root / folder_name(step))
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # gone after a success; a failure must not fill the disk


def _publish(temporary: pathlib.Path, final: pathlib.Path) -> pathlib.Path:
    if final.exists():  # a damaged one that was passed over and is now made again
        os.rename(final, temporary.with_name(temporary.name + "-replaced"))
    os.rename(temporary, final)
    _fsync(final.parent)
    verify(final)
    return final


def _temporary(root: pathlib.Path, step: int) -> pathlib.Path:
    return root / f".tmp-{folder_name(step)}-{os.getpid()}-{time.monotonic_ns():x}"


def verify(folder: pathlib.Path) -> int:
    """Returns a checkpoint's size in bytes. Raises `DamagedCheckpoint` if the files contradict the manifest."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        version = manifest["version"]
        files = {name: (entry["bytes"], entry["sha256"]) for name, entry in manifest["files"].items()}
    except OSError as error:
        raise DamagedCheckpoint(f"{MANIFEST}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedCheckpoint(f"{MANIFEST}: not a manifest ({error!r})") from error
    if version != VERSION:
        raise DamagedCheckpoint(f"{MANIFEST}: version {version!r}; this trainer reads version {VERSION}")
    for name, (size, checksum) in files.items():
        if pathlib.PurePath(name).name != name or "\0" in name:
            raise DamagedCheckpoint(f"{MANIFEST}: {name!r} is no name of a file beside it")
        try:
            found = (folder / name).lstat()
            if not stat.S_ISREG(found.st_mode):
                raise DamagedCheckpoint(f"{name}: not a regular file")
            if found.st_size != size:
                raise DamagedCheckpoint(f"{name}: {found.st_size} bytes instead of {size}")
            if _sha256(folder / name) != checksum:
                raise DamagedCheckpoint(f"{name}: content does not match its checksum")
        except OSError as error:
            raise DamagedCheckpoint(f"{name}: {error.strerror}") from error
    return sum(size for size, _ in files.values())


def read(folder: pathlib.Path) -> State:
    """Returns the state in a verified checkpoint. The reading job can have another world size than the saving job."""
    content = FileSystemReader(folder).read_metadata().state_dict_metadata
    state: State = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        if isinstance(entry, TensorStorageMetadata)
        else None
        for name, entry in content.items()
    }
    dcp.load(state, checkpoint_id=folder, no_dist=True)
    return state


def refuse_nonfinite(state: State) -> None:
    """Raises `DamagedCheckpoint` if weights or optimizer state are infinite or NaN, which no checksum detects."""
    for name, value in state.items():
        if isinstance(value, Tensor) and value.is_floating_point() and not value.isfinite().all():
            raise DamagedCheckpoint(f"{name} holds numbers that are not finite")


def published(root: pathlib.Path) -> list[pathlib.Path]:
    return sorted((folder for folder in root.glob("step-*") if _NAME.fullmatch(folder.name)), reverse=True)


_NAME = re.compile(r"step-[0-9]{1,12}")


def step_of(folder: pathlib.PurePath) -> int:
    return int(folder.name.removeprefix("step-"))


def _write_manifest(folder: pathlib.Path, step: int, metrics: Metrics) -> None:
    files = {file.name: {"bytes": file.stat().st_size, "sha256": _sha256(file)} for file in sorted(folder.iterdir())}
    for name in files:
        _fsync(folder / name)
    with (folder / MANIFEST).open("w") as file:
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        content = {"version": VERSION, "step": step, "metrics": finite, "files": files}
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    _fsync(folder)


def _sha256(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fsync(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Copies that outlive this node's disk


class SharedFolder:
    """Checkpoints in a folder that every node sees, copied from checkpoints on this node's own disk."""

    def __init__(self, folder: str):
        self._folder = pathlib.Path(folder)

    def steps(self) -> list[int]:
        return [step_of(folder) for folder in published(self._folder)]

    def upload(self, folder: pathlib.Path) -> None:
        """Copies a checkpoint to the shared folder and verifies the copy. Raises `OSError` or `DamagedCheckpoint` if
        the copy fails."""
        temporary = _temporary(self._folder, step_of(folder))
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            shutil.copytree(folder, temporary)
            for file in (*temporary.iterdir(), temporary):
                _fsync(file)
            _publish(temporary, self._folder / folder.name)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def download(self, step: int, root: pathlib.Path) -> None:
        """Copies a checkpoint from the shared folder to this node's disk. The caller must verify the copy."""
        temporary = _temporary(root, step)
        _wait_for(self._folder / folder_name(step))
        shutil.copytree(self._folder / folder_name(step), temporary)
        os.rename(temporary, root / folder_name(step))

    def delete(self, step: int) -> None:
        shutil.rmtree(self._folder / folder_name(step))

    def sweep(self) -> None:
        for leftover in self._folder.glob(".tmp-*"):
            shutil.rmtree(leftover, ignore_errors=True)


class Remote:
    """Checkpoints at an fsspec URL. The manifest is uploaded last, because a checkpoint without a manifest does not
    count."""

    def __init__(self, url: str):
        self._files, self._root = fsspec.core.url_to_fs(url)

    def steps(self) -> list[int]:
        self._files.invalidate_cache()
        found = (pathlib.PurePosixPath(path).parent for path in self._files.glob(f"{self._root}/step-*/{MANIFEST}"))
        return sorted((step_of(folder) for folder in found if _NAME.fullmatch(folder.name)), reverse=True)

    def upload(self, folder: pathlib.Path) -> None:
        """Uploads a verified local checkpoint and reads it back. Raises `OSError` or `DamagedCheckpoint` if the upload
        fails or the checkpoint does not read back."""
        target = f"{self._root}/{folder.name}"
        names = sorted((file.name for file in folder.iterdir()), key=lambda name: name == MANIFEST)
        self._files.makedirs(target, exist_ok=True)
        for name in names:
            self._files.put_file(str(folder / name), f"{target}/{name}")
        for name in names:
            if not self._reads_back(f"{target}/{name}", _sha256(folder / name)):
                self._files.rm_file(f"{target}/{MANIFEST}")
                raise DamagedCheckpoint(f"{target}/{name}: does not read back as it was uploaded")

    def _reads_back(self, path: str, digest: str) -> bool:
        read = (hashlib.sha256(self._files.cat_file(path)).hexdigest() for _ in range(DOWNLOADS_MAX))
        return digest in read

    def download(self, step: int, root: pathlib.Path) -> None:
        """Downloads a checkpoint to this node's disk. The caller must verify the checkpoint."""
        temporary = _temporary(root, step)
        self._files.get(f"{self._root}/{folder_name(step)}/", f"{temporary}/", recursive=True)
        os.rename(temporary, root / folder_name(step))

    def delete(self, step: int) -> None:
        self._files.rm(f"{self._root}/{folder_name(step)}", recursive=True)

    def sweep(self) -> None:
        """Removes nothing, because an upload without its manifest does not count as a checkpoint."""


# What the training loop uses


class Checkpoints:
    """Saves checkpoints in the background, and restores checkpoints, for all ranks of a job.

    `location` is a folder that every node sees, or an fsspec URL. With `staging`, a folder on this node's own disk,
    each checkpoint is written to `staging` and then copied to `location`. An fsspec URL needs `staging`.
    """

    def __init__(self, location: str, staging: str | None, keep: int, emit: Emitter):
        # That is what we want: rank 0 writes without asking anybody.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        shared = SharedFolder(location) if staging else None
        self._remote = Remote(location) if "://" in location else shared
        self.root = pathlib.Path(staging or "checkpoints") if self._remote else pathlib.Path(location)
        self._keep = keep
        self._emit = emit
        self._writer: threading.Thread | None = None
        self.committed_step = self._begun_step = -1

    # Saving

    def save(self, kind: str, step: int, state: State, metrics: Metrics | None = None) -> None:
        """Starts to write `state` in a thread. Must run on rank 0 only.

        The caller must not change `state` any more. The checkpoint's manifest stores the `metrics`. A failed save is
        logged, but not tried again. A save fails if the previous save is still running.
        """
        self._begun_step = step
        self._emit("checkpoint.started", step=step, kind=kind)
        if self._writer and self._writer.is_alive():
            reason = "skipped: the previous checkpoint is still being written"
            return self._emit_failed(step, kind, reason)
        self._writer = threading.Thread(
            target=self._write, args=(kind, step, state, metrics), name="checkpoint", daemon=True
        )
        self._writer.start()

    def has_begun(self, step: int) -> bool:
        return step == self._begun_step or step in self._published()

    def wait(self, timeout_s: float | None = None) -> None:
        if self._writer:
            self._writer.join(timeout_s)

    def _write(self, kind: str, step: int, state: State, metrics: Metrics | None) -> None:
        begin_ns = time.monotonic_ns()
        late = threading.Timer(SAVE_S_MAX, self._tell_late, (step,))
        late.daemon = True
        late.start()
        try:
            folder = write(self.root, step, state, self._emit, metrics)
            if self._remote:
                self._remote.upload(folder)
            self.committed_step = step
            size = sum(file.stat().st_size for file in folder.iterdir())
            source = folder_name(step) if self._remote else str(folder)
            duration_ns = time.monotonic_ns() - begin_ns
            self._emit("checkpoint.committed", step=step, kind=kind, path=source, bytes=size, duration_ns=duration_ns)
            self._delete_old()
        except FAILURES as error:  # whatever it was, training goes on and the next interval tries again
            traceback.print_exc()
            self._emit_failed(step, kind, _reason(error))
        finally:
            late.cancel()

    def _tell_late(self, step: int) -> None:
        why = f"after {SAVE_S_MAX:g} s the storage has not taken the checkpoint of step {step}"
        self._emit("anomaly", kind=abnormal.CHECKPOINT_LATE, detail=why, at_step=step)
        self._emit("diagnosis", kind="storage", decision="ignore", why=why)

    def _emit_failed(self, step: int, kind: str, reason: str) -> None:
        self._emit("checkpoint.failed", step=step, kind=kind, error=reason)

    def _delete_old(self) -> None:
        for folder in published(self.root)[self._keep :]:
            shutil.rmtree(folder)
        for leftover in self.root.glob(".tmp-*-replaced"):
            shutil.rmtree(leftover)
        if self._remote:
            for step in self._remote.steps()[self._keep :]:
                self._remote.delete(step)

    # Restoring

    def restore(self) -> Restored:
        """Returns the newest checkpoint that is valid on *every* rank, and lists the newer checkpoints that were
        refused. All ranks must call `restore` together."""
        fallback: list[dict[str, str]] = []
        candidates = iter(self._seen_anywhere())
        while True:
            choice: list[Any] = [self._first_valid(candidates, fallback)] if dist.get_rank() == 0 else [None]
            dist.broadcast_object_list(choice)
            step, fallback = choice[0]
            if step is None:
                return Restored(0, "scratch", None, fallback)
            state, problem = self._try_read(step)
            problems: list[str | None] = [None] * dist.get_world_size()
            dist.all_gather_object(problems, problem)
            if not any(problems):
                self.committed_step = step
                return Restored(step, str(self.root / folder_name(step)), state, fallback)
            reason = next(f"rank {rank}: {text}" for rank, text in enumerate(problems) if text)
            fallback.append({"source": str(self.root / folder_name(step)), "reason": reason})

    def forget_after(self, step: int) -> bool:
        """Deletes the checkpoints of steps after `step`. If no checkpoint of `step` or an earlier step exists, deletes
        nothing and returns False. All ranks must call `forget_after` together, while no save is running."""
        seen = self._seen_anywhere()
        if not any(each <= step for each in seen):
            return False
        here = int(os.environ.get("LOCAL_RANK", "0")) if self._remote else dist.get_rank()
        for late in (each for each in seen if each > step):
            if here == 0:
                shutil.rmtree(self.root / folder_name(late), ignore_errors=True)
            if self._remote and dist.get_rank() == 0:
                self._remote.delete(late)
        dist.barrier()
        return True

    def sweep(self) -> None:
        """Removes temporary folders of killed writers. Must run on rank 0, when no writer can be alive."""
        for leftover in self.root.glob(".tmp-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        if self._remote:
            self._remote.sweep()

    def _seen_anywhere(self) -> list[int]:
        """Returns the steps whose checkpoint at least one rank sees, the newest first. All ranks must call
        `_seen_anywhere` together."""
        mine: list[int] = []
        if dist.get_rank() == 0:
            mine = self._published()
        elif not self._remote:
            with contextlib.suppress(OSError):  # then the others know
                mine = [step_of(folder) for folder in published(self.root)]
        seen: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(seen, mine)
        return sorted(set().union(*seen), reverse=True)

    def _published(self) -> list[int]:
        return self._remote.steps() if self._remote else [step_of(folder) for folder in published(self.root)]

    def _first_valid(
        self, candidates: Iterator[int], fallback: list[dict[str, str]]
    ) -> tuple[int | None, list[dict[str, str]]]:
        for step in candidates:
            try:
                self._fetch(step)
                return step, fallback
            except (DamagedCheckpoint, OSError) as error:
                fallback = [*fallback, {"source": str(self.root / folder_name(step)), "reason": str(error)}]
        return None, fallback

    def _fetch(self, step: int) -> None:
        folder = self.root / folder_name(step)
        if self._remote is None:
            _wait_for(folder)
            verify(folder)
            return
        for tries in range(DOWNLOADS_MAX):  # a store may send less than it has, with status 200
            try:
                verify(folder)
                return
            except DamagedCheckpoint as error:
                if tries:
                    why = f"the checkpoint of step {step} came damaged, and is fetched again: {error}"
                    self._emit("diagnosis", kind="storage", decision="ignore", why=why)
                shutil.rmtree(folder, ignore_errors=True)
                self._remote.download(step, self.root)
        verify(folder)

    def _try_read(self, step: int) -> tuple[State | None, str | None]:
        try:
            self._fetch_for_node(step)
            state = read(self.root / folder_name(step))
            refuse_nonfinite(state)
            return state, None
        except FAILURES as error:  # of whatever kind: this checkpoint is not for us
            return None, _reason(error)

    def _fetch_for_node(self, step: int) -> None:
        if self._remote is None:
            return _wait_for(self.root / folder_name(step))
        try:
            if int(os.environ.get("LOCAL_RANK", "0")) == 0:
                self._fetch(step)
        finally:
            dist.barrier()


def _reason(error: BaseException) -> str:
    if isinstance(error, CheckpointException):
        error, _ = next(iter(error.failures.values()))
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _wait_for(folder: pathlib.Path) -> None:
    """Waits for a path, because shared folders can lag. Raises `DamagedCheckpoint` after `LAG_S_MAX` seconds."""
    deadline = time.monotonic() + LAG_S_MAX
    while not folder.exists():
        if time.monotonic() > deadline:
            raise DamagedCheckpoint(f"another rank sees it, but on this node it is not there after {LAG_S_MAX:g} s")
        time.sleep(0.05)


def copy_to_host(state: State) -> State:
    return {
        name: value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value
        for name, value in state.items()
    }
