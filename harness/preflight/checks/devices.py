"""Checks that devices and software are alike on all nodes, because a different node may slow the job."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping

import msgspec

from harness.preflight.checks.contract import Check, Finding, Judged, Seen, Size, Words, doubt, listed, named, odd_ones
from harness.units import counted

UNWELL = "a GPU that must be reset or replaced, or cooled"
MEMORY_APART = 0.05  # of the median: what a kernel keeps for itself differs a little
CAUSES = {
    "torch": "another environment or image on that node",
    "python": "another environment or image on that node",
    "nccl": "another environment or image on that node, or a library path that finds an older one",
    "driver": "a node that was not updated with the others, or not restarted since",
    "gpus": "a GPU that fell off the bus, or is held by another job",
}


class Node(msgspec.Struct):
    python: Words = ""
    kernel: Words = ""
    driver: Words = ""
    cpu: Words = ""
    cpus: Size = 0
    memory_bytes: Size = 0
    gpus_unwell: list[Words] = []


class Software(msgspec.Struct):
    torch: Words = ""
    cuda: Words = ""
    nccl: Words = ""
    gpu: Words = ""
    gpus: Size = 0
    gpu_bytes: Size = 0


Owned = Mapping[str, tuple[str, Node | Software]]  # by who told it: of which node, and what
WORDS = {"cpu": "CPU", "cpus": "CPUs", "gpu": "GPU", "gpus": "GPUs", "gpu_bytes": "bytes of GPU memory", "nccl": "NCCL"}


class Devices(Check):
    title = "Devices and software"
    order = 1

    def judge(self, seen: Seen) -> Judged:
        nodes, told = seen.by_node("node", Node), seen.by_rank("software", Software)
        by_node: Owned = {node: (node, values) for node, values in nodes.items()}
        by_rank: Owned = {f"rank {rank} on {seen.node_of(rank)}": (seen.node_of(rank), told[rank]) for rank in told}
        findings = [
            *seen.silent("itself", nodes),
            *_memory(nodes),
            *(doubt(f"{said} on {node}", UNWELL, [node]) for node in nodes for said in nodes[node].gpus_unwell),
            *seen.silent_ranks("its torch", (rank for rank in told if told[rank].torch)),
        ]
        facts, of_nodes = dict[str, str](), dict.fromkeys(Node.__struct_fields__[:-2], by_node)
        for name, of in (of_nodes | dict.fromkeys(Software.__struct_fields__, by_rank)).items():
            most, odd = odd_ones({who: str(getattr(values, name)) for who, (_, values) in of.items()})
            findings += _unlike(name, most, odd, {who: of[who][0] for who in odd})
            facts |= {name: most} if most else {}
        facts |= {"image": str(image)} if (image := seen.environment.get("image_digest")) else {}
        shown = [facts.get("gpu") or facts.get("cpu"), *(f"{n} {facts[n]}" for n in ("torch", "python") if n in facts)]
        words = f"{counted(len(nodes), 'node')}: {', '.join(filter(None, shown))}"
        return Judged(words, findings, facts=facts)


def _unlike(name: str, most: str | None, odd: Mapping[str, str], nodes: Mapping[str, str]) -> Iterator[Finding]:
    what, cause = WORDS.get(name, name), CAUSES.get(name, "nodes of another kind in the same job")
    if odd and most is None:
        yield Finding(f"{what} is not the same: {listed(odd)}", cause, sorted(set(nodes.values())))
        return
    for value in dict.fromkeys(odd.values()):
        where = sorted({nodes[who] for who in odd if odd[who] == value})
        yield Finding(f"{what} on {named(where)} is {value or 'none'}, elsewhere {most or 'none'}", cause, where)


def _memory(nodes: Mapping[str, Node]) -> Iterator[Finding]:
    sizes = {node: values.memory_bytes for node, values in nodes.items()}
    usual = statistics.median(sizes.values()) if sizes else 0
    for node, size in sizes.items():
        if abs(size - usual) > MEMORY_APART * usual:
            words = f"{node} has {size / 2**30:.1f} GiB of memory; the median is {usual / 2**30:.1f} GiB"
            cause = "a memory module that failed, or another kind of node"
            yield Finding(words, cause, [node], figure=size, usual=usual, unit="bytes")


CHECK = Devices()
