"""Runs to measure with: stored ones, and as many simulated ones as wanted, faulted and damaged. The same for each seed."""

import json
import pathlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from judge.test_forged import CASES, unpack
from judge.test_golden import EVERYTHING
from judging import EXPECT, by_a_command, expecting
from mutants.bent import BROKEN
from simulator import KINDS, History, Job, Logs, Outage, simulate

NOT_RUNS = ("fault-free", "twin", "drill")  # folders with events inside a run's
JOBS = [
    Job(nodes=2, steps=40),
    Job(nodes=2, steps=64),
    Job(nodes=3, steps=48, min_nodes=2, every=8),
    Job(nodes=1, ranks_per_node=2, steps=40, every=7),
    Job(nodes=2, ranks_per_node=2, steps=40, noise=0.2),
    Job(nodes=2, steps=60, foreign_clocks=True),
    Job(nodes=2, steps=40, agents=False),
    Job(nodes=2, steps=50, pauses=0.1, disk_ms=30),
]
EXPECTED: list[dict[str, Any]] = [
    EXPECT,
    EVERYTHING,
    {"loss_continuity": {"mode": "final"}, "pace": {"max_slowdown": 1.2}, "last_checkpoint": {}},
    {"loss_continuity": {"mode": "envelope"}, "recovery_time": {"max": "2s", "first_step_max": "1s"}},
    {"fail_fast": {"max": "30s"}},
    {},
]


@dataclass(frozen=True)
class Stored:
    name: str
    path: pathlib.Path
    allowed: tuple[str, ...] = ()  # verdicts that are right for it, if somebody said so


def stored(folder: pathlib.Path) -> list[Stored]:
    """Those of a `cases.json`, beside or in the folder; else each folder below that holds events."""
    listed = next((place / "cases.json" for place in (folder, folder.parent) if (place / "cases.json").exists()), None)
    if listed is not None:
        cases, held = json.loads(listed.read_text()), listed.parent / "cases"
        return [Stored(f"{listed.parent.name}/{c['id']}", held / c["id"], tuple(c["allowed"])) for c in cases]
    found = sorted(path.parent for path in folder.rglob("events") if path.is_dir())
    runs = [path for path in found if path.name not in NOT_RUNS and not path.name.startswith("calibration-")]
    return [Stored(f"{folder.name}/{path.relative_to(folder)}", path) for path in runs]


def golden(folder: pathlib.Path) -> list[Stored]:
    """The histories that the tests hold, unpacked into this folder."""
    unpack(folder)
    return [Stored(f"golden/{c['id']}", folder / c["id"], tuple(c["allowed"])) for c in CASES]


def simulated(folder: pathlib.Path, count: int, seed: int) -> Iterator[Stored]:
    """First each of the broken histories that tests know, by name, then jobs, faults and damage by chance."""
    broken = sorted(BROKEN, key=lambda each: each.name)
    for number in range(count):
        chance = random.Random(f"{seed} {number}")
        bent = broken[number] if number < len(broken) else None
        job = bent.job if bent else chance.choice(JOBS)
        outages = bent.outages if bent else tuple(_outage(chance, job) for _ in range(chance.choice((0, 1, 1, 2, 3))))
        history = simulate(job, outages, seed=5 if bent else chance.randrange(10**6))
        logs = expecting(history.logs(), EXPECT if bent else chance.choice(EXPECTED))
        damages: list[Damage] = [bent.bend] if bent else chance.choices(DAMAGES, k=chance.choice((0, 0, 1, 1, 1, 2)))
        name = bent.name if bent else "+".join(damage.__name__ for damage in damages) or "whole"
        for damage in damages:
            _apply(damage, logs, chance)
        yield _write(folder, f"{number:04}-{name}", history, logs, chance)


Damage = Callable[..., object]


def _apply(damage: Damage, logs: Logs, chance: random.Random) -> None:
    """Damage that does not fit this history leaves it as far as it came."""
    try:
        damage(logs, chance) if damage in BY_CHANCE else damage(logs)
    except (LookupError, StopIteration, AssertionError, ValueError, TypeError):
        return


