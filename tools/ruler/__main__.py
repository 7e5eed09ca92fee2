"""Judges the same runs with another version of the judge and with this one, and says what differs, claim by claim.

make ruler OLD=path-to-a-checkout ARGS='--folder FOLDER …'

A claim is the code of a finding; an excuse, the code of its doubt. The other version's answers are kept, by its commit.
"""

import argparse
import hashlib
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ruler.histories import Stored, golden, simulated, stored

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIDE = pathlib.Path(__file__).parent / "side.py"
KEPT = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "chaos-ruler"
EXAMPLES = 3
Answer = Mapping[str, Any]


def answers(checkout: pathlib.Path, runs: Sequence[Stored], keep: bool) -> list[Answer]:
    """In the order of the runs; only those that are not known yet are judged."""
    known = _kept(checkout) if keep else {}
    digests = [digest(run.path) for run in runs]
    new = [(key, run) for key, run in zip(digests, runs, strict=True) if key not in known]
    known |= dict(zip([key for key, _ in new], judged(checkout, [run for _, run in new]), strict=True))
    if keep and new and (place := _place(checkout)):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(known))
    return [known[key] for key in digests]


def judged(checkout: pathlib.Path, runs: Sequence[Stored]) -> list[Answer]:
    if not runs:
        return []
    with tempfile.TemporaryDirectory() as folder:
        asked, told = pathlib.Path(folder, "runs"), pathlib.Path(folder, "answers")
        asked.write_text("".join(json.dumps([run.name, str(run.path)]) + "\n" for run in runs))
        environment = os.environ | {"PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
        subprocess.run([sys.executable, SIDE, checkout, asked, told], env=environment, check=True)
        return [json.loads(line) for line in told.read_text().splitlines()]


def digest(run_dir: pathlib.Path) -> str:
    found = hashlib.sha256()
    for path in sorted(path for path in run_dir.rglob("*") if path.is_file()):
        found.update(f"{path.relative_to(run_dir)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def _place(checkout: pathlib.Path) -> pathlib.Path | None:
    """Where the answers of this commit are kept; nowhere if its code was changed since."""

    def git(*command: str) -> str:
        return subprocess.run(["git", "-C", checkout, *command], capture_output=True, text=True).stdout.strip()

    commit, changed = git("rev-parse", "HEAD"), git("status", "--porcelain", "--untracked-files=all", "harness")
    side = hashlib.sha256(SIDE.read_bytes()).hexdigest()[:8]
    return KEPT / f"{commit}-{side}.json" if commit and not changed else None


def _kept(checkout: pathlib.Path) -> dict[str, Answer]:
    place = _place(checkout)
    return dict(json.loads(place.read_text())) if place and place.exists() else {}


def table(runs: Sequence[Stored], old: Sequence[Answer], new: Sequence[Answer]) -> tuple[list[str], int]:
    """What is printed, and how many runs differ in more than words."""
    kinds: Counter[str] = Counter()
    moves: dict[str, list[str]] = defaultdict(list)
    claims: dict[str, list[str]] = defaultdict(list)
    figures: dict[str, list[str]] = defaultdict(list)
    for run, one, other in zip(runs, old, new, strict=True):
        if one["verdict"] != other["verdict"]:
            moves[f"{one['verdict']} -> {other['verdict']}"].append(run.name)
        changed = list(claims_changed(one, other))
        for text in changed:
            claims[text].append(run.name)
        apart = figures_changed(one.get("figures", {}), other.get("figures", {}))
        for name, values in apart.items():
            figures[name].append(f"{run.name}: {values}")
        kinds["verdict"] += one["verdict"] != other["verdict"]
        kinds["claims"] += bool(changed)
        kinds["figures"] += bool(apart)
        differs = one["verdict"] != other["verdict"] or bool(changed or apart)
        kinds["different"] += differs
        kinds["words only"] += not differs and one.get("words") != other.get("words")
    told = [f"{len(runs)} runs: {len(runs) - kinds['different']} equal, {kinds['different']} different"]
    told[0] += f" (verdict {kinds['verdict']}, claims {kinds['claims']}, figures {kinds['figures']})"
    told[0] += f"; other words only: {kinds['words only']}"
    told += _section("Verdicts", moves) + _section("Claims", claims) + _section("Figures", figures)
    told += list(_acceptable(runs, old, new))
    return told, kinds["different"]


def claims_changed(one: Answer, other: Answer) -> Iterable[str]:
    """`restart.not-newest: fail -> inconclusive (doubt.clocks)`, `… appears as fail`, `… is gone, was fail`."""
    before, after = _by_code(one), _by_code(other)
    for code in sorted(before.keys() | after.keys()):
        gone, come = before[code] - after[code], after[code] - before[code]
        if gone and come:
            yield f"{code}: {_shown(gone)} -> {_shown(come)}"
        elif gone:
            yield f"{code}: {_shown(gone)} -> nothing"
        elif come:
            yield f"{code}: nothing -> {_shown(come)}"


def _by_code(answer: Answer) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for verdict, code, doubt in answer.get("claims", ()):
        found[code][f"{verdict} ({doubt})" if doubt else verdict] += 1
    return found


def _shown(found: Counter[str]) -> str:
    return ", ".join(f"{count} × {what}" if count > 1 else what for what, count in sorted(found.items()))


def figures_changed(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: f"{one.get(name, 'no value')} -> {other.get(name, 'no value')}"
        for name in sorted(one.keys() | other.keys())
        if name not in one or name not in other or not _same(one[name], other[name])
    }


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, int | float) and not isinstance(other, bool):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12) or (math.isnan(one) and math.isnan(other))
    return bool(one == other) and type(one) is type(other)


