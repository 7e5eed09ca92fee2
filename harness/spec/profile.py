"""Applies a profile: values that replace those of a scenario, for example for a larger machine."""

from collections.abc import Callable, Mapping
from typing import Any

from harness.errors import choice
from harness.spec.document import Document, MarkedList, MarkedMap, Path, dotted, mark_in

KEYS = ("workload", "faults", "expect", "abort", "limits", "repeat", "title")
_WHOLE = ("when", "target")  # replaced as a whole: half of one trigger and half of another are none


def lay_profile(document: Document, overlay: Any, path: Path) -> None:
    """Replaces values of a scenario by those of its profile at `path`. A profile's `faults` are keyed by fault id."""
    if not isinstance(overlay, dict):
        document.problem(path, "a profile is a mapping like {workload: {nodes: 8}}")
        return

    def problem(inner: Path, message: str) -> None:
        document.problem_at(mark_in(overlay, inner, document.mark(path)), f"{dotted((*path, *inner))}: {message}")

    known = {key: value for key, value in overlay.items() if key in KEYS}
    for key in overlay.keys() - known.keys():
        problem((key,), f"unknown key; {choice(key, KEYS)}")
    if "faults" in known:
        known["faults"] = _faults(document, known["faults"], problem)
    document.data = _laid(document.data, MarkedMap(known, getattr(overlay, "marks", {})))


def _faults(document: Document, overlay: Any, problem: Callable[[Path, str], None]) -> Any:
    faults = document.data.get("faults")
    if not isinstance(overlay, dict):
        problem(("faults",), "faults of a profile are keyed by fault id, like {evict: {notice: 120s}}")
        return faults
    laid = list(faults) if isinstance(faults, list) else []
    places = {str(fault.get("id")): place for place, fault in enumerate(laid) if isinstance(fault, dict)}
    for fault_id, value in overlay.items():
        if fault_id in places:
            laid[places[fault_id]] = _laid(laid[places[fault_id]], value)
        else:
            problem(("faults", fault_id), f"unknown fault {fault_id!r}; {choice(fault_id, places)}")
    return MarkedList(laid, faults.marks) if isinstance(faults, MarkedList) else faults


def _laid(base: Any, over: Any) -> Any:
    if not (isinstance(base, MarkedMap) and isinstance(over, Mapping)):
        return over
    data = {key: value if key in _WHOLE else _laid(base.get(key), value) for key, value in over.items()}
    return MarkedMap({**base, **data}, {**base.marks, **getattr(over, "marks", {})})
