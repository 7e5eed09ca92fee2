"""Derives the consequences of faults from logs of older versions, which do not record these consequences.

Other readers of logs do not depend on the names or parameters of faults.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from harness.log.consequences import Consequences, May, duration
from harness.units import Duration

_OF_NETWORK = ("nic_bandwidth", "nic_flap", "nic_latency", "nic_loss", "partition")
_UNSAID = {  # consequences that the first logs did not tell
    May.MOVE: ("data_corruption", "data_skew", "own_code", "silent_data_corruption"),
    May.SKEW: ("data_skew",),
}
_DAMAGING = ("checkpoint_corruption", "checkpoint_torn_write")


def consequences(event: Mapping[str, Any], planned: Mapping[str, Any], kind: str) -> Consequences:
    parameters = planned.get("parameters") or {}
    freezes = kind == "hang" and parameters.get("how") in ("freeze_rank", "freeze_node")
    if "may" in event:
        told_itself = Consequences.from_event(event)
        may = told_itself.may.union(each for each, kinds in _UNSAID.items() if kind in kinds)
        return replace(told_itself, may=may, freezes=told_itself.freezes or freezes)
    unsaid = {f"{each}s": kind in kinds for each, kinds in _UNSAID.items()}
    told = {"spoils": not event.get("kills", False), **unsaid, **event}
    notice, steps, back = parameters.get("notice"), parameters.get("steps"), parameters.get("replacement")
    return Consequences(
        may=frozenset(each for each in May if told.get(f"{each}s")),
        lasts=duration(parameters.get("duration")),
        notice_ns=(duration(notice) or Duration("0s")).ns if "notice" in parameters else None,
        freezes=freezes,
        graceful=parameters.get("signal") == "SIGTERM",
        network=kind in _OF_NETWORK,
        clocks="clock_skew" in (kind, planned.get("fault")),
        preempts=kind == "preemption",
        damages=kind in _DAMAGING,
        replaced=None if back is None else back != "none",
        spoilt_steps=steps if isinstance(steps, int) and told.get("diverges") else None,
    )
