"""Names the places where checkpoints are saved: a directory that all nodes see, or a store outside of the nodes.

A store is a Python entry point of the group `chaos_harness.stores`.
"""

from dataclasses import dataclass

from harness.errors import choice
from harness.plugins import entry_points, not_installed

DIRECTORY = "directory"
GROUP = "chaos_harness.stores"


@dataclass(frozen=True)
class Store:
    """A store for checkpoints.

    `server` is a command prefix that runs the store until the command after it ends. `around` is a command prefix that
    gives a trainer access to the store. `place` is the URL of the checkpoints.
    """

    server: tuple[str, ...]
    around: tuple[str, ...]
    place: str


def check_store(name: str) -> str:
    """Returns `name` if it is `directory` or an installed store. Raises `ValueError` for any other name."""
    if name != DIRECTORY and name not in (known := entry_points(GROUP)):
        raise ValueError(f"unknown store {name!r}; {choice(name, (DIRECTORY, *known))}{not_installed(GROUP, '; ')}")
    return name


def load_store(name: str) -> Store:
    found: Store = entry_points(GROUP)[name].load()
    return found
