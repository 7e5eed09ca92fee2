"""Compares the simulator with published figures, each computed from the inputs that were published with it.

If the simulator is known to differ from a published figure, the reason is given, and the simulator's result is compared
with its own earlier result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from harness.forecast.failure_rates import load_rates
from harness.forecast.job_model import DAY_S, HOUR_S, Cause, Gaps, Job, Origin, Value, default_settings
from harness.forecast.measured_inputs import Measured, job_of
from harness.forecast.simulator import Histories, simulate
from harness.forecast.spot_policies import Deadline, run_policy, spells
from harness.theory import closed_forms

SAMPLES = 60
SPOT_SAMPLES = 600
KOKOLIS, LLAMA, BYTEROBUST = "Kokolis et al., HPCA 2025", "Llama 3", "ByteRobust, SOSP 2025"
OOBLECK, BLOOM, LATE = "Oobleck's artifact, Varuna", "BLOOM-176B", "Can't Be Late, NSDI 2024"


@dataclass(frozen=True)
class Vector:
    """A published figure, and the range (`low` to `high`) in which the simulator's figure must lie. `published` is the
    figure as its authors wrote it. `why` is the reason why the simulator is known to differ from the published figure,
    or is empty."""

    source: str
    figure: str
    published: str
    low: float
    high: float
    inputs: str
    ours: Callable[[], float]
    why: str = ""


@dataclass(frozen=True)
class Row:
    vector: Vector
    ours: float

    @property
    def ok(self) -> bool:
        return self.vector.low <= self.ours <= self.vector.high


def check_all() -> list[Row]:
    return [Row(each, each.ours()) for each in VECTORS]


def markdown(rows: Sequence[Row]) -> str:
    lines = ["| source | figure | published | ours | allowed | with |", "|---|---|---|---|---|---|"]
    for row in rows:
        each = row.vector
        allowed = f"{each.low:g} to {each.high:g}" + ("" if row.ok else ", **missed**")
        told = f"{each.inputs}. **Known divergence**: {each.why}" if each.why else each.inputs
        lines.append(f"| {each.source} | {each.figure} | {each.published} | {row.ours:.3g} | {allowed} | {told} |")
    return "\n".join(lines)


def to_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    names = ("source", "figure", "published", "low", "high", "inputs", "why")
    return [{name: getattr(row.vector, name) for name in names} | {"ours": row.ours, "ok": row.ok} for row in rows]


def _job(nodes: int, days: float, per_1000: float, /, **times: float) -> Job:
    def given(value: float) -> Value:
        return Value((value,), Origin.GIVEN, "as published")

    settings = default_settings() | {name: given(value) for name, value in times.items()}
    cause = Cause("any", per_1000 / 1000, given(0.0), settings["restart"], takes_node=False)
    return Job(nodes, days * DAY_S, (cause,), settings)


def _play(job: Job) -> Histories:
    return simulate([job], SAMPLES, seed=1)


def _ettr(nodes: int, days: float, per_1000: float, **times: float) -> float:
    return float(_play(_job(nodes, days, per_1000, **times)).ettr.mean())


def _between_h(job: Job) -> float:
    played = _play(job)
    return float(played.time.mean() / played.failures[..., :-1].sum(axis=2).mean() / HOUR_S)


def _mtbf_h(nodes: int, days: float) -> float:
    return _between_h(_job(nodes, days, 6.5, checkpoint_every=60, checkpoint_stall=0, restart=60))


def _kokolis(gpus: int, every_s: float, per_1000: float = 6.5, stall_s: float = 0, restart_s: float = 300) -> float:
    days = min(200.0, 100 / (gpus / 8 * per_1000 / 1000))
    return _ettr(gpus // 8, days, per_1000, checkpoint_every=every_s, checkpoint_stall=stall_s, restart=restart_s)


def _young(gpus: int, per_1000: float, stall_s: float) -> float:
    return closed_forms.young_interval_s(stall_s, DAY_S / (gpus / 8 * per_1000 / 1000))


def _of_table(name: str, nodes: int, days: float) -> Job:
    job = job_of(nodes, days * DAY_S, load_rates(name)[1], Gaps(), Measured())
    for change in ("checkpoint_every=10m", "queue=0s", "together=0"):
        job = job.changed(change)
    return replace(job, causes=tuple(replace(each, counted=None) for each in job.causes))


def _hot_update() -> float:
    times = [454, 545, 635, 768, 46, 51, 54, 65]
    sizes = [256, 512, 1024, 2048] * 2
    jobs = [
        _job(size, 60, 1.62, restart=time, checkpoint_every=600, checkpoint_stall=0)
        for size, time in zip(sizes, times, strict=True)
    ]
    played = simulate(jobs, SAMPLES, seed=1)
    each = played.accounts["restart"].mean(axis=1) / played.failures[..., 0].mean(axis=1)
    return float((each[:4] / each[4:]).mean())


def _mfu(step_s: float, blocked_s: float) -> float:
    return 100 * _ettr(1, 0.1, 0, checkpoint_every=step_s, checkpoint_stall=blocked_s)


def _varuna(gap_s: float, every_s: float, stall_s: float, restart_s: float) -> float:
    times = {"checkpoint_every": every_s, "checkpoint_stall": stall_s, "restart": restart_s}
    job = _job(1, 14 * gap_s / DAY_S, 1000 * DAY_S / gap_s, **times)
    return float(_play(replace(job, gaps=Gaps(trace=(1.0,)))).ettr.mean())


_B = (292.0, 15.8, 90.0)


def _spares(nodes: int) -> float:
    return closed_forms.spares_needed(nodes, 0.0012)


def _bloom(stall_s: float) -> Histories:
    return _play(_job(48, 90, 0, checkpoint_every=3 * HOUR_S, checkpoint_stall=stall_s))


def _on_demand_h(policy: str) -> float:
    job, dice = Deadline(48, 60, 0.2, 3.14), np.random.default_rng(1)
    there = spells(job, SPOT_SAMPLES, dice.beta(4, 4, SPOT_SAMPLES), 12, dice)
    return float(run_policy(policy, job, there).on_demand.mean())


def _training_dollars(deadline_h: float) -> float:
    job, dice = Deadline(72, deadline_h, 0.3, 3.06 / 0.92), np.random.default_rng(1)
    there = spells(job, SPOT_SAMPLES, 0.565, 6, dice)
    hours = run_policy("uniform progress", job, there)
    return float((3.06 * hours.paid_on_demand + 0.92 * hours.paid_spot).mean())


# fmt: off
_AT_65 = "6.5 failures per 1,000 node-days"
_SPOT = "48 h in 60 h, changeover 0.2 h; our own spells of spot, half of the time, 12 h each: so that greedy fits"
_BERT = "10 steps take 292 s (mean of 15 to 30 nodes), a save 15.8 s, a restart 90 s"
VECTORS: tuple[Vector, ...] = (
    Vector(KOKOLIS, "hours between failures, 16,384 GPUs", "1.8", 1.75, 1.85, _AT_65, lambda: _mtbf_h(2048, 10)),
    Vector(KOKOLIS, "hours between failures, 131,072 GPUs", "0.23", 0.22, 0.235, _AT_65, lambda: _mtbf_h(16384, 1)),
    Vector(KOKOLIS, "ETTR, 16,000 GPUs, interval 5 min", "0.93", 0.925, 0.937,
           f"{_AT_65}; restart 5 min, no stall", lambda: _kokolis(16000, 300)),
    Vector(KOKOLIS, "ETTR, 16,000 GPUs, interval 1 h", "0.7", 0.69, 0.73,
           f"{_AT_65}; restart 5 min, no stall", lambda: _kokolis(16000, 3600)),
    Vector(KOKOLIS, "ETTR, 4,096 GPUs, interval 1 h", "over 0.9", 0.9, 0.95,
           f"{_AT_65}; restart 5 min, no stall", lambda: _kokolis(4096, 3600)),
    Vector(KOKOLIS, "ETTR, 12,000 GPUs, stall 10 s", "0.9", 0.9, 0.93,
           f"{_AT_65}; Young's interval", lambda: _kokolis(12000, _young(12000, 6.5, 10), stall_s=10)),
    Vector(KOKOLIS, "ETTR, 12,000 GPUs, stall 5 min", "0.9", 0.885, 0.915,
           "1 per 1,000 node-days; Young's interval", lambda: _kokolis(12000, _young(12000, 1, 300), 1, stall_s=300)),
    Vector(KOKOLIS, "ETTR, 100,000 GPUs", "0.9", 0.9, 0.945,
           "2.34 per 1,000 node-days; interval and restart 2 min", lambda: _kokolis(100_000, 120, 2.34, restart_s=120)),
    Vector(KOKOLIS, "hours between failures, 1,024 GPUs", "7.9", 28, 29.6, _AT_65,
           lambda: _job(128, 1, 6.5).mtbf_s / HOUR_S, "measured on small jobs, which count more causes than this rate"),
    Vector(KOKOLIS, "days between failures, 8 GPUs", "47.7", 150, 157, _AT_65,
           lambda: _job(1, 1, 6.5).mtbf_s / DAY_S, "the same"),
    Vector(LLAMA, "hours between unexpected interruptions", "3.09", 3.0, 3.2,
           "419 by cause, 54 days, 16,384 GPUs", lambda: _between_h(_of_table("llama3", 2048, 20))),
    Vector(LLAMA, "effective training time", "over 0.9", 0.9, 0.95,
           "the same; our own detection and restart, interval 10 min, stall 10 s",
           lambda: float(_play(_of_table("llama3", 2048, 10)).ettr.mean())),
    Vector(BYTEROBUST, "hours between incidents, dense", "12.3", 11.9, 12.8,
           "175 in 3 months, 9,600 GPUs", lambda: _between_h(_of_table("byterobust-dense", 1200, 50))),
    Vector(BYTEROBUST, "ETTR, dense", "up to 0.97", 0.965, 0.975,
           "1.62 per 1,000 node-days, 22.2 min each; a checkpoint in every step",
           lambda: _ettr(1200, 50, 1.62, checkpoint_every=5, checkpoint_stall=0, restart=22.2 * 60)),
    Vector(BYTEROBUST, "hours between incidents, MoE", "5.8", 5.6, 6.0,
           "125 in 1 month, 9,600 GPUs", lambda: _between_h(_of_table("byterobust-moe", 1200, 25))),
    *(Vector(BYTEROBUST, f"spares of {nodes:,} nodes", str(spares), spares, spares,
             "enough on 99 % of days, 0.12 % of the nodes lost in a day", partial(_spares, nodes))
      for nodes, spares in ((128, 2), (256, 2), (512, 3), (1024, 4))),
    Vector(BYTEROBUST, "hot update against queueing anew", "11.04", 10.9, 11.2,
           "restarts of 454 to 768 s and of 46 to 65 s, four sizes", _hot_update),
    Vector(BYTEROBUST, "MFU %, 70B, Megatron's checkpoint", "39.84", 38.5, 41,
           "steps of 4.5 s (fits all rows), each blocked for 6.77 s", lambda: _mfu(4.5, 6.77)),
    Vector(BYTEROBUST, "MFU %, 70B, in memory", "70.05", 69, 72, "the same, 1.84 s", lambda: _mfu(4.5, 1.84)),
    Vector(BYTEROBUST, "MFU %, 70B, its own", "99.23", 98.8, 99.5, "the same, 0.04 s", lambda: _mfu(4.5, 0.04)),
    Vector(BYTEROBUST, "MFU %, 256B, Megatron's checkpoint", "43.07", 42, 44,
           "steps of 9.8 s, each blocked for 13.02 s", lambda: _mfu(9.8, 13.02)),
    Vector(BYTEROBUST, "MFU %, 256B, in memory", "95.90", 97.5, 98, "the same, 0.22 s", lambda: _mfu(9.8, 0.22),
           "blocking is not all that it costs there: a step would have to take 5.2 s"),
    Vector(OOBLECK, "effective, BERT-large, a removal in 6 h", "0.936", 0.91, 0.96, _BERT, lambda: _varuna(21600, *_B)),
    Vector(OOBLECK, "effective, BERT-large, in 1 h", "0.843", 0.8, 0.9, "the same", lambda: _varuna(3600, *_B)),
    Vector(OOBLECK, "effective, BERT-large, in 10 min", "0.544", 0.45, 0.6, "the same", lambda: _varuna(600, *_B)),
    Vector(OOBLECK, "effective, GPT-3 6.7B, a removal in 6 h", "0.800", 0.76, 0.86,
           "10 steps take 2,275 s, a save 120 s, a restart 701 s", lambda: _varuna(21600, 2275, 120, 701)),
    Vector(OOBLECK, "effective, GPT-3 6.7B, in 10 min", "0.274", 0, 0.01, "the same",
           lambda: _varuna(600, 2275, 120, 701), "a restart takes longer than the time to the next removal"),
    Vector(BLOOM, "checkpoints in 90 days", "720", 719, 720, "every 3 h, 40 s each",
           lambda: float(_bloom(40).saves.mean())),
    Vector(BLOOM, "% of the time for checkpoints", "0.37", 0.36, 0.38, "the same",
           lambda: 100 * float(1 - _bloom(40).ettr.mean())),
    Vector(BLOOM, "% with storage 5 times as slow", "about 2", 1.7, 2.1, "200 s each",
           lambda: 100 * float(1 - _bloom(200).ettr.mean())),
    Vector(LATE, "hours on demand, greedy", "30.8", 29.5, 32.5, _SPOT, lambda: _on_demand_h("greedy")),
    Vector(LATE, "hours on demand, omniscient", "20.7", 18.5, 22, _SPOT, lambda: _on_demand_h("omniscient")),
    Vector(LATE, "hours on demand, uniform progress", "25.1", 20, 22, _SPOT, lambda: _on_demand_h("uniform progress"),
           "its traces have night and day, our spells have not; they have no licence that lets us ship them"),
    Vector(LATE, "dollars, training in 84 h", "138.2", 135, 141,
           "72 h, changeover 0.3 h, $3.06 and $0.92; spot for 56.5 % of the time, 6 h each, so that this row fits",
           lambda: _training_dollars(84)),
    Vector(LATE, "dollars, training in 100 h", "122.0", 119, 127, "the same, foretold from the row above",
           lambda: _training_dollars(100)),
)
# fmt: on
