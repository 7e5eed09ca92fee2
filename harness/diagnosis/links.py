"""Finds the node whose network is bad, from samples of TCP connections on all nodes, as `ss -ti` shows them.

One bad connection does not show which of its two nodes is bad. The bad node is the node that takes part in nearly all
bad connections. Connections with hosts outside the job, such as the host of the rendezvous store, count as well.
"""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from harness.diagnosis.answer import Decision, Kind, Suspect
from harness.diagnosis.incident import NS, Incident
from harness.diagnosis.view import View

MANY = 3  # nodes, from which on one can be told from the others
SAMPLES_NS = 5 * NS  # between two samples of a node
LOOK_NS = 12 * NS  # of the samples after the begin that count
SHARE, AHEAD = 0.7, 0.2  # share of what is bad that is on the node's connections, at least, and above the next node's
SENT_AGAIN_MIN = 100  # segments; 37 were sent again after a node had been slow
RTT_MIN_US, RTT_TIMES = 15_000, 3.0  # usual round trip of a node's connections: at least, and times that of others
SURE = 0.8
ELSEWHERE = "elsewhere"
SUMS = (  # field of a link, its least sum that counts, and words
    ("stuck", 1, "nothing came back on {} connections"),
    ("sent_again", SENT_AGAIN_MIN, "{} segments were sent again on connections"),
)


class Found(NamedTuple):
    """The node with a bad network (`None`: no node), and a text that says why. `known` is the time of the last sample
    that was used."""

    node: str | None
    known: int
    why: str = ""


@dataclass
class _Link:
    """The connections between two nodes: largest round-trip time (µs), retransmitted segments, stuck connections."""

    rtt_us: float = 0
    sent_again: int = 0
    stuck: int = 0


@dataclass
class _Sample:
    at: int
    node: str
    worker: int
    peers: dict[str, _Link] = field(default_factory=dict)


class Links:
    def __init__(self, view: View) -> None:
        names = view.at_address
        self._samples: list[_Sample] = []
        for number, worker in enumerate(view.workers):
            for event in worker.told("usage"):
                sample = _Sample(event.at, worker.node, number)
                for each in event.fields.get("peers") or ():
                    link = sample.peers.setdefault(names.get(str(each.get("peer")), ELSEWHERE), _Link())
                    link.rtt_us = max(link.rtt_us, each.get("rtt_us") or 0)
                    link.sent_again += each.get("sent_again") or 0
                    link.stuck += each.get("stuck") or 0
                self._samples.append(sample)
        self._samples.sort(key=lambda sample: sample.at)
        self._at = [sample.at for sample in self._samples]

    def incidents(self) -> Iterator[Incident]:
        before, at = None, self._samples[0].at if self._samples else 0
        while self._samples and at <= self._samples[-1].at:
            bad = self.bad_node(at, at)
            if bad and bad.node and bad.node != before:
                who, why = (Suspect(node=bad.node),), f"{bad.why} of {bad.node}"
                yield Incident(at, bad.known, Kind.NETWORK, who, Decision.IGNORE, SURE, why, ())
            before, at = bad and bad.node, at + SAMPLES_NS

    def bad_node(self, begin: int, end: int) -> Found | None:
        """Returns the node whose connections were bad between two times in ns. Returns `None` if fewer than three nodes
        logged their connections."""
        until = min(end, begin + LOOK_NS) + SAMPLES_NS
        used = self._samples[bisect.bisect_left(self._at, begin) : bisect.bisect_right(self._at, until)]
        nodes = {each.node for each in used}
        if len(nodes) < MANY:
            return None
        known, links = used[-1].at, self._links(used)
        slow = sorted(((_usual(links, node, True), node) for node in nodes), reverse=True)
        rtt_us, node = slow[0]
        if rtt_us >= max(RTT_MIN_US, RTT_TIMES * _usual(links, node, False)):
            return Found(node, known, f"round trips took {rtt_us / 1000:.0f} ms on connections")
        for name, least, words in SUMS:
            told = [(pair, getattr(link, name)) for pair, link in links.items()]
            total = sum(count for _, count in told)
            mine = {node: [count for pair, count in told if node in pair] for node in nodes}
            ranked = sorted(((sum(counts), _share(counts), node) for node, counts in mine.items()), reverse=True)[:2]
            (most, bad, node), (next_most, next_bad, _) = ranked
            ahead = most - next_most >= AHEAD * total or (most == next_most and bad - next_bad >= AHEAD)
            if total >= least and most >= SHARE * total and ahead:
                return Found(node, known, words.format(most))
        return Found(None, known)

    def _links(self, used: Sequence[_Sample]) -> dict[frozenset[str], _Link]:
        links: dict[frozenset[str], _Link] = {}
        since = bisect.bisect_left(self._at, used[0].at - 2 * SAMPLES_NS)
        before = {each.worker: each for each in self._samples[since:] if each.at < used[0].at}
        for sample in used:
            earlier = before.get(sample.worker)
            for peer, link in sample.peers.items():
                told = links.setdefault(frozenset((sample.node, peer)), _Link())
                known = earlier.peers.get(peer, _Link()) if earlier else _Link()
                told.sent_again += max(0, link.sent_again - known.sent_again)
                told.stuck = max(told.stuck, link.stuck)
                told.rtt_us = max(told.rtt_us, link.rtt_us)
            before[sample.worker] = sample
        return links


def _share(counts: Sequence[int]) -> float:
    return sum(count > 0 for count in counts) / max(1, len(counts))


def _usual(links: dict[frozenset[str], _Link], node: str, its_own: bool) -> float:
    return statistics.median(_rtts(links, node, its_own) or [0.0])


def _rtts(links: dict[frozenset[str], _Link], node: str, its_own: bool) -> list[float]:
    return [link.rtt_us for pair, link in links.items() if (node in pair) is its_own]
