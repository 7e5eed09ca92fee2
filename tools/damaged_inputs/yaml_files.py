"""Hostile scenario, suite and plan files: whatever they hold, reading one ends soon, in a value or in one clear error.

`run(count, seed)` tries so many; `python -m damaged_inputs.yaml_files 10000` does it by hand (with `PYTHONPATH=tests:tools`).
"""

import json
import pathlib
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from harness.campaign.checked_files import score_bounds
from harness.errors import ScenarioError, UsageError
from harness.gate.suite_file import parse_suite
from harness.plan.making import make_plan
from harness.plan.run_plan import Plan
from harness.plan.stored import parse_plan
from harness.spec.scenario import parse_scenario

SCENARIOS = pathlib.Path(__file__).resolve().parents[2] / "scenarios"
CASE_S_MAX = 20.0  # of CPU, for one file; far above what any takes
MESSAGE_MAX = 60_000  # characters

BOMB = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 8)}]\n" for n in range(1, 12)
)
VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 10**9, -(10**9), 10**30, 0.5, -0.0, 1e308, float("inf"), float("nan")),
    *("", " ", "any", "all", "none", "0", "1", "-1s", "0s", "30s", "1e9s", "9" * 60 + "h"),
    *("64MiB", "1gbit", "25%", "2/h", "a\0b", "\x1b[31mred", "[bold]x[/nope]", "\u202eabc", "é" * 300),
    *("../../etc/passwd", "/etc/passwd", "{x}", "${X}"),
    *([], {}, [[]], [None], {"a": {"b": {"c": 1}}}, {"count": 10**12}, {"percent": "300%"}, {"not_rank": 10**12}),
    *({"step": 10**12}, {"every": "8000h", "times": 1000}, {"rate": "0.0000000001/h", "times": 1000}, ["x"] * 2000),
]
RAW = [
    *(BOMB, "- " * 3000, "[" * 3000, "{a: " * 3000, "? " * 300, "&a " * 300, "x: &a [*a]\n", "<<: {nodes: 3}\n"),
    *("x: !!timestamp 2020-01-01\n", "x: !!binary AAAA\n", "x: !!python/object:os.system {}\n", "x: !!int ''\n"),
    *(
        "x: !!bool maybe\n",
        "x: " + "9" * 20_000 + "\n",
        "\x00",
        "\ufeff",
        "\t",
        "---\n",
        "...\n",
        "%YAML 9.9\n",
        "'",
        '"',
    ),
    *("\x1b[2J", "\u2028", "x: |\n  y\n", "#" * 5000 + "\n", "? [a]\n: 1\n", "*b", "!<tag:x> y\n", "x: 0x\n", "\ud7ff"),
]


@dataclass
class Tally:
    """How many files were read, how many refused, and the mistakes in our own code."""

    read: int = 0
    refused: int = 0
    broken: list[str] = field(default_factory=list)


def run(count: int, seed: int) -> Tally:
    """Reads so many mutated files. A broken one is named with its seed, which makes it again."""
    tally, scores = Tally(), score_bounds()
    seeds = list(_documents())
    for number in range(count):
        dice = random.Random(f"{seed}/{number}")
        kind, read, data = dice.choice(seeds)
        text = mutated(dice, data, json.dumps if kind == "plan" else yaml.safe_dump)
        begin = time.process_time()
        problem = outcome(lambda: read(text, scores), tally)  # noqa: B023  # called at once
        took_s = time.process_time() - begin
        if problem or took_s > CASE_S_MAX:
            tally.broken.append(f"{kind} {seed}/{number}: {problem or f'took {took_s:.1f} s'}")
    return tally


def outcome(read: Callable[[], object], tally: Tally) -> str:
    """What is wrong with how a file was dealt with: nothing, if it was read or refused with a place."""
    try:
        read()
    except ScenarioError as error:
        tally.refused += 1
        return _unclear(error)
    except UsageError:
        tally.refused += 1
    except Exception as error:  # this is what is looked for
        return f"{type(error).__name__}: {str(error)[:300]}"
    else:
        tally.read += 1
    return ""


