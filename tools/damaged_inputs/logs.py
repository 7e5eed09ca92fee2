"""Damaged event logs: whatever they hold, reading and judging one ends soon, in a verdict or in one clear error. No score
raises on a log that can be read: one that did would be inconclusive with a crash for its reason.

`run(count, seed)` tries so many: first every field of every event with every odd value, in an order that the seed
decides; then as many random changes as are left. `python -m damaged_inputs.logs 20000` does it by hand (with `PYTHONPATH=tests:tools`).
"""

import contextlib
import copy
import json
import math
import pathlib
import random
import re
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from judging import EXPECT, expecting, fault_free_of
from simulator import History, Job, Logs, Outage, simulate

from harness.errors import EventLogError
from harness.evidence.logs import part_of
from harness.judge.score import Evidence, judge
from harness.judge.verdict import Verdict
from harness.log.event_log import Tail
from harness.report.run_report import from_scorecard
from harness.run.live_progress import LiveProgress
from harness.timeline import timeline, window
from harness.timeline.timeline import Timeline

EXPECTS: list[dict[str, Any]] = [  # what the damaged runs are judged by
    EXPECT,
    {},
    {
        "loss_continuity": {"mode": "envelope", "max_spike": 0.5, "max_samples_skipped": 1},
        "recovery_time": {"max": "60s", "first_step_max": "30s", "phases": {"restore": "5s", "recompute": "9s"}},
        "metrics": {"detection_max": "5s", "step_p99_max": "5s", "max_false_alarms": 0, "steps_rolled_back_max": 9},
        "wasted_gpu_hours": {"max_percent": 90, "max_gpu_seconds_by_faults": 50},
    },
    {
        "loss_continuity": {"mode": "final", "max_final_gap": "5%"},
        "metrics": {"checkpoint_success_min": "50%", "resume_success_min": "50%"},
        "exit_time": {"max": "30s"},
        "pace": "off",
    },
    {"loss_continuity": {"mode": "ulp"}, "checkpoint_rhythm": {"max_missed": 0}, "gpus_in_use": {"max_idle_steps": 1}},
]
CRASHED = "the scorer crashed"
CASE_CPU_S_MAX = 20.0  # of one log; far above what any takes
CASE_BYTES_MAX = 1 * 2**30  # more than there is already
MESSAGE_CHARS_MAX = 2000
SYSTEMATIC_SHARE = 0.4

DEEP: Any = []
for _ in range(200):
    DEEP = [DEEP]

VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 7, 10**9, 10**6, -(10**9), 2**31, 2**53, 2**62, 2**63 - 1, 2**63, -(2**63), 10**30),
    *(0.5, -0.0, 2.0, 1e308, math.inf, -math.inf, math.nan, "nan", "inf", "-inf"),
    *("", "x", "node0", "node1", "0", "a\0b", "\x1b[31mred", "[bold]x[/nope]", "\u202eabc", "\ud800", "é" * 3000),
    *([], {}, [[]], [None], [{}], {"node": 1}, {"a": {"b": 1}}, [1, "x"], DEEP, "x" * 100_000),
]
RAW = [
    *(b"", b"{", b"[]", b"null", b'"x"', b"{}", b"\0" * 50, b"\xff\xfe{}", b"[" * 50_000, b'{"a":' * 50_000, b"NaN"),
    *(b'{"event":"step"}', b'{"event":"step","step":1,"step":2,"mono_ns":5,"event":"x"}', b'{"event":5,"mono_ns":5}'),
    *(b'{"event":"x","mono_ns":' + b"9" * 5000 + b"}", b'{"event":"x","mono_ns":1e999}', b"\r", b'{"mono_ns":1} {}'),
    *(b'{"event":"step","step":1,"mono_ns":5,"loss":NaN}', b'{"event":"\xed\xa0\x80","mono_ns":5}', b"\x1b[2J"),
    *(b'{"event":"rendezvous","world_size":1000000000,"mono_ns":5}', b'{"schema":1,"role":"harness","mono_ns":5}'),
]


