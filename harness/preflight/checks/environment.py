"""Checks that every node has what the scenario's command needs: files, mounts, and equal environment variables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

import msgspec

from harness.preflight.checks.contract import Check, Finding, Judged, Seen, Size, Words, doubt, listed, named, odd_ones
from harness.units import counted

MISSING = "a mount that is missing or came up late on that node, or an image without these files"
NOWHERE = "a mount that is missing everywhere; a folder that the trainer makes can be made before the launch"
SETS = "a profile or an image of that node that sets it"
UNLIKE = "another file server, an older image, or a copy that was not finished"


class Path(msgspec.Struct):
    kind: Literal["file", "folder", "absent", "stuck", "unseen", ""]  # empty: something else
    mount: Words = ""
    filesystem: Words = ""
    entries: Size | None = None  # of a folder, up to some
    bytes: Size | None = None
    free_bytes: Size | None = None
    error: Words = ""


class Node(msgspec.Struct):
    unset: Annotated[list[Words], msgspec.Meta(max_length=1000)] = []
    settings: Annotated[dict[Words, Words], msgspec.Meta(max_length=1000)] = {}
    paths: Annotated[dict[Words, Path], msgspec.Meta(max_length=1000)] = {}


class Environment(Check):
    title = "Files, mounts and variables"
    order = 2

    def judge(self, seen: Seen) -> Judged:
        nodes = seen.by_node("node", Node)
        paths = list(dict.fromkeys(path for values in nodes.values() for path in values.paths))
        saved = [save.path for save in seen.canary.evidence.saves.all] if seen.canary else []
        looked = [node for node, values in nodes.items() if paths and len(values.paths) == len(paths)]
        findings, made = seen.silent("its files", looked), []
        for path in paths:
            told = {node: values.paths[path] for node, values in nodes.items() if path in values.paths}
            if any(each.kind != "absent" for each in told.values()):
                findings += _of_path(path, told)
            elif path.endswith(seen.saves) or any(f"{each}/".startswith(f"{path}/") for each in saved):
                made.append(path)
            else:
                findings.append(doubt(f"{path} is on no node, and no save of the trainer went there", NOWHERE, [*told]))
        findings += _variables(nodes)
        words = f"{counted(len(paths), 'path')} of the command looked at on {counted(len(nodes), 'node')}"
        return Judged(words + (f"; made by the trainer: {named(made)}" if made else ""), findings)


def _of_path(path: str, told: Mapping[str, Path]) -> Iterator[Finding]:
    here = {node: each for node, each in told.items() if each.kind in ("file", "folder") and not each.error}
    for problem, cause in (("absent", MISSING), ("stuck", "a file server that does not answer")):
        if nodes := [node for node, each in told.items() if each.kind == problem]:
            words = "is missing" if problem == "absent" else "does not answer"
            yield Finding(f"{path} {words} on {named(nodes)}", cause, nodes)
    for node, each in told.items():
        if each.error:
            yield Finding(f"{path} on {node}: {each.error}", "rights or a stale mount", [node])
    most, odd = odd_ones({node: f"{each.kind} on {each.mount} ({each.filesystem})" for node, each in here.items()})
    if odd:
        usual = f"; elsewhere {most}" if most else ""
        words = f"{path} lies elsewhere on {named([*odd])}: {listed(odd)}{usual}"
        yield Finding(words, "a mount that is missing on some nodes", [*odd])
        return
    empty = [node for node, each in here.items() if each.entries == 0]
    if empty and any(each.entries for each in here.values()):
        yield Finding(f"{path} is empty on {named(empty)}, and not elsewhere", MISSING, empty)
    sizes = {node: each.bytes for node, each in here.items() if each.bytes is not None}
    if other := odd_ones(sizes)[1]:
        have = listed({node: f"{size:,}" for node, size in sizes.items()})
        yield Finding(f"{path} has other bytes: {have}", UNLIKE, [*other])


def _variables(nodes: Mapping[str, Node]) -> Iterator[Finding]:
    for name in sorted({name for values in nodes.values() for name in values.unset}):
        where = [node for node, values in nodes.items() if name in values.unset]
        yield Finding(f"{name} is not set on {named(where)}", "an engine that does not pass it on", where)
    for name in sorted({name for values in nodes.values() for name in values.settings}):
        _, odd = odd_ones({node: values.settings.get(name, "not set") for node, values in nodes.items()})
        if odd:
            yield Finding(f"{name} has another value on {named([*odd])}", SETS, [*odd])


CHECK = Environment()
