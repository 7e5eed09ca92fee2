"""Which runbook in `docs/runbooks/` says what to do about the failure that a fault rehearses."""

from __future__ import annotations

_MODES = {
    **dict.fromkeys(["start_failure", "process_exception", "own_code"], "F1"),
    **dict.fromkeys(["straggler", "gil_hold", "clock_skew"], "F2"),
    **dict.fromkeys(["nic_bandwidth", "nic_latency", "nic_loss", "nic_flap", "partition", "rendezvous_loss"], "F3"),
    **dict.fromkeys(
        ["checkpoint_corruption", "checkpoint_torn_write", "storage_error", "storage_full", "object_store"], "F4"
    ),
    **dict.fromkeys(["silent_data_corruption"], "F5"),
    **dict.fromkeys(["oom", "memory_pressure"], "F6"),
    **dict.fromkeys(["preemption", "node_loss", "rank_kill", "agent_loss"], "F7"),
    **dict.fromkeys(["storage_contention", "storage_slow"], "F8"),
    **dict.fromkeys(["hang"], "F9"),
    **dict.fromkeys(["data_corruption", "data_loader_stall"], "F10"),
}


def runbook_of(kind: str) -> str | None:
    """Its path in the repository; `None` for a fault of somebody else's."""
    mode = _MODES.get(kind)
    return f"docs/runbooks/{mode}.md" if mode else None
