"""Observes loads of checkpoints, and logs the event `restored` once loaded state is in a model or an optimizer.

The observer remembers the storages of loaded tensors, and recognises loaded state in a model or optimizer by these
storages or, for copies, by equal elements. The restored step comes from the first source that knows the step: the list
of saved checkpoints, the framework, the optimizer's step count, or an entry in the checkpoint. The event `restored`
omits an unknown step.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.node.observer import identity, tensors
from harness.node.observer.checkpoint_ledger import Began, Committed, Ledger, Saved
from harness.node.observer.live_state import Live
from harness.node.observer.next_step import Next
from harness.node.observer.watch import Watch

STEP_ENTRIES = (
    *("global_step", "global_steps", "step", "iteration", "iter_num", "iter", "num_steps", "steps", "current_step"),
)
LOADS_MAX = 64  # that are remembered; each holds no memory of the tensors
LOOKS_MAX = 64  # loads that are looked up in the ledger at once: others read their data this way
PARTS_MAX = 1000  # of a checkpoint, that are told
POINTS_MAX = 64  # tensors of one load that are known by their elements
MODEL, OPTIMIZER = "model", "optimizer"


@dataclass
class Load:
    """A checkpoint file or DCP folder that was loaded. `source` is the path of the checkpoint, or the name of the peer
    that sent the checkpoint."""

    source: str
    lineage: str | None = None
    own_step: int | None = None
    committed: dict[str, Any] | None = None  # its checkpoint, as `restored` tells it
    points: set[Any] = field(default_factory=set)
    tags: list[Any] = field(default_factory=list)  # keep the names of its storages from being used again


class Restores:
    def __init__(self, watch: Watch, ledger: Ledger, live: Live):
        self.watch, self.ledger, self.live = watch, ledger, live
        self.framework_step: int | None = None
        self._loads: list[Load] = []
        self._of_storage: dict[int, Load] = {}
        self._entered: dict[str, list[Load]] = {}  # by what it entered
        self._refused: list[dict[str, str]] = []
        self._during = threading.local()
        self._first = True
        self._looks = 0
        self._next = Next(watch, watch.guard("restores")(self.told))
        self._next.expect()

    def await_step(self) -> None:
        """Delays the event `restored` until just before an optimizer's step, because loaded state may still be
        replaced."""
        self._next.steps_only = True

    # Loading

    def loaded(self, source: str, value: Any, lineage: str | None = None) -> Load:
        """Records that a checkpoint's file was read. The observer recognises the file's tensors until they are
        freed."""
        load = Load(source, lineage or identity.lineage(source), _own_step(value))
        self.tag(load, value)
        self._looks += 1
        if self._looks <= LOOKS_MAX:
            load.committed = _committed([load], self.ledger.entries())
        return load

    def tag(self, load: Load, value: Any) -> None:
        for tensor in tensors.tensors_in(value):
            name = tensors.storage(tensor)
            if name is not None:
                load.tags.append(tensors.weak(tensor))
                self._of_storage[name] = load
            if len(load.points) < POINTS_MAX and (known := tensors.points(tensor)):
                load.points.add(known)
        if load.tags:
            self._loads.append(load)
            while len(self._loads) > LOADS_MAX:
                gone = self._loads.pop(0)
                self._of_storage = {name: kept for name, kept in self._of_storage.items() if kept is not gone}

    def refused(self, source: str, error: BaseException) -> None:
        """Records that one of this run's checkpoints could not be loaded. The next event `restored` contains the
        reason."""
        known: list[str] = []
        for entry in self.ledger.entries():
            if isinstance(entry, (Saved, Committed)):
                known.append(entry.path)
            if isinstance(entry, Committed):
                known += _files(entry, entry.root)
        if source in known:
            self._refused.append({"source": source, "reason": f"{type(error).__name__}: {error}"[:1000]})

    @contextlib.contextmanager
    def during(self, load: Load) -> Iterator[None]:
        """Attributes all state that enters a model or an optimizer during the `with` block to this load."""
        outer = getattr(self._during, "load", None)
        self._during.load = load
        try:
            yield
        finally:
            self._during.load = outer

    # Entering

    def whence(self, state: Any) -> list[Load]:
        current = getattr(self._during, "load", None)
        if current is not None:
            return [current]
        found: dict[int, Load] = {}
        untagged = []
        for tensor in tensors.tensors_in(state) if self._loads else ():
            load = self._of_storage.get(tensors.storage(tensor) or -1)
            if load is not None:
                found[id(load)] = load
            else:
                untagged.append(tensor)
        if found:
            return list(found.values())
        # Else it is the last load that has one of these tensors as a copy.
        known = {each for tensor in untagged[:POINTS_MAX] if (each := tensors.points(tensor))}
        return next(([load] for load in reversed(self._loads) if known & load.points), [])

    def entered(self, part: str, loads: list[Load]) -> None:
        if not self._entered:
            self.watch.state_replaced()
        mine = self._entered.setdefault(part, [])
        mine += [load for load in loads if load not in mine]
        self._next.expect()

    def took(self, load: Load, value: Any) -> None:
        """Records whether a load wrote in place into the model's tensors, the optimizers' tensors, or both."""
        load.own_step = _own_step(value)
        self.tag(load, value)
        names = {tensors.storage(tensor) for tensor in tensors.tensors_in(value)}
        parameters = {tensors.storage(tensor) for tensor in self.live.parameters()}
        if names & parameters:
            self.entered(MODEL, [load])
        if names & (self.live.storages() - parameters):
            self.entered(OPTIMIZER, [load])

    # Telling

    def told(self) -> None:
        entered, self._entered = self._entered, {}
        first, self._first = self._first, False
        if entered:
            self._tell(entered)
        elif first:
            self._began()

    def _tell(self, entered: Mapping[str, list[Load]]) -> None:
        entries = self.ledger.entries()
        loads = [load for part in (MODEL, OPTIMIZER) for load in reversed(entered.get(part, []))]  # the last one first
        steps = self._steps(loads, entries, OPTIMIZER in entered)
        for source, step in steps.items():
            self.watch.offer_step(source, step)
        saved = next((found for load in loads if (found := _saved(load, entries))), None)
        self.watch.each_alone = saved.each_alone if saved else self.watch.each_alone
        told: dict[str, Any] = {"entered": sorted(entered)}
        known = [load.committed for load in loads if load.committed]
        if committed := next(iter(known), None) or _committed(loads, entries):
            told |= committed
            parts = sorted({each["source"] for each in known})
            told |= {"parts": parts[:PARTS_MAX]} if len(parts) > 1 else {}
        else:
            content = identity.of(identity.files_below(loads[0].source))
            told |= {"source": loads[0].source} | ({"content": content.digest} if content else {})
        if steps:
            source = next(iter(steps))
            told |= {"step": steps[source], "step_by": source}
        if self._refused:
            told["fallback"], self._refused = self._refused, []
        self.framework_step = None
        self.watch.emit("restored", **told)

    def _steps(self, loads: list[Load], entries: list[Any], with_optimizer: bool) -> dict[str, int]:
        found = {
            "ledger": next((found.step for load in loads if (found := _saved(load, entries))), None),
            "framework": self.framework_step,
            "optimizer": self.live.count() if with_optimizer else None,
            "checkpoint": next((load.own_step for load in loads if load.own_step is not None), None),
        }
        saved = any(isinstance(entry, (Saved, Committed)) for entry in entries)
        if not (saved or with_optimizer or any(step is not None for step in found.values())):
            found["checkpoint"] = 0  # weights from elsewhere, before this run has saved anything: training begins
        return {source: step for source, step in found.items() if step is not None}

    def _began(self) -> None:
        """Logs the event `restored` for a process that loaded no checkpoint, with the framework's step, step 0 or no
        step."""
        rank = self.watch.rank or 0
        known = (tensors.points(tensor) for tensor in self.live.parameters())
        state = identity.text_of(repr([each for each in known if each][:POINTS_MAX]))
        before = [entry for entry in self.ledger.entries() if isinstance(entry, Began) and entry.rank == rank]
        if self.framework_step:
            self.watch.state_replaced()
            self.watch.offer_step("framework", self.framework_step)
            self.watch.emit("restored", step=self.framework_step, step_by="framework")
        elif not before or state in {entry.state for entry in before} or self.framework_step == 0:
            fallback = {"fallback": self._refused} if self._refused else {}
            self._refused = []
            self.watch.emit("restored", step=0, source="scratch", **fallback)
        else:
            self.watch.state_replaced()
            self.watch.emit("restored")
        self.framework_step = None
        self.ledger.add(Began(rank, state))


def _own_step(value: Any) -> int | None:
    for name in STEP_ENTRIES if isinstance(value, Mapping) else ():
        step = value.get(name)
        step = step.item() if hasattr(step, "item") and getattr(step, "numel", lambda: 0)() == 1 else step
        if isinstance(step, int) and not isinstance(step, bool) and step >= 0:
            return step
    return None


def _saved(load: Load, entries: list[Any]) -> Saved | None:
    saved = (entry for entry in reversed(entries) if isinstance(entry, Saved) and entry.lineage == load.lineage)
    return next((entry for entry in saved if entry.step is not None), None)


def _files(commit: Committed, root: str) -> list[str]:
    return [os.path.join(root, name) for name in commit.files]


def _committed(loads: list[Load], entries: list[Any]) -> dict[str, Any] | None:
    """Returns the checkpoint to which loaded files belong: its path, its content digest now, and its digest when it was
    saved. Call `_committed` right after a load, because the job may soon save another checkpoint under the same
    name."""
    commits = [entry for entry in reversed(entries) if isinstance(entry, Committed)]
    for load, by_path, commit in itertools.product(loads, (True, False), commits):
        root = _root_now(commit, load, by_path)
        if root is not None:
            files = _files(commit, root)
            found = identity.of(files)
            gone = [name for name, file in zip(commit.files, files) if not os.path.isfile(file)]
            path = os.path.normpath(os.path.join(root, os.path.relpath(commit.path, commit.root)))
            content = found.digest if found else f"missing: {', '.join(gone)}"[:1000]
            return {"source": path, "saved": commit.content, "content": content}
    return None


def _root_now(commit: Committed, load: Load, by_path: bool) -> str | None:
    file = os.path.join(load.source, identity.DCP_METADATA) if os.path.isdir(load.source) else load.source
    for name, lineage in zip(commit.files, commit.lineages):
        if by_path and os.path.join(commit.root, name) == file:
            return commit.root
        if not by_path and lineage and lineage == load.lineage and file.endswith("/" + name):
            return file[: -len(name) - 1]
    return None
