"""What the scenario's command needs is on every node: files, mounts, variables, and settings that are alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec

from harness.preflight.checks.contract import Check, Finding, Judged, Seen, named, odd_ones
from harness.units import counted

Name = Annotated[str, msgspec.Meta(max_length=4096)]
Size = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
MISSING = "a mount that is missing or came up late on that node, or an image without these files"
UNLIKE = "another file server, an older image, or a copy that was not finished"


class Path(msgspec.Struct):
    kind: Name
    mount: Name = ""
    filesystem: Name = ""
    entries: Size | None = None  # of a folder, up to some
    bytes: Size | None = None
    free_bytes: Size | None = None
    error: Name = ""


class Node(msgspec.Struct):
    unset: Annotated[list[Name], msgspec.Meta(max_length=1000)] = []
    settings: Annotated[dict[Name, Name], msgspec.Meta(max_length=1000)] = {}
    paths: Annotated[dict[Name, Path], msgspec.Meta(max_length=1000)] = {}


class Environment(Check):
    title = "Files, mounts and variables"
    order = 2

    def judge(self, seen: Seen) -> Judged:
        nodes = {each.node: values for each, values in seen.of("node", Node)}
        paths = list(dict.fromkeys(path for values in nodes.values() for path in values.paths))
        findings = seen.silent("its files", nodes)
        nowhere = []
        for path in paths:
            told = {node: values.paths[path] for node, values in nodes.items() if path in values.paths}
            if all(each.kind == "absent" for each in told.values()):
                nowhere.append(path)  # what the trainer makes itself is not there yet
            else:
                findings += _of_path(path, told)
        findings += _variables(nodes)
        words = f"{counted(len(paths), 'path')} of the command looked at on {counted(len(nodes), 'node')}"
        return Judged(words=words + (f"; on no node yet: {named(nowhere)}" if nowhere else ""), findings=findings)


def _of_path(path: str, told: Mapping[str, Path]) -> Iterator[Finding]:
    here = {node: each for node, each in told.items() if each.kind in ("file", "folder") and not each.error}
    for problem, cause in (("absent", MISSING), ("stuck", "a file server that does not answer")):
        if nodes := [node for node, each in told.items() if each.kind == problem]:
            words = "is missing" if problem == "absent" else "does not answer"
            yield Finding(words=f"{path} {words} on {named(nodes)}", cause=cause, nodes=nodes)
    for node, each in told.items():
        if each.error:
            yield Finding(words=f"{path} on {node}: {each.error}", cause="rights or a stale mount", nodes=[node])
    most, odd = odd_ones({node: (each.kind, each.mount, each.filesystem) for node, each in here.items()})
    if odd:
        have = "; ".join(
            f"{node}: {kind} on {mount} ({system})" for node, (kind, mount, system) in list(odd.items())[:8]
        )
        usual = f"; elsewhere on {most[1]} ({most[2]})" if most else ""
        words = f"{path} lies elsewhere on {named([*odd])}: {have}{usual}"
        yield Finding(words=words, cause="a mount that is missing on some nodes", nodes=[*odd])
        return
    empty = [node for node, each in here.items() if each.entries == 0]
    if empty and any(each.entries for each in here.values()):
        yield Finding(words=f"{path} is empty on {named(empty)}, and not elsewhere", cause=MISSING, nodes=empty)
    sizes = {node: each.bytes for node, each in here.items() if each.bytes is not None}
    if other := odd_ones(sizes)[1]:
        have = ", ".join(f"{size:,} on {node}" for node, size in list(sizes.items())[:8])
        yield Finding(words=f"{path} has other bytes: {have}", cause=UNLIKE, nodes=[*other])


def _variables(nodes: Mapping[str, Node]) -> Iterator[Finding]:
    for name in sorted({name for values in nodes.values() for name in values.unset}):
        where = [node for node, values in nodes.items() if name in values.unset]
        yield Finding(
            words=f"{name} is not set on {named(where)}", cause="an engine that does not pass it on", nodes=where
        )
    for name in sorted({name for values in nodes.values() for name in values.settings}):
        _, odd = odd_ones({node: values.settings.get(name, "not set") for node, values in nodes.items()})
        if odd:
            words = f"{name} has another value on {named([*odd])}"
            yield Finding(words=words, cause="a profile or an image of that node that sets it", nodes=[*odd])


CHECK = Environment()
