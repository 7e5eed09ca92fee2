"""Tells torch's compiler not to compile the observers' hooks, because compiled hooks would observe nothing."""

from __future__ import annotations

from typing import Any

from harness.node.observer.watch import Watch

AFTER = "torch._dynamo.trace_rules"
LEFT_ALONE = (
    "harness.node.emitter",
    "harness.node.observer.watch",
    "harness.node.observer.wrapping",
    "harness.node.observer.signals.loss",
    "harness.node.observer.signals.steps",
)


def install(_: Watch, module: Any) -> None:
    for name in LEFT_ALONE:
        module.add(name)