def _outage(chance: random.Random, job: Job) -> Outage:
    kind = chance.choice([*KINDS, "rank", "replica", "departure"])
    kind = "rank" if job.nodes < 2 and kind in ("shrink", "departure", "replica") else kind
    back = chance.choice((None, 6)) if kind == "shrink" else None
    return Outage(
        chance.randint(3, 20), kind, chance.randrange(job.nodes), regrow_after=back, torn=chance.random() < 0.3
    )


def _write(folder: pathlib.Path, name: str, history: History, logs: Logs, chance: random.Random) -> Stored:
    run_dir = folder / name
    history.write(run_dir, Logs({writer: lines for writer, lines in logs.items() if lines}))
    if chance.random() < 0.9:
        simulate(replace(history.job, foreign_clocks=False), (), 99).write(run_dir / "fault-free")
    if chance.random() < 0.2:
        simulate(replace(history.job, foreign_clocks=False), (), 98).write(run_dir / "calibration-1")
    return Stored(f"simulated/{name}", run_dir)


# Damage by chance


def loses_events(logs: Logs, chance: random.Random) -> None:
    """Some or all events of one kind, of one writer or of all."""
    kind = chance.choice(sorted({line["event"] for lines in logs.values() for line in lines if "event" in line}))
    share, only = chance.choice((0.1, 0.5, 1.0)), chance.choice([*sorted(logs), None])
    for name, lines in logs.items():
        if only in (name, None):
            lines[:] = [line for line in lines if line.get("event") != kind or chance.random() >= share]


def changes_a_number(logs: Logs, chance: random.Random) -> None:
    """One field of one event, or of all events of this kind by one writer."""
    lines = logs[chance.choice(sorted(logs))]
    line = chance.choice([line for line in lines if "event" in line])
    name = chance.choice([key for key, value in line.items() if isinstance(value, int | float) and key != "wall_ns"])
    by = chance.choice((1, -1, 7, 10**9, -(10**9), 0.5))
    for each in lines if chance.random() < 0.3 else [line]:
        if each.get("event") == line["event"] and isinstance(each.get(name), int | float):
            each[name] = type(each[name])(each[name] + by) if name != "mono_ns" else each[name] + int(by) * 10**6


def loses_a_field(logs: Logs, chance: random.Random) -> None:
    line = chance.choice([*logs.all("step")])
    name = chance.choice([key for key in line if key not in ("event", "wall_ns", "mono_ns", "step")])
    rank = chance.choice((None, 0, 1))
    for each in (each for lines in logs.trainers(rank=rank) for each in lines if each.get("event") == "step"):
        each.pop(name, None)


def flips_a_flag(logs: Logs, chance: random.Random) -> None:
    lines = [line for line in logs.harness if any(isinstance(value, bool) for value in line.values())]
    line = chance.choice(lines)
    name = chance.choice([key for key, value in line.items() if isinstance(value, bool)])
    line[name] = not line[name]


def loses_a_writer(logs: Logs, chance: random.Random) -> None:
    del logs[chance.choice([name for name in sorted(logs) if name != "harness"])]


def ends_otherwise(logs: Logs, chance: random.Random) -> None:
    logs.harness[-1].update(outcome=chance.choice(("failed", "aborted", "interrupted", "odd")), reason="by chance")


def drops_lines(logs: Logs, chance: random.Random) -> None:
    lines = chance.choice(logs.trainers())
    at = chance.randrange(2, len(lines) - 2)
    del lines[at : at + 3]
    lines[at]["dropped"] = 3


def coarsens_clocks(logs: Logs, chance: random.Random) -> None:
    """Much happens at the same moment; the order in the files stays."""
    grain_ns = chance.choice((16, 48, 100)) * 10**6  # a step takes 48 ms
    for line in (line for lines in logs.values() for line in lines):
        line |= {key: line[key] - line[key] % grain_ns for key in ("mono_ns", "wall_ns", "begin_ns") if key in line}


BY_CHANCE: list[Damage] = [
    loses_events,
    loses_events,
    changes_a_number,
    changes_a_number,
    loses_a_field,
    flips_a_flag,
    loses_a_writer,
    ends_otherwise,
    drops_lines,
    coarsens_clocks,
]
DAMAGES: list[Damage] = [*BY_CHANCE, *BY_CHANCE, by_a_command, *(bent.bend for bent in BROKEN)]
