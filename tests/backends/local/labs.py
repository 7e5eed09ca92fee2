"""What tests of the lab look at, and what runs on its nodes."""

import dataclasses
import pathlib
import sys
from collections.abc import Callable
from typing import TypeVar

from waiting import until

from harness.backends.contract import Exit
from harness.backends.local.backend import LocalCluster
from harness.node import leftovers

T = TypeVar("T")
# Three processes, two of them in sessions of their own, one of these an orphan.
FAMILY = ("sh", "-c", "setsid sleep 301 & (setsid sleep 302 &); exec sleep 300")


def script(code: str) -> tuple[str, ...]:
    """A node's command that runs Python `code`, without the packages, which take time to find."""
    return (sys.executable, "-S", "-c", code)


@dataclasses.dataclass
class Opened:
    """A started lab, with what tests look at."""

    cluster: LocalCluster
    run_dir: pathlib.Path
    run_id: str

    def log(self, name: str) -> str:
        path = self.run_dir / "logs" / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def wait_log(self, name: str, text: str) -> str:
        until(lambda: text in self.log(name), f"{text!r} in the log of {name}")
        return self.log(name)

    def wait_exits(self, count: int) -> list[Exit]:
        found: list[Exit] = []
        until(lambda: found.extend(self.cluster.exits()) or len(found) >= count, f"{count} exits")
        return found

    def wait_family(self, index: int) -> list[int]:
        """The processes of `FAMILY` on a node, once all three are what they will be."""
        node = self.cluster.nodes[index]
        key = f"{node.name}.{node.incarnation}"

        def commands() -> list[str]:
            return sorted(item.command for item in leftovers.leftovers(self.run_id) if item.node == key)

        until(lambda: commands() == ["sleep 300", "sleep 301", "sleep 302"], f"the family on {key}")
        return node.pids()

    def wait_pids(self, index: int, count: int) -> list[int]:
        node = self.cluster.nodes[index]
        return until(lambda: pids if len(pids := node.pids()) == count else [], f"{count} processes")


OpenLab = Callable[..., Opened]
