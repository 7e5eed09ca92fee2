"""Reads torchtitan's structured logs: one file per rank and process start, with one JSON line per record.

The files are `<output>/structured_logs/<source>.global_rank_<rank>.<time>-<random>.jsonl`. A training step ends with a
record `step_end`. Records of checkpoints are ignored, because torchtitan writes them even if nothing is saved.
"""

import json
from collections.abc import Iterator
from typing import Any

from harness.trainers.readers.contract import LineSource, Reader, Told, count, known, number

LOSSES = ("loss", "train.loss", "loss_metrics/global_avg_loss", "global_avg_loss")
NORMS = ("grad_norm", "train.grad_norm")
RATES = ("lr", "train.lr")


class TorchtitanSource(LineSource):
    def __init__(self) -> None:
        super().__init__()
        self._scalars: dict[str, float] = {}

    def line(self, text: str) -> Iterator[Told]:
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):
            return
        if isinstance(record, dict):
            yield from self._record(record)

    def _record(self, record: dict[str, Any]) -> Iterator[Told]:
        name, value = record.get("log_type_name"), number(record.get("value"))
        if name == "step_start":
            self._scalars.clear()
        elif name == "metric_value" and value is not None and len(self._scalars) < 1000:
            self._scalars[str(record.get("event_name"))] = value
        step, micros = count(record.get("step")), count(record.get("time_us"))
        if name == "step_end" and step is not None:
            told = known(step=step, loss=self._first(LOSSES), grad_norm=self._first(NORMS), lr=self._first(RATES))
            took_ns = None if value is None or not 0 <= value < 1e12 else round(value * 1e6)
            yield Told("step", told, micros and micros * 1000, took_ns, count(record.get("rank")) or 0)

    def _first(self, names: tuple[str, ...]) -> float | None:
        return next((self._scalars[name] for name in names if name in self._scalars), None)


class Torchtitan(Reader):
    tells = frozenset({"steps", "loss"})
    timed = True
    source = TorchtitanSource


READER = Torchtitan
