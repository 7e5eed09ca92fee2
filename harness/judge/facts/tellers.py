"""Whose words breaches rest on that the harness did not see, and that nobody told against itself."""

from dataclasses import dataclass

from harness.judge.facts.known import By


@dataclass(frozen=True)
class Source:
    by: By


UPDATES = Source(By.TOLD)  # nobody but the trainer knows whether it applied one
GROUP_SIZE = Source(By.TOLD)  # a rank tells another one than its group has
OTHER_LOSSES = Source(By.TOLD)  # a fault-free run ended by what it computed, and the run computed otherwise
SILENT_RANKS = Source(By.MISSING)  # ranks with logs did none of the steps that count
IDLE_NODES = Source(By.MISSING)  # nobody tells of a step there
DEATHS = Source(By.MISSING)  # nobody tells what else somebody died of
NOTHING_SAVED = Source(By.MISSING)  # a drill proves nothing of a job that had committed nothing
NO_DRILL = Source(By.MISSING)  # nobody tried whether a damaged save can be loaded
SMALL_SAVE = Source(By.TOLD)  # nobody but the trainer knows what belongs into its last save
ENDED_BY_TIME = Source(By.TOLD)  # a job that its time ends does not end at one step with and without a fault
ONE_DISTANCE = Source(By.TOLD)  # how far one run is from another is too little to accuse a third
