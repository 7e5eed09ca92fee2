"""Checks pointers to the newest checkpoint: links, or small text, JSON or YAML files such as `latest`, beside the
checkpoints."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import yaml

from harness.preflight.verification import Save, State
from harness.timeline.save_events import family
from harness.trainers.checkpoints.contract import POINTER_BYTES_MAX, Listing, load_layout
from harness.trainers.checkpoints.shared import names
from harness.trainers.checkpoints.shared.checkpoint_folder import CheckpointFolder

_TEXTS = ("", ".txt", ".json", ".yaml", ".yml")
_CHECKPOINT = re.compile(r"^(?:checkpoint|current)$", re.IGNORECASE)  # TensorFlow's, and others': without an ending
_TREES = (".json", ".yaml", ".yml")
_NEWEST_KEY = re.compile(r"(?:^|[^a-z])(?:latest|last|newest|current)(?![a-z])(?!.*best)", re.IGNORECASE)
_STEP_KEY = re.compile(r"step|iter", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"\d+(?=\D*$)")


class _Named(NamedTuple):
    """The checkpoints that a pointer names. `gone` is True if the pointer names no existing checkpoint."""

    saves: list[Save]
    gone: bool


def asked(place: CheckpointFolder, listings: Sequence[Listing], saves: Mapping[str, Save]) -> Iterator[Save]:
    """Yields each pointer that should name the newest checkpoint, but names an older or missing one. If the pointer
    marks finished checkpoints, each newer checkpoint gets a finding, because it may be unfinished."""
    marks = set[str]()
    for listing in listings:
        if listing.pointer and load_layout(listing.layout).marked_beside:
            marks.add(listing.pointer.path)
            yield from _mark(listing, saves)
    by_name, files = (
        _by_name(listings, saves),
        {file for listing in listings for each in listing.checkpoints for file in each.files},
    )
    folders = {str(folder) for path in saves for folder in PurePosixPath(path).parents}
    for path in sorted({*place.links, *place.sizes} - files - marks):
        if path.rpartition("/")[0] in folders and _may_point(place, path):
            named, pointer = _named_by(place, path, by_name, saves), Save(path, points=True)
            if named.saves:
                _ask_newer(pointer, max(named.saves, key=_order), saves)
            elif named.gone:
                pointer.find(State.DAMAGED, "names no save that is there")
            if pointer.findings:
                yield pointer


def _mark(listing: Listing, saves: Mapping[str, Save]) -> Iterator[Save]:
    found = listing.pointer
    assert found is not None
    if found.target is None:
        broken = Save(found.path, points=True)
        broken.find(State.DAMAGED, "names no save that is there")
        yield broken
        return
    named = saves[found.target].step
    for save in (saves[each.path] for each in listing.checkpoints):
        if save.step is not None and named is not None and save.step > named:
            save.find(State.SUSPICIOUS, f"{found.path} names step {named}: this one was not finished, or left")


def _may_point(place: CheckpointFolder, path: str) -> bool:
    suffix = PurePosixPath(path).suffix.lower()
    if path in place.links:
        return _usual(path)
    return place.sizes[path] <= POINTER_BYTES_MAX and (suffix in _TREES or (suffix in _TEXTS and _usual(path)))


def _usual(path: str) -> bool:
    """Returns False for a name such as `best`, because this pointer may name an older checkpoint on purpose."""
    return names.is_pointer(path) or bool(_CHECKPOINT.match(PurePosixPath(path).stem))


def _by_name(listings: Sequence[Listing], saves: Mapping[str, Save]) -> dict[str, Save]:
    found = dict[str, Save]()
    for each in (each for listing in listings for each in reversed(listing.checkpoints)):
        alone = each.files if each.path in each.files else ()
        for path in (each.path, *alone):
            found[path.rpartition("/")[2]] = saves[each.path]
    return found


def _named_by(place: CheckpointFolder, path: str, by_name: Mapping[str, Save], saves: Mapping[str, Save]) -> _Named:
    words, plain = _words(place, path)
    families = {family(name) for name in by_name}
    found, gone = list[Save](), plain and names.is_pointer(path)
    for word in words:
        parts = PurePosixPath(word).parts
        known = [by_name[part] for part in parts if part in by_name]
        known += [save for save in saves.values() if word.isdecimal() and _order(save) == int(word)]
        found += known
        gone |= not known and any(family(part) in families for part in parts)
    return _Named(found, gone and not _leads_away(place, path))


def _leads_away(place: CheckpointFolder, path: str) -> bool:
    return path in place.links_away and os.path.exists(place.root / os.path.dirname(path) / place.links[path])


def _words(place: CheckpointFolder, path: str) -> tuple[list[str], bool]:
    if path in place.links:
        return [place.links[path]], True
    text = place.read(path, POINTER_BYTES_MAX).decode(errors="replace").strip()
    tree = _tree(text)
    if not isinstance(tree, dict | list):
        return ([] if "\n" in text else [text]), "\n" not in text
    told = list(_leaves(tree))
    newest = [word for key, word in told if _NEWEST_KEY.search(key) and not (word.isdecimal() and not _usual(path))]
    return newest or ([word for _, word in told] if _usual(path) else []), False


def _tree(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        try:
            return yaml.safe_load(text)
        except (ValueError, yaml.YAMLError, RecursionError):
            return text


def _leaves(tree: Any) -> Iterator[tuple[str, str]]:
    """Yields the key and text of each value in nested JSON or YAML. Each object is visited once, because YAML
    references may form a cycle."""
    waiting, seen = [("", tree)], set[int]()
    while waiting:
        key, each = waiting.pop()
        if isinstance(each, dict | list) and id(each) not in seen:
            seen.add(id(each))
            waiting += (
                [(f"{key}.{name}", one) for name, one in each.items()]
                if isinstance(each, dict)
                else [(key, one) for one in each]
            )
        elif isinstance(each, str) or (type(each) is int and each >= 0 and _STEP_KEY.search(key)):
            yield key, str(each)


def _ask_newer(pointer: Save, named: Save, saves: Mapping[str, Save]) -> None:
    kin = named.path.rpartition("/")[0], family(named.path)
    whole = [
        save
        for save in saves.values()
        if (save.path.rpartition("/")[0], family(save.path)) == kin and save.state is State.WHOLE
    ]
    newest = max(whole, key=_order, default=named)
    if _order(newest) > _order(named):
        pointer.find(State.SUSPICIOUS, f"names {named.path}, and {newest.path} is newer and whole")


def _order(save: Save) -> int:
    number = _LAST_NUMBER.search(save.path.rpartition("/")[2])
    return save.step if save.step is not None else int(number[0]) if number else -1
