"""Strengths of evidence for breaches that follow from other witnesses than the harness and the accused process."""

from dataclasses import dataclass

from harness.judge.facts.known import By


@dataclass(frozen=True)
class Source:
    by: By


UPDATES = Source(By.TOLD)  # only the trainer knows whether it applied an update
GROUP_SIZE = Source(By.TOLD)  # a rank tells another size than its group has
OTHER_LOSSES = Source(By.TOLD)  # a fault-free run ended by its losses, and this run's differ
SILENT_RANKS = Source(By.MISSING)  # ranks with logs did none of the steps that count
IDLE_NODES = Source(By.MISSING)  # nobody tells of a step on these nodes
DEATHS = Source(By.MISSING)  # nobody tells another cause of death
NOTHING_SAVED = Source(By.MISSING)  # a drill shows nothing if no save was committed
NO_DRILL = Source(By.MISSING)  # nobody tried whether a damaged save can be loaded
SMALL_SAVE = Source(By.TOLD)  # only the trainer knows what belongs into its last save
ENDED_BY_TIME = Source(By.TOLD)  # a time limit ends a job at different steps
ONE_DISTANCE = Source(By.TOLD)  # the distance of two runs is too little to accuse a third
