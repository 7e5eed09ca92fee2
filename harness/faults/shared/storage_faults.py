"""The common parts of storage faults, which disturb file operations in a folder of the run while the fault lasts."""

import abc
import time
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field, PrivateAttr

from harness.backends.contract import Disturbance, Node, Verb
from harness.faults.contract import Context, Fault, Folder, Targets, name_nodes
from harness.node.types import StorageRule
from harness.units import Duration

TOLERANCE = 0.25  # a busy machine adds to a delay; 10 % on a quiet one
Operation = Literal["open", "create", "read", "write", "fsync", "rename", "unlink", "mkdir", "lookup", "list"]


class OnStorage(Fault):
    """The base of faults that disturb the targets' file operations in one folder, by a rule, until `heal`."""

    directory: Folder = Field("checkpoints", description="The folder disturbed, below the run's.")
    path: str = Field("*", description="Which files in it: a pattern of their paths, where * also matches /.")
    _acting: list[Disturbance] = PrivateAttr(default_factory=list)

    def mounts(self) -> Sequence[str]:
        return (self.directory,)

    @abc.abstractmethod
    def rule(self, seed: int) -> StorageRule:
        """Returns the rule that says which file operations in the folder are delayed or fail."""

    def disturb(self, targets: Targets, context: Context) -> None:
        self._acting.clear()
        for target in targets:
            self._acting.append(context.node(target).disturb_storage(self.directory, self.rule(context.seed)))

    def heal(self, targets: Targets, context: Context) -> None:
        while self._acting:
            self._acting.pop().heal()


class StorageFault(OnStorage):
    duration: Duration = Field(Duration("10s"), description="How long it acts.")

    needs = frozenset({Verb.STORAGE})

    @abc.abstractmethod
    def judge(self, counts: dict[str, int], context: Context, detail: str) -> None:
        """Reports the effect of the fault. `counts` holds the numbers of disturbed file operations."""

    def shown(self) -> bool:
        """Returns True if the effect already shows, so that the harness can judge it before the fault ends."""
        return False

    def judge_end(self, counts: Mapping[str, int], context: Context, detail: str) -> None:
        """Reports effects that can only be judged just before the fault ends. By default, reports nothing."""

    def judge_delay(self, counts: dict[str, int], delay_s: float, context: Context, detail: str) -> None:
        """Reports how long file operations waited on average. If no operation waited, the fault did not act."""
        got, asked = counts["delayed_ns"] / max(1, counts["waits"]) / 1e6, delay_s * 1e3
        close = counts["waits"] > 0 and abs(got - asked) <= asked * TOLERANCE
        context.effect(got, asked, "ms of delay on average", ok=close, detail=detail)

    def cost(self, node: Node, since_ns: int, context: Context) -> str:
        """Describes how the fault has delayed the ranks on a node since `since_ns`. By default, returns an empty
        text."""
        return ""

    def where(self, targets: Targets) -> str:
        return f"{self.path} in {self.directory}/ on {name_nodes(targets)}, for {self.duration}"

    def inject(self, targets: Targets, context: Context) -> None:
        self.disturb(targets, context)
        context.injected()
        since_ns = time.monotonic_ns()
        end_s = time.monotonic() + self.duration.s
        context.wait(self.duration.s, until=self.shown)
        for node, counts in self._met(targets, context):
            cost = self.cost(node, since_ns, context)
            self.judge(counts, context, f"{node.name}: {self.directory}/{self.path}{cost}")
        context.wait(max(0.0, end_s - time.monotonic()))
        for node, counts in self._met(targets, context):
            self.judge_end(counts, context, node.name)

    def _met(self, targets: Targets, context: Context) -> list[tuple[Node, dict[str, int]]]:
        """Returns the nodes that tried a file operation to which the rule applies, with their counts. If no node tried
        such an operation, returns all nodes, so that the report shows that the fault never acted."""
        found = [dict(disturbance.counts()) for disturbance in self._acting]
        tried = any(each["matched"] for each in found)
        beside = zip(targets, found, strict=True)
        return [(context.node(target), counts) for target, counts in beside if counts["matched"] or not tried]

    def see_end(self, targets: Targets, context: Context) -> None:
        for target in targets:
            node = context.node(target)
            found = node.try_storage(self.directory, self.rule(context.seed))
            left = found.refused + (found.delay_s > 0)
            detail = f"{node.name}: {found.tried} operations in {self.directory}/, {found.refused} of them refused; "
            detail += f"the slowest waits {found.delay_s * 1e3:g} ms"
            context.ended(left, 0, "operations refused or late", ok=not left, detail=detail)
