"""The launcher of a rank: the process that started its worker, such as torchrun's agent."""

from harness.backends.contract import Node
from harness.errors import FaultError


def launcher_of(rank: int, node: Node, worker: int) -> int:
    """Returns the process id of a rank's launcher. Raises `FaultError` if no process on the node started the worker."""
    there = {each.pid: each.parent for each in node.processes()}
    launcher = there.get(worker, 0)
    if launcher not in there:
        raise FaultError(f"rank {rank} has no launcher: its worker is what the node itself has started")
    return launcher
