"""Runs the `install` function of each observer once the module that the observer hooks is imported.

A finder at the front of `sys.meta_path` wraps the loader of each module that an observer hooks. Before a module's code
runs, the finder puts the module's own loader back. Observers are imported only after torch.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import time
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.node.observer.watch import Watch

ROOT = "torch"  # with its import the observation begins

Imported = Callable[[ModuleType], None]


class Finder(MetaPathFinder):
    """Calls `callbacks[name]` with the module of this name, after the module's code has run."""

    def __init__(self) -> None:
        self.callbacks: dict[str, list[Imported]] = {}
        self._finding: set[str] = set()

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in self.callbacks or name in self._finding:
            return None
        self._finding.add(name)
        try:
            spec = _found_by_others(self, name, path, target)
        finally:
            self._finding.discard(name)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            assert spec.loader is not None
            spec.loader = _Telling(spec.loader, self)
        return spec

    def imported(self, module: ModuleType) -> None:
        for callback in self.callbacks.pop(module.__name__, ()):
            callback(module)


def _found_by_others(
    me: MetaPathFinder, name: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        spec = find(name, path, target) if finder is not me and find is not None else None
        if spec is not None:
            return spec  # type: ignore[no-any-return]
    return None


class _Telling(Loader):
    def __init__(self, real: Loader, finder: Finder):
        self._real, self._finder = real, finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._real
        module.__loader__ = self._real
        self._real.exec_module(module)
        self._finder.imported(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def wait() -> None:
    """Starts the observation at the next `import torch`, or at once if torch is already imported (as in a forked
    process)."""
    finder, process_began = Finder(), (time.time_ns(), time.monotonic_ns())

    def torch_imported(_: ModuleType) -> None:
        try:
            from harness.node.observer import told_by_hand
            from harness.node.observer.watch import Watch

            watch = Watch(process_began)
            told_by_hand.notice()
            package = importlib.import_module("harness.node.observer.signals")
            for found in sorted(pkgutil.iter_modules(package.__path__), key=lambda found: found.name):
                _place(finder, watch, found.name, f"{package.__name__}.{found.name}")
        except Exception as error:  # the training goes on without us, and the log without its events shows it
            print(f"chaos: this process is not observed: {type(error).__name__}: {error}", file=sys.stderr)

    finder.callbacks[ROOT] = [torch_imported]
    sys.meta_path.insert(0, finder)
    if ROOT in sys.modules:
        finder.imported(sys.modules[ROOT])


def _place(finder: Finder, watch: Watch, name: str, module: str) -> None:
    try:
        signal = importlib.import_module(module)
    except Exception as error:
        return watch.missing(name, error)
    after = signal.AFTER
    for waited in (after,) if isinstance(after, str) else after:
        install = _installer(watch, name, signal)
        if waited in sys.modules:
            install(sys.modules[waited])
        else:
            finder.callbacks.setdefault(waited, []).append(install)


def _installer(watch: Watch, name: str, signal: ModuleType) -> Imported:
    def install(module: ModuleType) -> None:
        try:
            signal.install(watch, module)
        except Exception as error:
            watch.missing(name, error)
        else:
            watch.tells.update(getattr(signal, "TELLS", ()))

    return install
