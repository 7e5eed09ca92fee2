"""Bending a history after its last restart, as a job that has recovered only halfway would write it."""

from typing import Any

from judging import SAVES
from simulator import Logs, clocks, put, remove, steps

STAMPS = ("mono_ns", "begin_ns", "wall_ns")


def _moved(at: int, begin: int, end: int, factor: float) -> int:
    return round((factor - 1) * min(max(at - begin, 0), end - begin))


def stretched(logs: Logs, begin: int, end: int, factor: float) -> None:
    """From `begin` to `end` (monotonic) time runs `factor` times slower, in all logs."""
    for line in (line for lines in logs.values() for line in lines):
        wall = _moved(line["mono_ns"], begin, end, factor)
        for key in STAMPS:
            if key in line:
                line[key] += wall if key == "wall_ns" else _moved(line[key], begin, end, factor)


def step_end(logs: Logs, step: int) -> int:
    """When the last life's last rank had done this step."""
    return max(steps(lines, step, step)[0]["mono_ns"] for lines in logs.last_lives())


def slower(logs: Logs, factor: float, first: int, last: int) -> None:
    """The last lives' steps after `first` up to `last` take so many times longer."""
    stretched(logs, step_end(logs, first), step_end(logs, last), factor)


def stalls(logs: Logs, seconds: float, every: int, after: int = 0) -> None:
    """The last lives stand still for so long in each step that is so many `after` a multiple of `every`."""
    first = steps(logs.last_lives()[0])[0]["step"]
    for step in range((80 - after) // every * every + after, first, -every):
        begin, end = step_end(logs, step - 1), step_end(logs, step)
        stretched(logs, begin, end, 1 + seconds * 1e9 / (end - begin))


def others_take(logs: Logs, share: float, first: int, last: int) -> None:
    """Other programs took this share of the host's CPUs between these steps of the last lives; little before that."""
    begin, end = step_end(logs, first), step_end(logs, last)
    for at in range(logs.harness[0]["mono_ns"], end, 10**8):
        told = share if at > begin else 0.05
        logs.put({"event": "host.load", "others": told, "mono_ns": at, "wall_ns": at})


def without_saves(logs: Logs, *unwanted: int) -> None:
    """The last lives do not save these steps."""
    for lines in logs.last_lives():
        remove(lines, lambda line: line.get("event") in SAVES and line["step"] in unwanted)


def saved_late(logs: Logs, step: int, instead: int) -> None:
    for lines in logs.last_lives():
        done = steps(lines, instead, instead)[0]
        for line in lines:
            if line.get("event") in SAVES and line["step"] == step:
                line |= clocks(done) | {"step": instead}
        put(lines)


def exit_takes(logs: Logs, seconds: float) -> None:
    """The commands go on for so long after the last step."""
    last = max(line["mono_ns"] for line in logs.steps())
    for line in logs.harness:
        line |= clocks(line, round(seconds * 1e9)) if line["mono_ns"] > last else {}


def drilled(logs: Logs, **finished: Any) -> None:
    """The harness made a restore drill before the nodes were released. Its begin is not told, as the drill's own log
    is that of another history, at another time."""
    logs.harness.insert(-1, clocks(logs.harness[-1]) | {"event": "drill.finished"} | finished)


def effect_ended(logs: Logs, ok: bool) -> None:
    measured = {"measured": 400 if not ok else 900, "expected": 900, "unit": "Mbit/s", "ok": ok}
    logs.harness.insert(-1, clocks(logs.harness[-1]) | {"event": "fault.ended", "fault": "fault1"} | measured)
