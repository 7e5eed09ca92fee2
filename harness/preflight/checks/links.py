"""Checks that each link is as fast as others of its kind, because the slowest link limits a ring all-reduce.

A rank's fastest outgoing link shows how fast its network port can send, and its fastest incoming link shows how fast
the port can receive. If both ports of a slow link are fast, the check blames the link."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec

from harness.preflight.checks.contract import (
    Check,
    Finding,
    Judged,
    Seen,
    accused,
    below_the_others,
    doubt,
    measured_again,
    rate,
)
from harness.trainers.contract import Workload
from harness.units import counted

SLOW = 0.65  # of what it should be: half speed is found, and a busy moment is not
CAUSE = "a cable or a port that came up at a lower rate, a card in a slower slot, or traffic of others"
Rank = Annotated[int, msgspec.Meta(ge=0, le=2**20)]
Speed = Annotated[float, msgspec.Meta(gt=0, lt=1e15)]
Link = tuple[int, int]  # from rank to rank


class Told(msgspec.Struct):
    to: Annotated[list[tuple[Rank, Speed]], msgspec.Meta(max_length=2**16)]  # bytes a second
    again: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0


class Left(msgspec.Struct):
    left: Rank


class Links(Check):
    title = "Links, one by one"
    order = 5
    probe = "links"
    least = SLOW
    cause = CAUSE

    def judge(self, seen: Seen) -> Judged:
        work = seen.plan.workload
        if work.world_size < 2:
            return Judged(not_judged="one rank has no link")
        told = seen.by_rank("links", Told)
        speeds = {
            (rank, to): speed for rank, values in told.items() for to, speed in values.to if _is_link(rank, to, work)
        }
        findings = seen.silent_ranks("its links", told)
        kinds: dict[bool, dict[Link, float]] = {True: {}, False: {}}  # whether within a node
        for link, speed in speeds.items():
            kinds[seen.node_of(link[0]) == seen.node_of(link[1])][link] = speed
        for within, links in kinds.items():
            findings += _findings(links, seen, within)
        left = sum(values.left for _, values in seen.of("links_left", Left))
        pairs = work.nodes * math.comb(work.ranks_per_node, 2) + work.ranks_per_node * math.comb(work.nodes, 2)
        if (lacking := 2 * (pairs - left) - len(speeds)) > 0 and not findings:
            findings.append(doubt(f"{counted(lacking, 'direction')} of links told no speed"))
        slowest = min(speeds, key=lambda link: speeds[link], default=None)
        words = f"{counted(len(speeds), 'direction')} of links measured"
        words += f", {left} left out for time" if left else ""
        words += f"; the slowest, {_name(slowest, seen)}, at {rate(speeds[slowest])}" if slowest else ""
        words += measured_again(max((values.again for values in told.values()), default=0))
        figures = {f"link {_name(link, seen)} (bytes/s)": speed for link, speed in sorted(speeds.items())}
        return Judged(words, findings, figures)


def _is_link(a: int, b: int, work: Workload) -> bool:
    same_number = a % work.ranks_per_node == b % work.ranks_per_node
    return a != b and b < work.world_size and (same_number or work.node_of(a) == work.node_of(b))


def _findings(links: Mapping[Link, float], seen: Seen, within: bool) -> Iterator[Finding]:
    sends, takes = dict[int, float](), dict[int, float]()
    for (a, b), speed in links.items():
        sends[a], takes[b] = max(sends.get(a, 0.0), speed), max(takes.get(b, 0.0), speed)
    ports = dict[int, dict[str, float]]()
    for way, best in (("out of", sends), ("into", takes)):
        for rank, usual in below_the_others(best, SLOW).items():
            ports.setdefault(rank, {})[way] = usual
    told = set[Link]()
    for rank, ways in ports.items():
        mine = {(a, b) for a, b in links if ("out of" in ways and a == rank) or ("into" in ways and b == rank)}
        if mine <= told:
            continue
        told |= mine
        quickest, what = max(sorted(mine), key=lambda link: links[link]), "the link"  # another port may slow the others
        if len(mine) > 1:
            who = f" (rank {rank})" if within or seen.plan.workload.ranks_per_node > 1 else ""
            what = f"each link {' and '.join(ways)} {seen.node_of(rank)}{who}, such as"
        ends, others = [rank] if len(mine) > 1 else [*quickest], len(links) - 1
        yield _slow(what, quickest, links[quickest], max(ways.values()), seen, ends, others)
    for (a, b), speed in links.items():
        usual = min(sends[a], takes[b])
        if speed < SLOW * usual and (a, b) not in told:
            yield _slow("the link", (a, b), speed, usual, seen, [a, b], len(links) - 1)


def _slow(what: str, link: Link, speed: float, usual: float, seen: Seen, ranks: list[int], others: int) -> Finding:
    words = f"{what} {_name(link, seen)} is slow: {rate(speed)}, others of its kind {rate(usual)}"
    nodes, ends = list(dict.fromkeys(map(seen.node_of, ranks))), [seen.node_of(end) for end in link]
    where: dict[str, Any] = {"nodes": nodes, "ranks": ranks, "link": ends}
    figures: dict[str, Any] = {"figure": speed, "usual": usual, "unit": "bytes/s"}
    return accused(words, CAUSE, speed / usual, others, seen, **where, **figures)


def _name(link: Link, seen: Seen) -> str:
    one = seen.plan.workload.ranks_per_node == 1
    a, b = (seen.node_of(rank) if one else f"{seen.node_of(rank)}/{rank}" for rank in link)
    return f"{a} → {b}"


CHECK = Links()
