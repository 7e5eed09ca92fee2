"""What one version of the judge says of runs: `python side.py CHECKOUT RUNS ANSWERS`.

It is started in a process of its own with that checkout's code. RUNS: a line of JSON each, `[name, folder]`. ANSWERS: a
line of JSON each, in the same order. Whatever a judge does to a run is an answer, also a crash, and no end in time.
"""

import importlib
import json
import pathlib
import re
import signal
import sys
from collections.abc import Callable
from typing import Any

PATIENCE_S = 60
PLACES = {  # where a version may have them; add yours where you move them
    "load_evidence": ("harness.evidence.logs", "harness.evidence.logs", "harness.judge.evidence"),
    "judge": ("harness.judge.score", "harness.judge.scorecard", "harness.judge.verdict"),
}


class TooLong(BaseException):
    """No `Exception`: a judge may catch those."""


def find(name: str) -> Callable[..., Any]:
    for place in PLACES[name]:
        try:
            found: Callable[..., Any] = getattr(importlib.import_module(place), name)
        except (ModuleNotFoundError, AttributeError):
            continue
        return found
    raise SystemExit(
        f"this checkout has no {name} in {', '.join(PLACES[name])}; tools/ruler/side.py says where to look"
    )


def answer(load: Callable[..., Any], judge: Callable[..., Any], run_dir: pathlib.Path) -> dict[str, Any]:
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)
    try:
        card = judge(load(run_dir), run_dir.name)
    except TooLong:
        return {"verdict": "too long"}
    except Exception as error:
        if type(error).__name__ == "EventLogError":  # a log that cannot be read is told so, with exit 3
            return {"verdict": "inconclusive", "claims": [["inconclusive", "log.unreadable", ""]]}
        return {"verdict": f"crashed: {type(error).__name__}", "words": [str(error)]}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return {
        "verdict": str(card.verdict),
        "claims": claims(card),
        "words": [str(reason) for reason in card.reasons],
        "figures": {**shown(card), **expected(card)},
    }


def claims(card: Any) -> list[list[str]]:
    """Verdict, code and doubt of each finding. A version without codes: its words, without numbers and names."""
    found = getattr(card, "findings", None)
    if found is None:
        return sorted(
            [str(card.verdict), "words: " + re.sub(r"[-+.\w]*\d[-+.\w]*", "#", text), ""] for text in card.reasons
        )
    return sorted([str(each.verdict), str(each.code), str(each.doubt)] for each in found)


def shown(card: Any) -> dict[str, Any]:
    """All figures of a report; in older versions the judge has all of them."""
    try:
        of = importlib.import_module("harness.report.figures")
    except ModuleNotFoundError:
        return {**flat("scores", card.scores), **flat("metrics", card.metrics)}
    return {**flat("scores", of.scores(card)), **flat("metrics", of.metrics(card))}


def flat(name: str, value: Any) -> dict[str, Any]:
    """`{"scores.pace.slowdown": 1.0}`; parts of a list by their place."""
    if isinstance(value, dict):
        return {key: each for part in value for key, each in flat(f"{name}.{part}", value[part]).items()}
    if isinstance(value, list | tuple):
        return {key: each for n, part in enumerate(value) for key, each in flat(f"{name}[{n}]", part).items()}
    value = value.item() if hasattr(value, "item") else value
    return {name: value if isinstance(value, int | float | str | None) else str(value)}


def expected(card: Any) -> dict[str, Any]:
    """Bounds, what was observed, its verdict; and what was not judged."""
    found: dict[str, Any] = {f"not judged: {item}": why for item, why in card.not_judged.items()}
    for line in card.expectations:
        told = {"bound": line.bound, "observed": line.observed, "verdict": str(line.verdict)}
        found |= flat(f"expectations.{line.name}", told | {"observed_value": line.observed_value})
    return found


def main(checkout: pathlib.Path, runs: pathlib.Path, answers: pathlib.Path) -> None:
    import harness

    sys.path = [entry for entry in sys.path if pathlib.Path(entry or ".").resolve() != pathlib.Path(__file__).parent]
    here = pathlib.Path(next(iter(harness.__path__))).resolve().parent
    if here != checkout.resolve():
        raise SystemExit(f"{checkout}: the judge would be the one of {here}")
    signal.signal(signal.SIGALRM, _too_long)
    load, judge = find("load_evidence"), find("judge")
    with answers.open("w") as file:
        for line in runs.read_text().splitlines():
            file.write(json.dumps(answer(load, judge, pathlib.Path(json.loads(line)[1]))) + "\n")


def _too_long(number: int, frame: object) -> None:
    raise TooLong


if __name__ == "__main__":
    main(*(pathlib.Path(part) for part in sys.argv[1:4]))