@dataclass(frozen=True)
class Seed:
    """A whole history, its lines by file, and the fault-free run to judge it by."""

    logs: Logs
    fault_free: Timeline


@dataclass
class Tally:
    """How many logs were read and judged, how many refused, and the mistakes in our own code."""

    read: int = 0
    refused: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)


class TooLong(BaseException):
    """Of a case; not an Exception, so that no scorer catches it."""


Files = dict[str, list[bytes]]  # file name → lines
Case = Callable[[], tuple[Files, Timeline]]


def run(count: int, seed: int) -> Tally:
    """Judges so many damaged logs. A broken one is named with its number, which makes it again."""
    tally, seeds = Tally(), list(_seeds())
    with _limited():
        for number in range(count):
            one(seeds, number, seed, tally)
    return tally


def one(seeds: list[Seed], number: int, seed: int, tally: Tally) -> None:
    dice = random.Random(f"{seed}/{number}")
    history = dice.choice(seeds)
    files = _encoded(_systematic(dice, history) if dice.random() < SYSTEMATIC_SHARE else _at_random(dice, history))
    if dice.random() < 0.15:
        _cut_up(dice, files)
    with tempfile.TemporaryDirectory(dir=_fast_folder()) as folder:
        events = pathlib.Path(folder) / "events"
        write(events, files, nested=dice.random() < 0.5)
        try:
            fault_free = None if dice.random() < 0.1 else history.fault_free
            problem = _outcome(events, fault_free, dice.random() if dice.random() < 0.2 else None, tally)
        except TooLong:
            problem = f"took more than {CASE_CPU_S_MAX} s of CPU"
        except BaseException as error:  # this is what is looked for
            if isinstance(error, KeyboardInterrupt):
                raise
            problem = f"{type(error).__name__}: {str(error)[:300]}"
    if problem:
        tally.broken.append(f"{seed}/{number}: {problem}")


def _window(evidence: Evidence, since: float) -> Evidence:
    """As a rehearsal is judged that began when this share of the run was over."""
    run = evidence.run
    begin = run.begin + int(since * (run.end - run.begin))
    return part_of(replace(evidence, run=window.narrowed(run, begin)))


def _outcome(events: pathlib.Path, fault_free: Timeline | None, since: float | None, tally: Tally) -> str:
    """What is wrong with how a log was dealt with: nothing, if it was judged or refused with a place.

    Without a fault-free run the run is its own, so that this is damaged, too. `since`: see `_window`.
    """
    signal.setitimer(signal.ITIMER_PROF, CASE_CPU_S_MAX)
    try:
        odd = _followed(events)
        run = timeline.load(events.parent)
        evidence = Evidence(run, fault_free or run, [fault_free or run])
        card = judge(evidence if since is None else _window(evidence, since), "fuzzed")
        report = from_scorecard(card).to_json()
        json.dumps(report, allow_nan=False).encode()
    except EventLogError as error:
        tally.refused += 1
        return _unclear(str(error), odd)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    tally.read += 1
    tally.verdicts[report["verdict"]] += 1
    crash = next((reason for reason in card.reasons if CRASHED in reason), "")
    return crash if report["verdict"] in set(Verdict) else f"verdict {report['verdict']!r}"


def _followed(events: pathlib.Path) -> int:
    """As a running harness does: nothing that a trainer tells ends its loop. Returns how much of it was odd."""
    tail, progress = Tail(events), LiveProgress()
    while new := tail.poll():
        for header, event in new:
            progress.absorb(header, event, time.monotonic_ns())
    return tail.odd


def _unclear(message: str, odd: int) -> str:
    line = re.search(r"\.jsonl:\d+: ", message)
    if not message or len(message) > MESSAGE_CHARS_MAX or not message.isprintable():
        return f"not a clear message: {message[:300]!r}"
    if line and not odd:
        return f"seen afterwards and not while it ran: {message}"
    named = line or ".jsonl: " in message or "days off the harness's" in message or "the event log is empty" in message
    return "" if named else f"no file is named: {message}"


