"""Decides how strong the evidence is for each fact that may show an error. Only this file rates evidence."""

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
DONE_OTHERWISE = By.TOLD  # a rank logs two results of one step, and the scenario compares only the last losses
HIDDEN_SPIKE = By.TOLD  # the reason for leaving out samples, while some steps are not logged
TIMES = By.TOLD  # a process logs its own times and those of others
SILENT_RANKS = By.MISSING  # ranks with logs did none of the steps that count
IDLE_NODES = By.MISSING  # no log has a step on these nodes
DEATHS = By.MISSING  # no log has another cause of death
NOTHING_SAVED = By.MISSING  # a drill shows nothing if no save was committed
NO_DRILL = By.MISSING  # nobody tried to load a damaged save
UNTOLD = By.MISSING  # a figure is logged only elsewhere, or nothing shows what is usual
RESTART = By.MISSING  # flaws of a whole restart follow from missing evidence
NO_REACTION = By.MISSING  # no log has a reaction of other systems
STANDSTILL = By.MISSING  # no fault explains the standstill


def beside(fault_free: object | None, alone: By) -> By:
    """Returns the strength `SEEN`, the highest, if there is a fault-free run to compare with, or else `alone`."""
    return alone if fault_free is None else SEEN


def of_rank(rank: str) -> By:
    """Returns how strong the evidence is that a measured value is wrong: weak for a value of one rank, `SEEN` for a
    value of the whole job."""
    return OWN_FIGURES if rank else SEEN


def node_times(problems: Sequence[str], uncertainty_ns: int, early_ns: int) -> By:
    """Returns how strong the evidence is that a step was done on a node that the job did not have at that time."""
    return TIMES if problems or uncertainty_ns or early_ns <= ALLOCATED_NS else SEEN


def figure_again(repeats: bool, name: str) -> By:
    """Returns how strong the evidence of an error is if a value differs between the run and the second restart."""
    return SEEN if repeats or name == "lr" else By.TOLD  # a learning rate depends on the step alone


def went_on(identical: bool) -> By:
    """Returns how strong the evidence of an error is if the second restart went on beyond the run's last step."""
    return SEEN if identical else By.TOLD  # a job may end once its loss is low enough


def since_change(sure: bool) -> By:
    """Returns how strong the evidence of an error is after the job was changed: weak if the change may explain the
    error."""
    return SEEN if sure else By.TOLD


def before_change(at: int, changed: int) -> By:
    """Returns how strong the evidence of a comparison at the time `at` is: weak once the job's work was changed."""
    return SEEN if at < changed else By.TOLD


def unseen(hidden: bool) -> By:
    """Returns how strong the evidence for a missing save is: weak if a fault hid the save, or may have destroyed it."""
    return By.TOLD if hidden else SEEN


def save(told: bool) -> By:
    """Returns how strong the evidence is that a save exists: strong if a process logged its commit (`told`)."""
    return SEEN if told else By.MISSING
