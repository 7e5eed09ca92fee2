"""Compares the operations on nodes that a plan needs with those that a backend can do on this machine."""

from harness.backends.contract import NO_LABELS, Capability, Verb, backend_names, load_backend
from harness.errors import CannotRunError
from harness.faults.contract import missing_here
from harness.plan.rdma_paths import refused
from harness.plan.run_plan import Plan


def check_capabilities(plan: Plan, capability: Capability) -> None:
    """Raises `CannotRunError` if a plan needs operations that the backend cannot do here, with the reason for each."""
    if not capability.available:
        raise CannotRunError(f"backend {plan.backend}: {capability.summary}")
    found = [f"{reason}{_who_can(plan.backend, verb)}" for verb, reason in lacking(plan, capability)]
    if found:
        raise CannotRunError("\n".join(found))


def lacking(plan: Plan, capability: Capability) -> list[tuple[Verb | None, str]]:
    """Returns the operations on nodes that a plan needs and the backend lacks, each with the reason. If the backend
    lacks something else that the plan needs, such as a Python package, the operation is `None`."""
    found: list[tuple[Verb | None, str]] = []
    if any(fault.domain for fault in plan.faults) and not load_backend(plan.backend).labels:
        found.append((None, f"workload: node_labels_from: {plan.workload.node_labels_from}: {NO_LABELS}"))
    for fault in plan.faults:
        name = f"fault {fault.id} ({fault.kind})"
        found += [(None, f"{name}: {what}") for what in missing_here(type(fault.action))]
        for verb in sorted(fault.action.needed() - capability.verbs):
            reason = capability.missing.get(verb, f"backend {plan.backend} does not have it")
            found.append((verb, f"{name} needs '{verb.value}': {reason}"))
        if capability.rdma and (why := refused(fault, plan.workload, "this machine", capability.rdma)):
            found.append((None, why))
    return found


def never_here(plan: Plan) -> list[str]:
    """Returns, without a probe of this machine, why its backend can never do some operations that a plan needs."""
    ways = list(load_backend(plan.backend).lacks().values())
    never = set[Verb].intersection(*(set(way) for way in ways)) if ways else set[Verb]()
    return [
        f"fault {planned.id} ({planned.kind}) needs '{verb.value}': {ways[0][verb]}"
        for planned in plan.faults
        for verb in sorted(planned.action.needed() & never)
    ]


def _who_can(backend: str, verb: Verb | None) -> str:
    if verb is None:
        return ""
    others = [name for name in backend_names() if name != backend and verb in load_backend(name).probe().verbs]
    return f"; backend {others[0]} can do it here" if others else ""