def write(events: pathlib.Path, files: Files, nested: bool) -> None:
    """The log's files; nested where every other writer has a node to be put under."""
    events.mkdir(parents=True)
    for name, lines in files.items():
        place = re.fullmatch(r"\w+-(node\d+)\.\d+-.*", name)
        folder = events / place[1] if nested and place else events
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))


def _seeds() -> Iterator[Seed]:
    stories: list[tuple[Job, list[Outage]]] = [
        (Job(nodes=2, steps=24, every=6), [Outage(9, "rank", victim=1, torn=True)]),
        (Job(nodes=2, steps=24, every=6), [Outage(9, "notice", victim=1)]),
        (Job(nodes=3, ranks_per_node=2, steps=20, every=5), [Outage(7, "node", victim=1, again="restore")]),
        (Job(nodes=2, steps=24, every=6), [Outage(8, "shrink", victim=1, regrow_after=5), Outage(9, "crash")]),
        (Job(nodes=2, steps=24, every=6, foreign_clocks=True), [Outage(9, "rollback"), Outage(5, "rank")]),
        (Job(nodes=2, steps=24, every=6, agents=False), [Outage(9, "rank")]),
    ]
    for number, (job, outages) in enumerate(stories):
        history: History = simulate(job, outages, number)
        fault_free = fault_free_of(replace(job, foreign_clocks=False))
        yield from (Seed(expecting(history.logs(), expect), fault_free) for expect in EXPECTS)


def _systematic(dice: random.Random, history: Seed) -> Logs:
    """One field of one line, anywhere in it, has one odd value; or is gone."""
    logs = copy.deepcopy(history.logs)
    lines = logs[dice.choice(sorted(logs))]
    kind = dice.choice(sorted({str(line.get("event")) for line in lines}))
    line = dice.choice([line for line in lines if str(line.get("event")) == kind])
    holder, key = dice.choice(list(_places(line)))
    if dice.random() < 0.1:
        del holder[key]
    else:
        holder[key] = dice.choice(VALUES)
    return logs


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every key and every index in it, at any depth."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def _at_random(dice: random.Random, history: Seed) -> Logs:
    """Changes that keep most lines proper: what is told is lost, told twice, told later, told wrongly."""
    logs = copy.deepcopy(history.logs)
    for _ in range(dice.choice([1, 1, 2, 5, 20])):
        name = dice.choice(sorted(logs))
        lines = logs[name]
        if len(lines) > 1:
            dice.choice(CHANGES)(dice, lines)
        elif dice.random() < 0.5:
            lines.append({"event": "started", "mono_ns": dice.randrange(10**10)})
    if dice.random() < 0.1:
        del logs[dice.choice(sorted(logs))]
    if dice.random() < 0.05:
        name = dice.choice(sorted(logs))
        logs[name.replace("-1", "-2") + "0"] = copy.deepcopy(logs[name])
    return logs


def _drop(dice: random.Random, lines: list[dict[str, Any]]) -> None:
    del lines[dice.randrange(1, len(lines))]


def _drop_kind(dice: random.Random, lines: list[dict[str, Any]]) -> None:
    kind = dice.choice(lines[1:]).get("event")
    lines[1:] = [line for line in lines[1:] if line.get("event") != kind]


def _cut(dice: random.Random, lines: list[dict[str, Any]]) -> None:
    del lines[dice.randrange(1, len(lines)) :]


def _repeat(dice: random.Random, lines: list[dict[str, Any]]) -> None:
    place = dice.randrange(1, len(lines))
    lines[place:place] = [copy.deepcopy(lines[place]) for _ in range(dice.choice([1, 1, 50]))]


def _move(dice: random.Random, lines: list[dict[str, Any]]) -> None:
    lines.insert(dice.randrange(1, len(lines) + 1), copy.deepcopy(dice.choice(lines[1:])))


