"""Whose words breaches rest on that the harness did not see, and that nobody told against itself."""

from __future__ import annotations

from dataclasses import dataclass

from harness.judge.facts.known import By


@dataclass(frozen=True)
class Word:
    by: By


UPDATES = Word(By.TOLD)  # nobody but the trainer knows whether it applied one
GROUP_SIZE = Word(By.TOLD)  # a rank tells another one than its group has
OTHER_LOSSES = Word(By.TOLD)  # a fault-free run ended by what it computed, and the run computed otherwise
SILENT_RANKS = Word(By.MISSING)  # ranks with logs did none of the steps that count
IDLE_NODES = Word(By.MISSING)  # nobody tells of a step there
DEATHS = Word(By.MISSING)  # nobody tells what else somebody died of
