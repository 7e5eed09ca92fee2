"""The strength of each fact from which a breach follows. No other file chooses one."""

from collections.abc import Sequence

from harness.judge.facts.known import By
from harness.judge.thresholds import ALLOCATED_NS

SEEN = By.SEEN  # by the harness, or told by the process that it accuses
UPDATES = By.TOLD  # only the trainer knows whether it applied an update
GROUP_SIZE = By.TOLD  # a rank tells another size than its group has
FAULT_FREE_SAVES = By.TOLD  # two runs differ, and nothing tells which is right
SAVES_BESIDE = By.TOLD  # content and names of saves, beside other saves of the same trainer only
PASSED_OVER = By.TOLD  # the trainer saw a checkpoint and did not take it
OWN_FIGURES = By.TOLD  # a rank's own loss or samples beside those of other ranks
HIDDEN_SPIKE = By.TOLD  # the reason for which samples are left out, while some steps are not told
TIMES = By.TOLD  # a process tells times of itself and of others
SILENT_RANKS = By.MISSING  # ranks with logs did none of the steps that count
IDLE_NODES = By.MISSING  # nobody tells of a step on these nodes
DEATHS = By.MISSING  # nobody tells another cause of death
NOTHING_SAVED = By.MISSING  # a drill shows nothing if no save was committed
NO_DRILL = By.MISSING  # nobody tried whether a damaged save can be loaded
UNTOLD = By.MISSING  # a figure is told elsewhere only, or nothing tells what is usual
RESTART = By.MISSING  # flaws of a whole restart follow from missing evidence
STANDSTILL = By.MISSING  # no fault explains it


def beside(fault_free: object | None, alone: By) -> By:
    """A fault-free run shows what is usual. `alone`: the strength without one."""
    return alone if fault_free is None else SEEN


def node_times(problems: Sequence[str], uncertainty_ns: int, early_ns: int) -> By:
    """A time lies so far outside of a node's that only an inexact clock or log could excuse it."""
    return TIMES if problems or uncertainty_ns or early_ns <= ALLOCATED_NS else SEEN


def figure_again(repeats: bool, name: str) -> By:
    """A second restart computed something else. A learning rate depends on the step alone."""
    return SEEN if repeats or name == "lr" else By.TOLD


def went_on(identical: bool) -> By:
    """A job went on beyond another's end. If losses end it, that proves something only where they are the same."""
    return SEEN if identical else By.TOLD


def save(told: bool) -> By:
    """Its process told that it is committed, so that a flaw speaks against that very process."""
    return SEEN if told else By.MISSING