def _section(title: str, found: Mapping[str, list[str]]) -> list[str]:
    lines = [f"\n{title}"] if found else []
    for what, where in sorted(found.items(), key=lambda item: (-len(item[1]), item[0])):
        more = ", …" if len(where) > EXAMPLES else ""
        lines.append(f"  {len(where):5} × {what}    {', '.join(where[:EXAMPLES])}{more}")
    return lines


def _acceptable(runs: Sequence[Stored], old: Sequence[Answer], new: Sequence[Answer]) -> Iterable[str]:
    """Per source with verdicts that somebody called right: how many were, and are; and each that changed."""
    rows = [
        (run, one["verdict"], other["verdict"]) for run, one, other in zip(runs, old, new, strict=True) if run.allowed
    ]
    if rows:
        yield "\nAcceptable (before, now)"
    for source in dict.fromkeys(run.name.split("/")[0] for run, _, _ in rows):
        mine = [row for row in rows if row[0].name.split("/")[0] == source]
        before, now = (sum(row[side] in row[0].allowed for row in mine) for side in (1, 2))
        yield f"  {source}: {before}, {now} of {len(mine)}"
        for run, one, other in mine:
            if (one in run.allowed) != (other in run.allowed):
                right = " or ".join(run.allowed)
                yield f"    {'worse' if one in run.allowed else 'better'}: {run.name}: {one} -> {other} ({right} is right)"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="make ruler", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--old", type=pathlib.Path, default=ROOT, help="another checkout; this one, to see the figures")
    parser.add_argument(
        "--folder",
        type=pathlib.Path,
        nargs="*",
        action="extend",
        default=[],
        help="stored runs, also with a cases.json",
    )
    parser.add_argument("--count", type=int, default=2000, help="simulated histories")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only", default="", help="part of the names of the runs to judge; prints both answers in full"
    )
    parser.add_argument("--forget", action="store_true", help="judges with the other version, too, whatever is kept")
    chosen = parser.parse_args(arguments)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        runs = [run for place in chosen.folder for run in stored(place.resolve())]
        runs += golden(pathlib.Path(folder, "golden"))
        runs += simulated(pathlib.Path(folder, "simulated"), chosen.count, chosen.seed)
        runs = [run for run in runs if chosen.only in run.name]
        made = time.monotonic() - begin
        old = answers(chosen.old.resolve(), runs, keep=not chosen.forget)
        before = time.monotonic() - begin - made
        new = judged(ROOT, runs)
        lines, _ = table(runs, old, new)
    print("\n".join(lines))
    for run, one, other in zip(runs, old, new, strict=True) if chosen.only else ():
        print(
            f"\n{run.name}",
            *(json.dumps({**each, "figures": ...}, default=str, indent=1) for each in (one, other)),
            sep="\n",
        )
    now = time.monotonic() - begin - made - before
    codes = {code for answer in new for _, code, _ in answer.get("claims", ())}
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in Counter(a["verdict"] for a in new).most_common())
    print(f"\nNow: {verdicts}; {len(codes)} different claims are made")
    print(f"{made:.0f} s to make the runs, {before:.0f} s with the old judge, {now:.0f} s with the new one")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
