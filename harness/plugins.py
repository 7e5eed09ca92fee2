"""Finds plug-ins by their file names: for example, `harness/faults/hang.py` is the fault `hang`.

Other packages add plug-ins by entry points; docs/plugins.md has the rules, and `CONTRACT` is the rules' version.
"""

import functools
import importlib
import importlib.metadata
import pkgutil
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from harness.errors import UsageError, choice, described
from harness.extras import how_to_install

CONTRACT = 1  # a plug-in of another package has the same `CONTRACT`
_NO_PLUGIN = "contract"  # the one module beside the plug-ins that is none
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
# Packages to which others may add, by the entry-point group.
OPEN = {
    "chaos_harness.backends": "harness.backends",
    "chaos_harness.checkpoints": "harness.trainers.checkpoints",
    "chaos_harness.faults": "harness.faults",
    "chaos_harness.guarantees": "harness.judge.guarantees",
    "chaos_harness.readers": "harness.trainers.readers",
    "chaos_harness.trainers": "harness.trainers",
}
_GROUPS = {package: group for group, package in OPEN.items()}


@dataclass(frozen=True)
class Family:
    """All plug-ins of one kind, such as faults, of this package and of others. A plug-in is a module that defines the
    name `attribute`. With `part`, a plug-in is a folder whose module `part` defines this name. A plug-in is imported at
    its first use."""

    kind: str  # as messages say it: "fault"
    package: str
    attribute: str
    part: str = ""

    def names(self) -> tuple[str, ...]:
        """Returns the sorted names of all plug-ins. Raises `UsageError` if a name is invalid or not unique."""
        own = _names(tuple(importlib.import_module(self.package).__path__), self.part)
        added = self.added()
        for name in added:
            if name in own:
                file = f"{self.package}.{name}".replace(".", "/")
                raise UsageError(f"two plug-ins are called {self.kind} {name!r}: {file} and {_origin(added[name])}")
            if not _NAME.fullmatch(name):
                what = f"{_origin(added[name])}: {name!r} is no name of a {self.kind}"
                raise UsageError(f"{what}; use small letters, digits and _")
        return tuple(sorted((*own, *added)))

    def module(self, name: str) -> ModuleType:
        """Returns the module of a plug-in. Raises `UsageError` if a plug-in of another package cannot be used."""
        if name in (added := self.added()):
            return _outside(added[name], self.kind)
        return importlib.import_module(".".join(filter(None, (self.package, name, self.part))))

    def added(self) -> Mapping[str, importlib.metadata.EntryPoint]:
        """Returns other packages' plug-ins by name. Raises `UsageError` if two plug-ins have the same name."""
        return entry_points(_GROUPS[self.package]) if self.package in _GROUPS else {}

    def known(self, name: str, also: tuple[str, ...] = ()) -> str:
        """Checks and returns a plug-in's name. Raises `ValueError` if the name is neither known nor in `also`."""
        if name not in (*also, *self.names()):
            raise ValueError(f"unknown {self.kind} {name!r}; {choice(name, (*also, *self.names()))}")
        return name

    def sentence(self, name: str) -> str:
        return self._told(name).partition("\n")[0]

    def details(self, name: str) -> list[str]:
        """Returns all paragraphs but the first of the plug-in's docstring (limits and exceptions), one line each."""
        return [" ".join(each.split()) for each in self._told(name).split("\n\n")[1:]]

    def _told(self, name: str) -> str:
        """Returns the docstring of the plug-in, whose name may have `.` or `-` instead of `_`."""
        file = name.replace(".", "_").replace("-", "_")
        return self.module(file).__doc__ or ""

    def load(self, name: str) -> Any:
        """Imports a plug-in, and returns its `attribute`. Raises `UsageError` if plug-in or attribute is missing."""
        try:
            module = self.module(self.known(name))
        except ValueError as error:
            raise UsageError(str(error)) from None
        if not hasattr(module, self.attribute):
            file = module.__name__.replace(".", "/") + ".py"
            raise UsageError(f"{file} defines no {self.kind}: its {self.attribute} is missing")
        return getattr(module, self.attribute)


@functools.cache
def _names(path: tuple[str, ...], part: str) -> tuple[str, ...]:
    modules = [*pkgutil.iter_modules(path)]
    if part:
        return tuple(sorted(each.name for each in modules if each.ispkg and _has(each, part)))
    return tuple(sorted(each.name for each in modules if not each.ispkg and each.name != _NO_PLUGIN))


def _has(folder: pkgutil.ModuleInfo, part: str) -> bool:
    spec = folder.module_finder.find_spec(folder.name, None)
    places = spec.submodule_search_locations if spec else None
    return part in {each.name for each in pkgutil.iter_modules(places)}


# All entry points, read once: this process may not be able to import a package that is installed while it runs.
installed = functools.cache(importlib.metadata.entry_points)


@functools.cache
def entry_points(group: str) -> Mapping[str, importlib.metadata.EntryPoint]:
    """Returns the entry points of this group by name. Raises `UsageError` if two entry points have the same name."""
    known: dict[str, importlib.metadata.EntryPoint] = {}
    for each in sorted(installed().select(group=group), key=lambda point: (point.name, point.value)):
        if (other := known.setdefault(each.name, each)) is not each:
            both = f"{_origin(other)} and {_origin(each)}"
            raise UsageError(f"two of {group} are called {each.name!r}: {both}; remove one")
    return known


def _outside(point: importlib.metadata.EntryPoint, kind: str) -> ModuleType:
    what = f"the {kind} {point.name!r} of {_origin(point)}"
    try:
        module = importlib.import_module(point.module)
    except Exception as error:  # it is another's code
        raise UsageError(f"{what} cannot be loaded: {described(error)}; mend it or uninstall it") from error
    version = getattr(module, "CONTRACT", None)
    if version != CONTRACT:
        other = f"version {version!r}" if version is not None else "no version (its CONTRACT is missing)"
        raise UsageError(f"{what} is for {other} of the contract of plug-ins; this is version {CONTRACT}")
    return module


def _origin(point: importlib.metadata.EntryPoint) -> str:
    return f"{point.value} of {point.dist.name if point.dist else 'an unknown package'}"


def not_installed(group: str, before: str = "") -> str:
    """Returns why no entry point of this group is known, and how to install this package, or "" if any is known."""
    if entry_points(group):
        return ""
    return f"{before}none of {group} are known, as this package is not installed here: {how_to_install()}"
