"""Adds packet rules in the caller's network namespace, by one nftables table for each network disturbance.

Packet rules identify a node by its IP address, which no other node of the run ever gets. Packet rules act on packets
that arrive in the network namespace (prerouting) or leave it (postrouting). The message layouts come from
linux/netfilter/nf_tables.h and xt_NFQUEUE.h.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.node.net import netlink
from harness.node.net.netlink import attribute, be16, be32, nested, text

_SUBSYSTEM = 10
_NEW_TABLE, _DELETE_TABLE, _NEW_CHAIN, _NEW_RULE = 0, 2, 3, 6
Field = Literal["source", "destination"]
Where = Literal["sent", "received"]  # by a node
Hook = Literal["ingress", "egress"]  # of the network namespace that the rules are in
# Which hook meets what a node sends, and what it receives: at the lab's end of the node's wire, and at its own.
LAB_END: Mapping[Where, Hook] = {"sent": "ingress", "received": "egress"}
NODE_END: Mapping[Where, Hook] = {"sent": "egress", "received": "ingress"}
_HOOKS: dict[Hook, int] = {"ingress": 0, "egress": 4}  # prerouting, postrouting
_PRIORITY = -300  # before connection tracking and everything else
_OFFSETS = {"source": 12, "destination": 16}  # in the IPv4 header
_REGISTER, _REGISTER_VERDICT, _NETWORK_HEADER = 1, 0, 1
_DROP = 0
_BYPASS = 1  # without a reader, packets pass: a dead delay line must not become a black hole


@dataclass(frozen=True)
class Match:
    """Requires that a packet's source or destination is `address` or, with `equal=False`, any other address."""

    field: Field
    address: str
    equal: bool = True


@dataclass(frozen=True)
class PacketRule:
    """A rule that drops all packets that meet all conditions `matches`, or passes them to a program's queue."""

    hook: Hook
    matches: tuple[Match, ...]
    queue: int | None = None  # None: drop


def add_table(name: str, rules: Sequence[PacketRule]) -> None:
    """Adds packet rules to the kernel as one table. If the kernel refuses one rule, adds none and raises `OSError`."""
    try:
        _add_table(name, rules, _queue)
    except OSError as error:
        if error.errno != errno.ENOENT or all(rule.queue is None for rule in rules):
            raise
        _add_table(name, rules, _queue_by_target)


def delete_table(name: str) -> None:
    netlink.transaction(_SUBSYSTEM, [(_DELETE_TABLE, 0, _GENERIC + text(1, name))], f"delete table {name}")


_GENERIC = struct.pack(">BBH", socket.AF_INET, 0, 0)


def _add_table(name: str, rules: Sequence[PacketRule], queue: Callable[[int], bytes]) -> None:
    create = netlink.CREATE | netlink.EXCL
    requests = [(_NEW_TABLE, create, _GENERIC + text(1, name))]
    for hook in sorted({rule.hook for rule in rules}):
        place = nested(4, be32(1, _HOOKS[hook]), be32(2, _PRIORITY))
        requests.append((_NEW_CHAIN, create, _GENERIC + text(1, name) + text(3, hook) + place + text(7, "filter")))
    drop = _expression("immediate", be32(1, _REGISTER_VERDICT), nested(2, nested(2, be32(1, _DROP))))
    for rule in rules:
        expressions = [part for match in rule.matches for part in _match(match)]
        expressions += [_expression("counter"), drop if rule.queue is None else queue(rule.queue)]
        body = _GENERIC + text(1, name) + text(2, rule.hook) + nested(4, *expressions)
        requests.append((_NEW_RULE, netlink.CREATE | netlink.APPEND, body))
    netlink.transaction(_SUBSYSTEM, requests, f"add table {name}")


def _expression(name: str, *parts: bytes) -> bytes:
    return nested(1, text(1, name), nested(2, *parts))


def _match(match: Match) -> tuple[bytes, bytes]:
    load = (be32(1, _REGISTER), be32(2, _NETWORK_HEADER), be32(3, _OFFSETS[match.field]), be32(4, 4))
    value = nested(3, attribute(1, socket.inet_aton(match.address)))
    compare = (be32(1, _REGISTER), be32(2, 0 if match.equal else 1), value)
    return _expression("payload", *load), _expression("cmp", *compare)


def _queue(number: int) -> bytes:
    return _expression("queue", be16(1, number), be16(2, 1), be16(3, _BYPASS))


def _queue_by_target(number: int) -> bytes:
    """Packs the expression that queues packets by the older x_tables target NFQUEUE, for a kernel without nft_queue."""
    return _expression(
        "target", text(1, "NFQUEUE"), be32(2, 3), attribute(3, struct.pack("=HHHxx", number, 1, _BYPASS))
    )
