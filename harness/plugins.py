"""Plug-ins are found by their file names: `harness/faults/hang.py` is the fault `hang`. To add one, add a file.

What other packages may bring, too, is found by its entry point: one more line, in pyproject.toml.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.errors import UsageError, choice
from harness.extras import how_to_install

CONTRACT = "contract"  # the one module beside the plug-ins that is none


@dataclass(frozen=True)
class Family:
    """The plug-ins of one package. Each is a module of it that defines `attribute`.

    With `part`, each plug-in is a folder, and its module `part` defines the attribute. Nothing is imported before it
    is loaded.
    """

    kind: str  # as messages say it: "fault"
    package: str
    attribute: str
    part: str = ""

    def names(self) -> tuple[str, ...]:
        """Returns the names of all plug-ins, sorted."""
        return _names(tuple(importlib.import_module(self.package).__path__), self.part)

    def known(self, name: str, also: tuple[str, ...] = ()) -> str:
        """Returns the name. Raises `ValueError` for a name that is neither a plug-in nor in `also`."""
        if name not in (*also, *self.names()):
            raise ValueError(f"unknown {self.kind} {name!r}; {choice(name, (*also, *self.names()))}")
        return name

    def sentence(self, name: str) -> str:
        """Returns the first line of the plug-in's docstring."""
        return self._told(name).partition("\n")[0]

    def details(self, name: str) -> list[str]:
        """Returns the other paragraphs of the plug-in's docstring, one line each: limits and exceptions."""
        return [" ".join(each.split()) for each in self._told(name).split("\n\n")[1:]]

    def _told(self, name: str) -> str:
        """Returns the docstring. People read `fault.in_time` and `log-whole` for what a file's name joins by `_`."""
        file = name.replace(".", "_").replace("-", "_")
        return importlib.import_module(f"{self.package}.{file}").__doc__ or ""

    def load(self, name: str) -> Any:
        """Returns the attribute that the plug-in defines. Raises `UsageError` if plug-in or attribute is missing."""
        try:
            module = importlib.import_module(".".join(filter(None, (self.package, self.known(name), self.part))))
        except ValueError as error:
            raise UsageError(str(error)) from None
        if not hasattr(module, self.attribute):
            file = module.__name__.replace(".", "/") + ".py"
            raise UsageError(f"{file} defines no {self.kind}: its {self.attribute} is missing")
        return getattr(module, self.attribute)


@functools.cache
def _names(path: tuple[str, ...], part: str) -> tuple[str, ...]:
    if not part:
        found = [each.name for each in pkgutil.iter_modules(path) if not each.ispkg and each.name != CONTRACT]
    else:
        folders = [each for each in pkgutil.iter_modules(path) if each.ispkg]
        found = [each.name for each in folders if _has(each, part)]
    return tuple(sorted(found))


def _has(folder: pkgutil.ModuleInfo, part: str) -> bool:
    spec = folder.module_finder.find_spec(folder.name, None)
    places = spec.submodule_search_locations if spec else None
    return part in {each.name for each in pkgutil.iter_modules(places)}


@functools.cache
def entry_points(group: str) -> Mapping[str, importlib.metadata.EntryPoint]:
    """Returns those of this group by name; none where this package was not installed. Raises `UsageError` if two have
    the same name."""
    known: dict[str, importlib.metadata.EntryPoint] = {}
    for each in sorted(importlib.metadata.entry_points(group=group), key=lambda point: (point.name, point.value)):
        if (other := known.setdefault(each.name, each)) is not each:
            raise UsageError(
                f"two of {group} are called {each.name!r}: {_origin(other)} and {_origin(each)}; remove one"
            )
    return known


def _origin(point: importlib.metadata.EntryPoint) -> str:
    return f"{point.value} of {point.dist.name if point.dist else 'an unknown package'}"


def not_installed(group: str, before: str = "") -> str:
    """Says why no entry point of this group is known, and what helps. Empty if some are."""
    if entry_points(group):
        return ""
    return f"{before}none of {group} are known, as this package is not installed here: {how_to_install()}"
