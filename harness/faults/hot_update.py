"""A hot update: somebody stops the job and starts it again with other arguments, another environment or other code."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from harness.backends.contract import Verb
from harness.faults.contract import Change, Context, Replacement, TakesNodes, Target, name_nodes
from harness.log.consequences import May
from harness.log.truth import Decision, Kind, Place, Truth
from harness.units import Duration

STARTS_WITHIN_S = 20.0
OPTION = re.compile(r"-{0,2}([a-z][\w.-]*)(=|$)", re.I)  # the name in `--lr` or `optim.lr=0.1`
OF_UPDATES = re.compile(r"(^|[._-])(lr|learning[_-]?rate|weight[_-]?decay)($|[._-])", re.I)


class HotUpdate(TakesNodes):
    """Stops the targeted nodes together, and starts them again with a changed command. Nodes that are not targeted keep
    the old command; `target: {node: all}` changes all. The job must go on from its newest save, or refuse with a clear
    message (`expect: {fail_fast: …}`). Losses are compared with the fault-free run's up to the first step after the
    change. If more than learning rate or weight decay is changed, the pace is not judged after the change. The
    harness makes no restore drill after a run with this fault. The fault changes no file."""

    args: tuple[str, ...] = Field(
        (), max_length=100, description="Further words at the end of the trainer's: [--lr, 1e-4]. The last one counts."
    )
    env: Mapping[str, str] = Field({}, description="Variables that are set or changed: {NAME: value}.")
    replace: Mapping[str, str] = Field(
        {},
        description="Words of the trainer's that others take the place of: {train.py: train_next.py} starts other code,"
        " from a file beside the old one.",
    )
    shown_by: Literal["loss", "grad_norm", "lr", "count"] | None = Field(
        None, description="The figure of a step that must not be the fault-free run's afterwards; count: of samples."
    )
    replacement: Replacement = Field(Replacement(after=Duration("2s")), description="{after: 2s}: so long it is down.")

    runbook = "F7"
    needs = frozenset({Verb.KILL, Verb.REPLACE, Verb.COMMAND})
    may = frozenset({May.KILL, May.MOVE})
    truth = Truth((Kind.NONE,), Place.JOB, (Decision.IGNORE, Decision.RESTART_IN_PLACE))

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if not (self.args or self.env or self.replace):
            raise ValueError("write args:, env: or replace:, so that the job comes back with something changed")
        return self

    def change(self) -> Change:
        return Change(self.args, self.env, self.replace)

    def updates_only(self) -> bool:
        options = [word for word in self.args if "=" in word or word.startswith("-")]
        names = [found[1] for word in options if (found := OPTION.match(word))]
        return bool(names) and all(map(OF_UPDATES.search, names)) and not (self.env or self.replace)

    def shows(self) -> str:
        return self.shown_by or ""

    def describe(self, targets: Sequence[Target]) -> str:
        words = [*self.args, *(f"{name}={value}" for name, value in self.env.items())]
        words += [f"{new} for {old}" for old, new in self.replace.items()]
        after = f"{self.replacement.after} later"
        return f"{name_nodes(targets)} taken, and started again {after} with a change: {' '.join(words)}"

    def inject(self, targets: Sequence[Target], context: Context) -> None:
        context.injected()
        context.change_command()
        self.take([context.node(target) for target in targets], "updated", context)
        nodes = [context.cluster.nodes[target.node_index] for target in targets]
        context.wait(STARTS_WITHIN_S, until=lambda: all(node.alive and node.pids() for node in nodes))
        started = sum(node.alive and bool(node.pids()) for node in nodes)
        context.effect(started, len(nodes), "nodes started with the change", ok=started == len(nodes))


FAULT = HotUpdate
