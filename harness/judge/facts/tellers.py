"""The strength of each fact from which a breach follows. No other file chooses a strength."""

from collections.abc import Sequence

from harness.judge.facts.known import By
from harness.judge.thresholds import ALLOCATED_NS

SEEN = By.SEEN  # seen by the harness, or logged by the accused process
UPDATES = By.TOLD  # only the trainer knows whether it applied an update
GROUP_SIZE = By.TOLD  # a rank logs a group size that is not its group's size
FAULT_FREE_SAVES = By.TOLD  # two runs differ, and nothing shows which is right
SAVES_BESIDE = By.TOLD  # content and names of saves, compared only with other saves of the same trainer
PASSED_OVER = By.TOLD  # the trainer saw a checkpoint and did not restore it
OWN_FIGURES = By.TOLD  # a rank's own loss or samples, compared with those of other ranks
HIDDEN_SPIKE = By.TOLD  # the reason for leaving out samples, while some steps are not logged
TIMES = By.TOLD  # a process logs its own times and those of others
SILENT_RANKS = By.MISSING  # ranks with logs did none of the steps that count
IDLE_NODES = By.MISSING  # no log has a step on these nodes
DEATHS = By.MISSING  # no log has another cause of death
NOTHING_SAVED = By.MISSING  # a drill shows nothing if no save was committed
NO_DRILL = By.MISSING  # nobody tried to load a damaged save
UNTOLD = By.MISSING  # a figure is logged only elsewhere, or nothing shows what is usual
RESTART = By.MISSING  # flaws of a whole restart follow from missing evidence
STANDSTILL = By.MISSING  # no fault explains the standstill


def beside(fault_free: object | None, alone: By) -> By:
    """Returns `SEEN` if a fault-free run shows what is usual, else `alone`."""
    return alone if fault_free is None else SEEN


def node_times(problems: Sequence[str], uncertainty_ns: int, early_ns: int) -> By:
    """Returns the strength of a time outside its node's time: `SEEN` if far outside, with exact clock and log."""
    return TIMES if problems or uncertainty_ns or early_ns <= ALLOCATED_NS else SEEN


def figure_again(repeats: bool, name: str) -> By:
    """Returns the strength of another value in a second restart. A learning rate (`lr`) depends on the step alone."""
    return SEEN if repeats or name == "lr" else By.TOLD


def went_on(identical: bool) -> By:
    """Returns the strength of the fact that a job went on beyond another job's end. If losses decide the end, only
    identical losses make this fact a proof."""
    return SEEN if identical else By.TOLD


def save(told: bool) -> By:
    """Returns the strength of a save's flaw. `told`: a process logged the commit, so the flaw accuses this process."""
    return SEEN if told else By.MISSING
