"""Limits the rate of selected packets of a node, which pass through an ifb device with a token bucket.

A clsact classifier on the node's network device selects packets of both directions. The action mirred redirects the
selected packets through the ifb device and back. The message layouts come from linux/pkt_sched.h, pkt_cls.h and
tc_mirred.h.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Sequence

from harness.node.net import net_links, netlink
from harness.node.net.netlink import attribute, nested, text, u32
from harness.node.net.packet_rules import Hook, Match

_NEW_LINK, _NEW_QDISC, _DELETE_QDISC, _NEW_FILTER, _DELETE_FILTER = 16, 36, 37, 44, 45
_ROOT, _CLSACT, _CLSACT_HANDLE = 0xFFFFFFFF, 0xFFFFFFF1, 0xFFFF0000
_HOOKS: dict[Hook, int] = {"ingress": 0xFFFFFFF2, "egress": 0xFFFFFFF3}
_ETH_P_IP = 0x0800
_KIND, _OPTIONS = 1, 2
_OFFSETS = {"source": 12, "destination": 16}  # in the IPv4 header
_STOLEN, _EGRESS_REDIRECT = 4, 1
_LINK_LAYER_ETHERNET = 1

BURST_S = 0.002
BURST_BYTES_MIN = 2 * 1514
QUEUE_S = 0.05  # what waits at most; beyond that packets are dropped, as by a switch port
QUEUE_BYTES_MIN = 64 * 1024


def add_ifb(name: str) -> None:
    body = net_links.link_header() + text(net_links.IFLA_IFNAME, name) + nested(net_links.IFLA_LINKINFO, text(1, "ifb"))
    netlink.request(netlink.ROUTE, _NEW_LINK, netlink.CREATE | netlink.EXCL, body, f"add device {name}")
    net_links.set_up(name)


def set_rate(device: str, rate_bits: int) -> None:
    """Limits a device's rate by a token bucket: `rate_bits` per second, counted with Ethernet headers."""
    rate_bytes = rate_bits // 8
    burst = max(BURST_BYTES_MIN, int(rate_bytes * BURST_S))
    limit = min(2**31, burst + max(QUEUE_BYTES_MIN, int(rate_bytes * QUEUE_S)))
    speed = struct.pack("=BBHhHI", 0, _LINK_LAYER_ETHERNET, 0, 0, 0, min(rate_bytes, 0xFFFFFFFF))
    parameters = speed + bytes(12) + struct.pack("=III", limit, 0, 0)
    options = (attribute(1, parameters), attribute(4, struct.pack("=Q", rate_bytes)), u32(6, burst))
    body = _traffic_header(device, 0x10000, _ROOT) + text(_KIND, "tbf") + nested(_OPTIONS, *options)
    netlink.request(netlink.ROUTE, _NEW_QDISC, netlink.CREATE | netlink.EXCL, body, f"limit the rate of {device}")


def add_classifier(device: str) -> None:
    body = _traffic_header(device, _CLSACT_HANDLE, _CLSACT) + text(_KIND, "clsact")
    netlink.request(netlink.ROUTE, _NEW_QDISC, netlink.CREATE | netlink.EXCL, body, f"classify on {device}")


def delete_classifier(device: str) -> None:
    with contextlib.suppress(OSError):
        body = _traffic_header(device, _CLSACT_HANDLE, _CLSACT)
        netlink.request(netlink.ROUTE, _DELETE_QDISC, 0, body, f"no longer classify on {device}")


def add_detour(device: str, hook: Hook, priority: int, matches: Sequence[Match], through: str) -> None:
    """Redirects packets on `device` that meet all conditions `matches` through the device `through`, and back."""
    keys = b"".join(
        struct.pack("=4s4sii", b"\xff" * 4, socket.inet_aton(match.address), _OFFSETS[match.field], 0)
        for match in matches
    )
    selector = struct.pack("=BBBxHHhhI", 1, 0, len(matches), 0, 0, 0, 0, 0) + keys
    redirect = struct.pack("=IIiiiiI", 0, 0, _STOLEN, 0, 0, _EGRESS_REDIRECT, socket.if_nametoindex(through))
    action = nested(7, nested(1, text(1, "mirred"), nested(2, attribute(2, redirect))))
    options = nested(_OPTIONS, attribute(5, selector), action)
    body = _filter_header(device, hook, priority) + text(_KIND, "u32") + options
    flags = netlink.CREATE | netlink.EXCL
    netlink.request(netlink.ROUTE, _NEW_FILTER, flags, body, f"add filter to {device}")


def delete_detour(device: str, hook: Hook, priority: int) -> None:
    with contextlib.suppress(OSError):
        body = _filter_header(device, hook, priority)
        netlink.request(netlink.ROUTE, _DELETE_FILTER, 0, body, f"delete filter of {device}")


def transmitted_bytes(device: str, table: str) -> int:
    """Returns the bytes that left the device, with Ethernet headers; `table` is the text of /proc/net/dev."""
    for line in table.splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == device:
            return int(counters.split()[8])
    raise OSError(f"unknown device {device}")


def _traffic_header(device: str, handle: int, parent: int, info: int = 0) -> bytes:
    return struct.pack("=BxxxiIII", socket.AF_UNSPEC, socket.if_nametoindex(device), handle, parent, info)


def _filter_header(device: str, hook: Hook, priority: int) -> bytes:
    return _traffic_header(device, 0, _HOOKS[hook], priority << 16 | socket.htons(_ETH_P_IP))
