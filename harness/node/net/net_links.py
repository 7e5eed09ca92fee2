"""Manages network devices, addresses and routes by raw rtnetlink messages. Setting up a node's network takes about 1
ms, because no program is started.

linux/rtnetlink.h and linux/if_link.h define the messages. All functions act in the network namespace of the caller.
"""

from __future__ import annotations

import contextlib
import pathlib
import socket
import struct
from collections.abc import Iterator

from harness.node.net import netlink
from harness.node.net.netlink import CREATE, EXCL, attribute

IFLA_IFNAME, IFLA_LINKINFO = 3, 18
_NEWLINK, _DELLINK, _NEWADDR, _NEWROUTE, _DELROUTE = 16, 17, 20, 24, 25
_IFLA_NET_NS_PID = 19
_IFLA_INFO_KIND, _IFLA_INFO_DATA, _VETH_INFO_PEER = 1, 2, 1
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_PREFSRC = 1, 4, 5, 7
_IFF_UP = 0x1
_TABLE_MAIN, _PROTOCOL_STATIC, _TYPE_UNICAST, _TYPE_BLACKHOLE = 254, 4, 1, 6
_SCOPE_UNIVERSE, _SCOPE_LINK = 0, 253


def link_header(index: int = 0, flags: int = 0, change: int | None = None) -> bytes:
    return struct.pack("=BxHiII", socket.AF_UNSPEC, 0, index, flags, flags if change is None else change)


def _request(kind: int, flags: int, body: bytes, what: str) -> None:
    netlink.request(netlink.ROUTE, kind, flags, body, what)


def add_veth(name: str, peer: str, peer_pid: int) -> None:
    """Adds a pair of network devices: `name` here, and `peer` in the network namespace of process `peer_pid`."""
    inside = link_header() + netlink.text(IFLA_IFNAME, peer) + netlink.u32(_IFLA_NET_NS_PID, peer_pid)
    data = attribute(_IFLA_INFO_DATA, attribute(_VETH_INFO_PEER, inside))
    info = attribute(IFLA_LINKINFO, netlink.text(_IFLA_INFO_KIND, "veth") + data)
    body = link_header() + netlink.text(IFLA_IFNAME, name) + info
    _request(_NEWLINK, CREATE | EXCL, body, f"add device {name}")


def delete_link(name: str) -> None:
    with contextlib.suppress(OSError):
        _request(_DELLINK, 0, link_header(socket.if_nametoindex(name)), f"delete device {name}")


def set_up(name: str) -> None:
    _request(_NEWLINK, 0, link_header(socket.if_nametoindex(name), _IFF_UP), f"set {name} up")


def set_down(name: str) -> None:
    """Sets a network device down. The other end of a veth loses its carrier, and routes through it are removed."""
    header = link_header(socket.if_nametoindex(name), 0, _IFF_UP)
    _request(_NEWLINK, 0, header, f"set {name} down")


def add_address(name: str, address: str) -> None:
    header = struct.pack("=BBBBI", socket.AF_INET, 32, 0, _SCOPE_UNIVERSE, socket.if_nametoindex(name))
    packed = socket.inet_aton(address)
    body = header + attribute(_IFA_LOCAL, packed) + attribute(_IFA_ADDRESS, packed)
    _request(_NEWADDR, CREATE | EXCL, body, f"add address {address} to {name}")


def add_route(name: str, to: str | None, gateway: str | None = None, source: str | None = None) -> None:
    """Adds a route to the host `to` (`None`: the default route) through the device `name`."""
    scope = _SCOPE_UNIVERSE if gateway else _SCOPE_LINK
    bits = 32 if to else 0
    header = struct.pack("=8BI", socket.AF_INET, bits, 0, 0, _TABLE_MAIN, _PROTOCOL_STATIC, scope, _TYPE_UNICAST, 0)
    addresses = ((_RTA_DST, to), (_RTA_GATEWAY, gateway), (_RTA_PREFSRC, source))
    body = header + netlink.u32(_RTA_OIF, socket.if_nametoindex(name))
    body += b"".join(attribute(kind, socket.inet_aton(value)) for kind, value in addresses if value)
    _request(_NEWROUTE, CREATE | EXCL, body, f"add route to {to or 'default'} through {name}")


def add_blackhole(to: str) -> None:
    _request(_NEWROUTE, CREATE | EXCL, _blackhole(to), f"add black hole for {to}")


def delete_blackhole(to: str) -> None:
    _request(_DELROUTE, 0, _blackhole(to), f"delete black hole for {to}")


def _blackhole(to: str) -> bytes:
    kinds = (_PROTOCOL_STATIC, _SCOPE_UNIVERSE, _TYPE_BLACKHOLE)
    header = struct.pack("=8BI", socket.AF_INET, 32, 0, 0, _TABLE_MAIN, *kinds, 0)
    return header + attribute(_RTA_DST, socket.inet_aton(to))


def set_sysctl(name: str, value: int) -> None:
    """Sets `net.<name>` (with slashes) in the caller's network namespace."""
    pathlib.Path(f"/proc/sys/net/{name}").write_text(str(value))


def quiet_stack(device: str) -> None:
    """Disables IPv6 on `device` to avoid its delays, and lets connections of dead processes end within seconds."""
    with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
        set_sysctl(f"ipv6/conf/{device}/disable_ipv6", 1)
    # Orphaned connections hold the network namespace: 3 retries end them after about 3 s instead of minutes.
    set_sysctl("ipv4/tcp_orphan_retries", 3)


def addresses() -> Iterator[str]:
    """Yields network addresses for virtual nodes, each once: 10.77.0.1 … 10.77.0.250, 10.77.1.1 …"""
    for third in range(256):
        for fourth in range(1, 251):
            yield f"10.77.{third}.{fourth}"
