"""Groups files by the names of folders, or by the contents of folders and files."""

import re
from collections.abc import Callable, Iterable

from harness.trainers.checkpoints.shared.checkpoint_folder import CheckpointFolder


def folders_named(place: CheckpointFolder, pattern: re.Pattern[str]) -> dict[str, list[str]]:
    """Maps the outermost folders whose names match a pattern to all files below them."""
    found: dict[str, list[str]] = {}
    for path in place.files:
        parts = path.split("/")
        depth = next((number for number, part in enumerate(parts[:-1]) if pattern.fullmatch(part)), None)
        if depth is not None:
            found.setdefault("/".join(parts[: depth + 1]), []).append(path)
    return found


def beside(found: dict[str, list[str]], marked: Callable[[str, list[str]], bool]) -> dict[str, list[str]]:
    folders = {path.rpartition("/")[0] for path, files in found.items() if marked(path, files)}
    return {path: files for path, files in found.items() if path.rpartition("/")[0] in folders}


def folders_holding(place: CheckpointFolder, wanted: Callable[[str], bool]) -> dict[str, list[str]]:
    """Maps each folder below `place` that directly holds a wanted file to all files below this folder.

    If one folder with a wanted file lies inside another, only the outer folder is returned.
    """
    holding = {path.rpartition("/")[0] for path in place.files if wanted(path)} - {place.folder}
    outermost = [path for path in holding if not any(path.startswith(f"{other}/") for other in holding)]
    return {path: place.below(path) for path in sorted(outermost)}


def within(files: Iterable[str], path: str) -> list[str]:
    return [file for file in files if file.rpartition("/")[0] == path]
