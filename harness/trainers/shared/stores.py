"""Names the places of checkpoints: a directory that all nodes see, or a store beside the nodes.

A store is an entry point of the group `chaos_harness.stores`.
"""

from dataclasses import dataclass

from harness.errors import choice
from harness.plugins import entry_points, not_installed

DIRECTORY = "directory"
GROUP = "chaos_harness.stores"


@dataclass(frozen=True)
class Store:
    """A store for checkpoints. `server`: the words before a command that run the store beside it, until either ends.
    `around`: the words before a trainer's command that give it access. `place`: the URL of its checkpoints."""

    server: tuple[str, ...]
    around: tuple[str, ...]
    place: str


def check_store(name: str) -> str:
    """Checks the name of a place for checkpoints: `directory` or a store. Raises `ValueError` for another name."""
    if name != DIRECTORY and name not in (known := entry_points(GROUP)):
        raise ValueError(f"unknown store {name!r}; {choice(name, (DIRECTORY, *known))}{not_installed(GROUP, '; ')}")
    return name


def load_store(name: str) -> Store:
    found: Store = entry_points(GROUP)[name].load()
    return found
