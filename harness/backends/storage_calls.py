"""Disturbs a node's storage by calls to a process of the harness: the daemon of virtual nodes, or a helper on the
node."""

import abc
import contextlib
import pathlib
from collections.abc import Callable, Mapping

from harness.backends import run_folder
from harness.backends.contract import Disturbance
from harness.backends.node_base import Caller, NodeBase
from harness.errors import BackendError
from harness.node.rpc import Line
from harness.node.types import StorageAnswers, StorageRule


class StorageDisturbance(Disturbance):
    def __init__(self, lab: Caller, folder: str, number: int):
        self._lab, self._folder, self._number = lab, folder, number
        self._last: dict[str, int] = {}
        self._healed = False

    def heal(self) -> None:
        if self._healed or self._lab.ended:  # with the lab the kernel has undone everything
            return
        self.counts()
        self._lab.call("storage.remove", folder=self._folder, number=self._number)
        self._healed = True

    def counts(self) -> Mapping[str, int]:
        """Returns how many file operations a storage disturbance has changed so far or, after its end, in total."""
        if not self._healed:
            self._last = self._lab.call("storage.counts", folder=self._folder, number=self._number)
        return self._last


class StoringNode(NodeBase):
    @abc.abstractmethod
    def _storage(self) -> Caller: ...

    def disturb_storage(self, mount: str, rule: StorageRule) -> Disturbance:
        folder = str(self._run_dir / mount)
        storage = self._storage()
        number = storage.call("storage.add", folder=folder, node=self.key, rule=rule)
        return StorageDisturbance(storage, folder, number)

    def try_storage(self, mount: str, rule: StorageRule) -> StorageAnswers:
        folder = str(self._run_dir / mount)
        found = self._storage().call("storage.try_out", folder=folder, node=self.key, rule=rule)
        return StorageAnswers(found["tried"], found["refused"], found["delay_ns"] / 1e9)


def mount(lab: Line, run_dir: pathlib.Path, mounts: tuple[str, ...], recorded: tuple[str, ...] = ()) -> None:
    """Mounts a file system that can be disturbed over each folder in `mounts`, before nodes start. Makes the folders in
    `mounts` that are missing.

    The file operations in each folder of `recorded` are recorded in `recorded/<folder>` below the run's folder.
    """
    for name in mounts:
        folder, record = run_dir / name, run_dir / run_folder.RECORDS / name
        folder.mkdir(parents=True, exist_ok=True)
        if name in recorded:
            record.mkdir(parents=True)
        lab.call("storage.mount", folder=str(folder), record=str(record) if name in recorded else "")


def examine(open_lab: Callable[[], Line]) -> str | None:
    """Returns why a node's file operations cannot be disturbed here, with a remedy, or `None` if they can."""
    with contextlib.closing(open_lab()) as lab:
        try:
            return lab.call("storage.examine") or None
        except BackendError as error:
            return str(error)
