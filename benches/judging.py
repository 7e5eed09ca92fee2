"""How long two versions take to judge the same log: 125, 500 and 1,000 ranks × 1,000 steps with 20 restarts.

    python benches/judging.py --old CHECKOUT [--ranks 125 500 1000] [--steps 1000] [--restarts 20] [--tries 1]

Each reads the log in a process of its own, one after the other; only reading and judging it is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from scoring import write_log

ROOT = pathlib.Path(__file__).resolve().parents[1]
TIMED = """
import importlib, json, pathlib, resource, sys, time
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
load = find("load", "harness.timeline.timeline", "harness.timeline")
Evidence = find("Evidence", "harness.judge.evidence", "harness.judge.facts.evidence", "harness.score")
judge = find("judge", "harness.judge.score", "harness.judge.scorecard", "harness.judge.verdict", "harness.score")
def cpu_s():
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in usage)
times, cpu = [time.monotonic()], [cpu_s()]
run = load(pathlib.Path(sys.argv[2]))
times, cpu = [*times, time.monotonic()], [*cpu, cpu_s()]
card = judge(Evidence(run), "bench")
times, cpu = [*times, time.monotonic()], [*cpu, cpu_s()]
print(json.dumps([times[1] - times[0], times[2] - times[1], cpu[2] - cpu[1], str(card.verdict)]))
"""


def timed(checkout: pathlib.Path, run_dir: pathlib.Path) -> tuple[float, float, float, str]:
    """Seconds to read, seconds to judge, seconds of CPU to judge, and the verdict."""
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    command = [sys.executable, "-c", TIMED, checkout, run_dir]
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
    chosen = parser.parse_args()
    heads = "".join(f"  {what:>16}" for what in ("read s", "judged s", "CPU s"))
    print(f"{'ranks':>6} {'events':>10}{heads}  ratio  (old, new; ratio: judged, new to old)")
    for ranks in chosen.ranks:
        with tempfile.TemporaryDirectory() as folder:
            run_dir = pathlib.Path(folder)
            events = write_log(run_dir / "events", ranks, chosen.steps, chosen.restarts)
            pairs = [[timed(each.resolve(), run_dir) for each in (chosen.old, ROOT)] for _ in range(chosen.tries)]
        old, new = (min((pair[side] for pair in pairs), key=lambda each: each[1]) for side in (0, 1))
        columns = "  ".join(f"{old[n]:7.2f}, {new[n]:7.2f}" for n in range(3))
        odd = "" if old[3] == new[3] else f"  {old[3]} became {new[3]}"
        print(f"{ranks:>6} {events:>10,}  {columns}  {new[1] / old[1]:5.2f}{odd}", flush=True)


if __name__ == "__main__":
    main()
