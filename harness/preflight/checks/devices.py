"""Devices and software are alike on all nodes: one odd node slows the job, or computes something else."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec

from harness.preflight.checks.contract import Check, Finding, Judged, Seen, named, odd_ones
from harness.units import counted

Short = Annotated[str, msgspec.Meta(max_length=300)]
Size = Annotated[int, msgspec.Meta(ge=0, le=2**60)]
MEMORY_APART = 0.05  # of the median: what a kernel keeps for itself differs a little
CAUSES = {
    "torch": "another environment or image on that node",
    "python": "another environment or image on that node",
    "nccl": "another environment or image on that node, or a library path that finds an older one",
    "driver": "a node that was not updated with the others, or not restarted since",
    "gpus": "a GPU that fell off the bus, or is held by another job",
}


class Node(msgspec.Struct):
    python: Short = ""
    kernel: Short = ""
    driver: Short = ""
    cpu: Short = ""
    cpus: Size = 0
    memory_bytes: Size = 0


class Software(msgspec.Struct):
    torch: Short = ""
    cuda: Short = ""
    nccl: Short = ""
    gpu: Short = ""
    gpus: Size = 0
    gpu_bytes: Size = 0


WORDS = {"cpu": "CPU", "cpus": "CPUs", "gpu": "GPU", "gpus": "GPUs", "gpu_bytes": "bytes of GPU memory", "nccl": "NCCL"}


class Devices(Check):
    title = "Devices and software"
    order = 1

    def judge(self, seen: Seen) -> Judged:
        nodes = {each.node: values for each, values in seen.of("node", Node)}
        told = seen.of("software", Software)
        ranks = {f"rank {each.rank} on {each.node}": (each.node, values) for each, values in told}
        findings = [*seen.silent("itself", nodes), *_memory(nodes)]
        facts = dict[str, str]()
        for name in Node.__struct_fields__[:-1]:
            most, odd = odd_ones({node: str(getattr(values, name)) for node, values in nodes.items()})
            findings += _unlike(name, most, odd, {node: node for node in odd})
            facts |= {name: most} if most else {}
        for name in Software.__struct_fields__:
            most, odd = odd_ones({who: str(getattr(values, name)) for who, (_, values) in ranks.items()})
            findings += _unlike(name, most, odd, {who: ranks[who][0] for who in odd})
            facts |= {name: most} if most else {}
        facts |= {"image": str(image)} if (image := seen.environment.get("image_digest")) else {}
        findings += seen.silent("its torch", [each.node for each, _ in told], seen.plan.workload.ranks_per_node)
        shown = [
            facts.get("gpu") or facts.get("cpu", ""),
            *(f"{n} {facts[n]}" for n in ("torch", "python") if n in facts),
        ]
        words = f"{counted(len(nodes), 'node')}: {', '.join(filter(None, shown))}"
        return Judged(words=words, findings=findings, facts=facts)


def _unlike(name: str, most: str | None, odd: Mapping[str, str], nodes: Mapping[str, str]) -> Iterator[Finding]:
    what, cause = WORDS.get(name, name), CAUSES.get(name, "nodes of another kind in the same job")
    if odd and most is None:
        have = "; ".join(f"{who}: {value or 'none'}" for who, value in list(odd.items())[:8])
        yield Finding(words=f"{what} is not the same: {have}", cause=cause, nodes=sorted(set(nodes.values())))
        return
    for value in dict.fromkeys(odd.values()):
        who = [each for each in odd if odd[each] == value]
        words = (
            f"{what} on {named(sorted({nodes[each] for each in who}))} is {value or 'none'}, elsewhere {most or 'none'}"
        )
        yield Finding(words=words, cause=cause, nodes=sorted({nodes[each] for each in who}))


def _memory(nodes: Mapping[str, Node]) -> Iterator[Finding]:
    sizes = {node: values.memory_bytes for node, values in nodes.items()}
    usual = statistics.median(sizes.values()) if sizes else 0
    for node, size in sizes.items():
        if abs(size - usual) > MEMORY_APART * usual:
            words = f"{node} has {size / 2**30:.1f} GiB of memory; the median is {usual / 2**30:.1f} GiB"
            cause = "a memory module that failed, or another kind of node"
            yield Finding(words=words, cause=cause, nodes=[node], figure=size, usual=usual, unit="bytes")


CHECK = Devices()
