"""Lists the phases of a recovery, with a readable name for each phase."""

PHASE_NAMES = {  # phase → words for people, in the usual order
    "interrupted_step": "Interrupted step",
    "detect": "Detect",
    "drain": "Drain",
    "teardown": "Teardown",
    "reschedule": "Wait for capacity",
    "startup": "Start-up",
    "rendezvous": "Rendezvous",
    "restore": "Restore",
    "first_step": "First new step",
    "recompute": "Recompute",
}
PHASES = tuple(PHASE_NAMES)


def phase_words(phase: str) -> str:
    """Returns a phase's readable name in lower case, such as `wait for capacity` for `reschedule`."""
    return PHASE_NAMES.get(phase, phase).lower().replace("_", " ")
