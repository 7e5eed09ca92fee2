"""The sidecar of a container, in a network of its own: what it disturbs at the node's end of the wire."""

import pathlib
import subprocess
import sys

import machine
import pytest
from waiting import HANG_S

ROOT = pathlib.Path(__file__).resolve().parents[2]
NODE, PEER = "10.9.0.1", "10.9.0.2"
PROGRAM = """
import asyncio, os, signal, socket, sys
sys.path.insert(0, sys.argv[1])
from harness.node.net import net_links
from harness.node.sidecar import Sidecar

NODE, PEER, direction = sys.argv[2:]
net_links.add_veth("eth0", "other", os.getpid())
net_links.add_address("eth0", NODE)
for device in ("lo", "eth0", "other"):
    net_links.set_up(device)
net_links.add_route("eth0", PEER)

async def counted():
    sidecar = Sidecar()
    calls = sidecar.calls()
    asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, sidecar._lab.reap)
    place = {"address": NODE, "control": "", "others": [PEER]}
    traffic = {"direction": direction, "peers": None, "spared": []}
    number = await calls["impair"](place, impairment={"delay_s": 0.001}, traffic=traffic)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(3):
            sender.sendto(b"to itself", (NODE, 9))
        sender.sendto(b"to its peer", (PEER, 9))
    print((await calls["counts"](number=number))["packets"])
    await calls["heal"](number=number)

asyncio.run(counted())
"""


@pytest.mark.parametrize(("direction", "packets"), [("egress", 1), ("ingress", 0)])
def test_only_what_gets_to_the_wire_is_disturbed(direction: str, packets: int) -> None:
    machine.need("unshare")
    command = ["unshare", "--user", "--map-root-user", "--net", sys.executable, "-S", "-c", PROGRAM]
    done = subprocess.run(
        [*command, str(ROOT), NODE, PEER, direction], capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert done.stdout == f"{packets}\n", done.stderr
