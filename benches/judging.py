"""How long two versions take to judge the same log: 125, 500 and 1,000 ranks × 1,000 steps with 20 restarts.

    python -m benches.judging --old CHECKOUT [--ranks 125 500 1000] [--steps 1000] [--restarts 20] [--tries 1] [--day]

`--day`: each restart is a rehearsal of a game day with a fault-free run beside it; all of the day is judged.
Each version reads the log in a process of its own, one after the other; only reading and judging it is timed. It reads
and judges a small log before, as one version loads its questions when they are first asked, and another at its start.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

from benches.scoring import write_log
from harness.gameday.day import FILE
from harness.gameday.day_plan import plan_day

ROOT = pathlib.Path(__file__).resolve().parents[1]
ALONE = """
import sys
sys.meta_path[:] = [each for each in sys.meta_path if "editable" not in each.__module__]  # the code that is installed
"""
START = """
import gc, importlib, json, pathlib, resource, sys, time
import harness

here = pathlib.Path(next(iter(harness.__path__))).resolve().parent
assert here == pathlib.Path(sys.argv[1]).resolve(), f"this would be the code of {here}"
def find(name, *places):  # where a version may have it
    for place in places:
        try:
            return getattr(importlib.import_module(place), name)
        except (ModuleNotFoundError, AttributeError):
            pass
    sys.exit(f"this checkout has no {name} in {', '.join(places)}; see benches/judging.py")
"""
TIMED = """
load = find("load", "harness.timeline.timeline", "harness.timeline")
Evidence = find("Evidence", "harness.evidence.logs", "harness.evidence.logs", "harness.score")
judge = find("judge", "harness.judge.score", "harness.judge.scorecard", "harness.judge.verdict", "harness.score")
def cpu_s():
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in usage)
judge(Evidence(load(pathlib.Path(sys.argv[3]))), "loads all")
times = [time.monotonic()]
run = load(pathlib.Path(sys.argv[2]))
read = time.monotonic() - times[0]
gc.collect()  # what reading left behind is not judging's
times, cpu = [time.monotonic()], [cpu_s()]
card = judge(Evidence(run), "bench")
times, cpu = [*times, time.monotonic()], [*cpu, cpu_s()]
print(json.dumps([read, times[1] - times[0], cpu[1] - cpu[0], str(card.verdict)]))
"""
A_DAY = """
judge_stored = find("judge_stored", "harness.gameday.day", "harness.campaign.gameday")
judge_stored(pathlib.Path(sys.argv[3]))
begin, used = time.monotonic(), time.process_time()
result, cards = judge_stored(pathlib.Path(sys.argv[2]))
took = time.monotonic() - begin, time.process_time() - used
verdicts = [str(card.verdict) for card in (*cards.values(), result.job)]
print(json.dumps([0, *took, ", ".join(verdicts)]))
"""


def write_run(run_dir: pathlib.Path, ranks: int, steps: int, restarts: int) -> int:
    """A job with this many restarts; returns its events."""
    return write_log(run_dir / "events", ranks, steps, restarts)


def write_day(run_dir: pathlib.Path, ranks: int, steps: int, rehearsals: int) -> int:
    """A job with this many rehearsals, each of one kill, one after the other; returns its events."""
    count = write_log(run_dir / "events", ranks, steps, rehearsals)
    write_log(run_dir / "fault-free" / "events", ranks, steps, 0)
    entries = "".join("  - {scenario: rank-kill}\n" for _ in range(rehearsals))
    text = f"version: 1\nname: bench\ntitle: Bench\nworkload: {{nodes: 2, steps: {steps}}}\nentries:\n{entries}"
    (run_dir / "day.yaml").write_text(text)
    day = plan_day(run_dir / "day.yaml", 1, "local", "bench", ROOT / "scenarios")
    (run_dir / FILE).write_text(json.dumps(day.to_json()))
    path, lines = run_dir / "events" / "harness.jsonl", list[dict[str, Any]]()
    names = iter(act.name for act in day.acts)
    for line in map(json.loads, path.read_text().splitlines()):
        if line.get("event") == "fault.injected":
            at, name = line["mono_ns"], next(names)
            told = [{"event": "plan", "rehearsal": name, "plan": _of_one(lines[1]["plan"], line["fault"])}]
            told.append({"event": "rehearsal.started", "rehearsal": name})
            lines += [each | _times(at - 6_000_000_000) for each in told]
            ended = {"event": "rehearsal.finished", "rehearsal": name, "outcome": "settled", "reason": ""}
            healed = {"event": "fault.healed", "fault": line["fault"]}
            lines += [healed | _times(at + 1), ended | _times(at + 12_000_000_000)]
        lines.append(line)
    lines = [lines[0], *sorted(lines[1:], key=lambda line: line["mono_ns"])]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return count


def _of_one(plan: dict[str, Any], fault: str) -> dict[str, Any]:
    return plan | {"faults": [each for each in plan["faults"] if each["id"] == fault]}


def _times(at: int) -> dict[str, int]:
    return {"wall_ns": 10**18 + at, "mono_ns": at}


def timed(
    checkout: pathlib.Path, run_dir: pathlib.Path, small: pathlib.Path, program: str
) -> tuple[float, float, float, str]:
    """Seconds to read, seconds to judge, seconds of CPU to judge, and the verdict."""
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    command = [sys.executable, "-c", ALONE + START + program, str(checkout), str(run_dir), str(small)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=run_dir)
    if done.returncode:
        sys.exit(done.returncode)
    read, judged, cpu, verdict = json.loads(done.stdout)
    return read, judged, cpu, verdict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--old", type=pathlib.Path, required=True, help="another checkout of this project")
    parser.add_argument("--ranks", type=int, nargs="*", default=[125, 500, 1000])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--restarts", type=int, default=20)
    parser.add_argument("--tries", type=int, default=1, help="of each version, in turn; the fastest counts")
    parser.add_argument("--day", action="store_true", help="a game day with a rehearsal for each restart")
    chosen = parser.parse_args()
    heads = "".join(f"  {what:>16}" for what in ("read s", "judged s", "CPU s"))
    print(f"{'ranks':>6} {'events':>10}{heads}  ratio  (old, new; ratio: judged, new to old)")
    program, write = (A_DAY, write_day) if chosen.day else (TIMED, write_run)
    for ranks in chosen.ranks:
        with tempfile.TemporaryDirectory() as folder:
            run_dir, small = pathlib.Path(folder) / "run", pathlib.Path(folder) / "small"
            events = write(run_dir, ranks, chosen.steps, chosen.restarts)
            write(small, 2, 100, 2)
            sides = [each.resolve() for each in (chosen.old, ROOT)]
            pairs = [[timed(side, run_dir, small, program) for side in sides] for _ in range(chosen.tries)]
        old, new = (min((pair[side] for pair in pairs), key=lambda each: each[1]) for side in (0, 1))
        columns = "  ".join(f"{old[n]:7.2f}, {new[n]:7.2f}" for n in range(3))
        odd = "" if old[3] == new[3] else f"  {old[3]} became {new[3]}"
        print(f"{ranks:>6} {events:>10,}  {columns}  {new[1] / old[1]:5.2f}{odd}", flush=True)


if __name__ == "__main__":
    main()