def _shift(dice: random.Random, lines: list[dict[str, Any]]) -> None:
    by = dice.choice([1, -1]) * dice.choice([1, 10**6, 10**9, 60 * 10**9, 86400 * 10**9])
    for line in dice.choice([lines, lines[dice.randrange(len(lines)) :], [dice.choice(lines)]]):
        for key in ("mono_ns", "wall_ns", "begin_ns"):
            if isinstance(line.get(key), int) and dice.random() < 0.8:
                line[key] = max(0, line[key] + by)


def _near(dice: random.Random, lines: list[dict[str, Any]]) -> None:
    """Another number or text, of the same kind."""
    line = dice.choice(lines)
    holder, key = dice.choice(list(_places(line)))
    value = holder[key]
    if isinstance(value, bool):
        holder[key] = not value
    elif isinstance(value, int):
        holder[key] = max(0, dice.choice([value + 1, value - 1, value * 2, 0, 1, 3, 10**5]))
    elif isinstance(value, float):
        holder[key] = dice.choice([-value, value * 1e6, 0.0, "nan", "inf", value + 1e-12])
    elif isinstance(value, str):
        holder[key] = dice.choice([value + "x", "", "node1", "other", "\x1b[31m" + value, "\ud800"])


def _ignorable(dice: random.Random, lines: list[dict[str, Any]]) -> None:
    """What newer writers may tell: fields and events of other names."""
    at = dice.randrange(1, len(lines) + 1)
    if dice.random() < 0.5:
        lines.insert(
            at, {"event": "gpu.temp", "mono_ns": lines[at - 1].get("mono_ns", 1), "x": dice.choice(VALUES[:30])}
        )
    else:
        key = dice.choice(["x", "key", "at", "process", "node", "code", "rank", "pid", "local_rank", "plan"])
        lines[at - 1].setdefault(key, dice.choice([*VALUES[:5], [], {}]))


CHANGES = [_drop, _drop_kind, _cut, _repeat, _move, _shift, _near, _near, _near, _ignorable]


def _encoded(logs: Logs) -> Files:
    return {name: [json.dumps(line).encode() for line in lines] for name, lines in logs.items()}


def _cut_up(dice: random.Random, files: Files) -> None:
    """Damage to the bytes: another line, half a line, bits turned over, a file that is no log."""
    name = dice.choice(sorted(files))
    lines = files[name]
    place = dice.randrange(len(lines)) if lines else 0
    match dice.randrange(5):
        case 0:
            lines.insert(place, dice.choice(RAW))
        case 1:
            lines[place] = lines[place][: dice.randrange(len(lines[place]) + 1)]
        case 2:
            data = bytearray(lines[place])
            for _ in range(dice.choice([1, 3])):
                data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
            lines[place] = bytes(data)
        case 3:
            files[f"trainer-node0.1-0-{place}"] = [dice.choice(RAW)]
        case _:
            lines[place:] = []


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """Ends a case that takes too long or too much memory, by an exception in it."""

    def end(*_: object) -> None:
        raise TooLong

    before = signal.signal(signal.SIGPROF, end)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + CASE_BYTES_MAX, hard))
    try:
        with warnings.catch_warnings(action="error"):  # as in tests: a figure that overflows is a mistake, too
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGPROF, before)


def _fast_folder() -> str | None:
    return "/dev/shm" if pathlib.Path("/dev/shm").is_dir() else None


def main(arguments: list[str]) -> int:
    wanted = int(arguments[0]) if arguments else 100_000
    begin = time.monotonic()
    found = run(wanted, int(arguments[1]) if len(arguments) > 1 else 1)
    print(
        f"{wanted} event logs in {time.monotonic() - begin:.0f} s: {found.read} read, {found.refused} refused,", end=" "
    )
    print(f"{len(found.broken)} broken; verdicts: {dict(found.verdicts)}")
    print("\n".join(found.broken[:50]))
    return int(bool(found.broken) or found.read < wanted / 2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
