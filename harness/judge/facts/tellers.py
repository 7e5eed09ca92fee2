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
