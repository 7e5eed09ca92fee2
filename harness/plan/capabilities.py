"""What a plan needs, against what a backend has here."""

from __future__ import annotations

from collections.abc import Iterator

from harness.backends.contract import Capability, Verb, backend_names, load_backend
from harness.errors import CannotRunError
from harness.plan.model import Plan, PlannedFault


def check_capabilities(plan: Plan, capability: Capability) -> None:
    """Refuses a plan that needs a verb the backend does not have here, and names the reason for each."""
    if not capability.available:
        raise CannotRunError(f"backend {plan.backend}: {capability.summary}")
    lacking = [reason for fault in plan.faults for reason in _lacking(fault, plan.backend, capability)]
    if lacking:
        raise CannotRunError("\n".join(lacking))


def _lacking(planned: PlannedFault, backend: str, capability: Capability) -> Iterator[str]:
    name = f"fault {planned.id} ({planned.kind})"
    yield from (f"{name}: {what}" for what in planned.action.lacks())
    for verb in sorted(planned.action.needed() - capability.verbs):
        reason = capability.missing.get(verb, f"backend {backend} does not have it")
        yield f"{name} needs '{verb.value}': {reason}{_who_can(backend, verb)}"


def _who_can(backend: str, verb: Verb) -> str:
    others = [name for name in backend_names() if name != backend and verb in load_backend(name).probe().verbs]
    return f"; backend {others[0]} can do it here" if others else ""