def _unclear(error: ScenarioError) -> str:
    text = str(error)
    if not text or len(text) > MESSAGE_MAX:
        return f"a message of {len(text)} characters"
    return "" if all(character.isprintable() or character == "\n" for character in text) else f"not printable: {text!r}"


def mutated(dice: random.Random, data: Any, dump: Callable[[Any], str]) -> str:
    """The document with one to four changes of its values, and in a third of the cases of its text."""
    changed = json.loads(json.dumps(data))
    for _ in range(dice.choice([1, 1, 2, 4])):
        changed = _change(dice, changed)
    try:
        text = dump(changed)
    except (yaml.YAMLError, ValueError):
        text = repr(changed)
    return _cut_up(dice, text) if dice.random() < 1 / 3 else text


def _change(dice: random.Random, data: Any) -> Any:
    """Another value, a key more or less or twice, somewhere in the document."""
    if not isinstance(data, (dict, list)) or not data or dice.random() < 0.05:
        return _near(dice, data) if dice.random() < 0.6 else dice.choice(VALUES)
    key = dice.choice(list(data)) if isinstance(data, dict) else dice.randrange(len(data))
    what = dice.random()
    if what < 0.7:
        data[key] = _change(dice, data[key])
    elif what < 0.8:
        del data[key]
    elif isinstance(data, dict):
        data[dice.choice(["x", "nodes", "fault", "kills", "<<", "id", str(key) + "s", "\x1b", ""])] = data[key]
    else:
        data.extend([data[key]] * dice.choice([1, 2, 30]))
    return data


def _near(dice: random.Random, value: Any) -> Any:
    """Of the same kind, so that enough files are read to their end."""
    if isinstance(value, str):
        return re.sub("[0-9]+", lambda _: str(dice.choice([0, 1, 2, 7, 90, 1000])), value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return dice.choice([value + 1, value * 2, value // 2, 1, 3])
    return value


def _cut_up(dice: random.Random, text: str) -> str:
    place = dice.randrange(len(text) + 1)
    what = dice.random()
    if what < 0.5:
        return text[:place] + dice.choice(RAW) + text[place:]
    if what < 0.75:
        return text[:place]
    other = dice.randrange(len(text) + 1)
    return text[: min(place, other)] + text[max(place, other) :]


def _documents() -> Iterator[tuple[str, Callable[[str, Any], object], Any]]:
    """Every shipped scenario, its plan, and every suite."""
    for path in sorted(SCENARIOS.glob("*.yaml")):
        text = path.read_text()
        yield "scenario", read_scenario, yaml.safe_load(text)
        yield "plan", read_plan, make_plan(parse_scenario(text, str(path)), 1, "local", "run").to_json()
    for path in sorted((SCENARIOS / "suites").glob("*.yaml")):
        if path.stem != "blindness-check":
            yield "suite", lambda text, _: parse_suite(text, "s.yaml"), yaml.safe_load(path.read_text())


def read_scenario(text: str, scores: Any) -> None:
    """With all its profiles, and its plan written and read again."""
    spec = parse_scenario(text, "s.yaml", scores=scores)
    for profile in (None, *list(spec.profiles)[:3]):
        plan = make_plan(parse_scenario(text, "s.yaml", profile, scores=scores), 1, "local", "run", profile)
        if len(plan.faults) <= 50:
            assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
            assert all(fault.in_words() for fault in plan.faults)


def read_plan(text: str, scores: Any) -> None:
    plan = parse_plan(text, "plan.json", scores)
    assert plan.launch().command
    assert Plan.from_json(plan.to_json()) == plan
    assert all(fault.in_words() for fault in plan.faults)


if __name__ == "__main__":
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    found = run(wanted, int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    print(f"{wanted} files: {found.read} read, {found.refused} refused, {len(found.broken)} broken")
    print("\n".join(found.broken[:50]))
    sys.exit(bool(found.broken))
