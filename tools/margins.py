"""How near the nearest healthy run and the nearest broken one come to each threshold of the judge.

make margins ARGS='--folder FOLDER …'

Each stored run is judged once. The thresholds are numbers that remember what they were compared with, also after
arithmetic: the ratio is that of the threshold at which the comparison would turn to the threshold that there is. Where
`max` takes another bound, the threshold decides nothing. Runs are those of the ruler. A folder without a cases.json
holds healthy runs; only finished ones are taken. With `--keep` docs/margins.json keeps what was found, and `make docs`
writes it into docs/guarantees.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import opcode
import operator
import pathlib
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from harness.judge import thresholds
from harness.judge.thresholds import SOURCES, Threshold
from harness.units import counted, format_duration

ROOT = pathlib.Path(__file__).resolve().parents[1]
KEPT = ROOT / "docs" / "margins.json"
NEAR = 10.0  # times the threshold: what is farther away shows nothing of it
SIGNS = {"<": "< ", "<=": "≤ ", ">": "> ", ">=": "≥ ", None: ""}
GAP = 2.0  # between the nearest healthy run and the nearest broken one
PATIENCE_S = 120  # for one run
ROOMS = ("judge", "evidence")  # folders with rules: what is compared elsewhere only formats or sorts
TABLE: Mapping[str, Threshold] = thresholds.table()  # before the numbers in there are replaced

# Numbers that remember


class Seen(NamedTuple):
    """One comparison: the threshold that would turn it, in multiples of what it is; and the rule that compared."""

    ratio: float
    rule: str


NOTED: dict[str, dict[bool | None, Seen]] = {}  # by threshold: the nearest one below, at (None) and above it


def plain(value: Any) -> Any:
    if isinstance(value, Recorder):
        return value.plain
    if isinstance(value, Recorders):
        return value.view(np.ndarray)
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value)) if type(value) in (list, tuple) else value
    return value


def slopes(value: Any) -> Mapping[str, Any]:
    """By how much it moves with each threshold."""
    return value.slopes if isinstance(value, Recorder | Recorders) else {}


def recorder(value: Any, by: Mapping[str, Any]) -> Any:
    if isinstance(value, np.ndarray) and value.ndim:
        found = value.view(Recorders)
        found.slopes = {name: np.broadcast_to(slope, value.shape) for name, slope in by.items()}
        return found
    number = value.item() if isinstance(value, np.generic | np.ndarray) else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        return value
    made = (Whole if isinstance(number, int) else Real)(number)
    made.plain, made.slopes = number, by
    return made


RULES: Mapping[str, Callable[[Any, Any, Any, Any], Any]] = {
    "add": lambda a, b, da, db: da + db,
    "subtract": lambda a, b, da, db: da - db,
    "multiply": lambda a, b, da, db: da * b + db * a,
    "divide": lambda a, b, da, db: da / b - db * a / b**2,
    "power": lambda a, b, da, db: b * a ** (b - 1) * da,
    "maximum": lambda a, b, da, db: np.where(np.greater_equal(a, b), da, db),
    "minimum": lambda a, b, da, db: np.where(np.less_equal(a, b), da, db),
}
OPERATORS = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "power": operator.pow,
}
COMPARISONS = {"less": operator.lt, "less_equal": operator.le, "greater": operator.gt, "greater_equal": operator.ge}


def combined(name: str, left: Any, right: Any, value: Any) -> Any:
    a, b, by = plain(left), plain(right), {}
    if not isinstance(value, int | float | np.ndarray | np.generic):
        return value
    with np.errstate(all="ignore"):
        for key in slopes(left).keys() | slopes(right).keys():
            by[key] = RULES[name](a, b, slopes(left).get(key, 0.0), slopes(right).get(key, 0.0))
    return recorder(value, by)


def note(left: Any, right: Any, rule: str) -> None:
    """Where each threshold in it would turn this comparison."""
    difference = np.subtract(plain(left), plain(right), dtype=np.float64)
    for name in slopes(left).keys() | slopes(right).keys():
        slope = np.subtract(slopes(left).get(name, 0.0), slopes(right).get(name, 0.0), dtype=np.float64)
        with np.errstate(all="ignore"):
            ratio = 1 - difference / (slope * TABLE[name].value)
        ratio = np.atleast_1d(ratio)[np.isfinite(np.atleast_1d(ratio))]
        found = NOTED.setdefault(name, {})
        below, above = ratio[ratio < 1], ratio[ratio > 1]
        if len(below) and (False not in found or below.max() > found[False].ratio):
            found[False] = Seen(float(below.max()), rule)
        if len(above) and (True not in found or above.min() < found[True].ratio):
            found[True] = Seen(float(above.min()), rule)
        if len(below) + len(above) < len(ratio):
            found[None] = Seen(1.0, rule)


def comparing() -> tuple[bool, str]:
    """Whether an operator of the judge compares, and not `max`, `sorted` or what prints a number; and in which function."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename == __file__ and frame.f_back:
        frame = frame.f_back
    code = frame.f_code
    room = next((each for each in ROOMS if f"/{each}/" in code.co_filename), "")
    decides = bool(room) and opcode.opname[code.co_code[frame.f_lasti]] == "COMPARE_OP"
    return decides, f"{room}/{code.co_filename.rpartition(f'/{room}/')[2]}: {code.co_qualname}"


def compared(name: str, left: Any, right: Any) -> Any:
    answer = COMPARISONS[name](plain(left), plain(right))
    by_operator, rule = comparing()
    if answer is not NotImplemented and (by_operator or isinstance(answer, np.ndarray)):
        note(left, right, rule)
    return answer


def by_function(ufunc: Any, how: str, inputs: Sequence[Any], options: Mapping[str, Any]) -> Any:
    value = getattr(ufunc, how)(*map(plain, inputs), **{key: plain(each) for key, each in options.items()})
    if how != "__call__" or options:
        return value
    if ufunc.__name__ in COMPARISONS:
        by_operator, rule = comparing()
        if by_operator or isinstance(value, np.ndarray):
            note(inputs[0], inputs[1], rule)
    return combined(ufunc.__name__, inputs[0], inputs[1], value) if ufunc.__name__ in RULES else value


def by_array_function(function: Any, args: Any, options: Any) -> Any:
    value = function(*map(plain, args), **{key: plain(each) for key, each in options.items()})
    if function is np.where and len(args) == 3:
        one, other = args[1:]
        names = slopes(one).keys() | slopes(other).keys()
        return recorder(value, {k: np.where(args[0], slopes(one).get(k, 0), slopes(other).get(k, 0)) for k in names})
    return value


class Recorder:
    """One number, and by how much it moves with each threshold."""

    plain: int | float
    slopes: Mapping[str, Any]

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return by_function(ufunc, method, inputs, options)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        return by_array_function(function, args, options)

    def __neg__(self) -> Any:
        return recorder(-self.plain, {key: -slope for key, slope in self.slopes.items()})

    def __abs__(self) -> Any:
        return self if self.plain >= 0 else -self

    def __round__(self, digits: Any = None, /) -> Any:
        return recorder(round(self.plain, digits), self.slopes)

    def __floordiv__(self, other: Any) -> Any:
        return self.plain // plain(other)

    def __rfloordiv__(self, other: Any) -> Any:
        return other // self.plain

    def __mod__(self, other: Any) -> Any:
        return self.plain % plain(other)

    def __rmod__(self, other: Any) -> Any:
        return other % self.plain

    def __divmod__(self, other: Any) -> Any:
        return divmod(self.plain, plain(other))

    def __repr__(self) -> str:
        return repr(self.plain)

    def __str__(self) -> str:
        return str(self.plain)

    def __format__(self, spec: str) -> str:
        return format(self.plain, spec)

    def __reduce__(self) -> Any:
        return type(self.plain), (self.plain,)


def _arithmetic(name: str, swapped: bool) -> Callable[[Any, Any], Any]:
    def operate(self: Any, other: Any) -> Any:
        left, right = (other, self) if swapped else (self, other)
        return combined(name, left, right, OPERATORS[name](plain(left), plain(right)))

    return operate


for _name, _operator in OPERATORS.items():
    setattr(Recorder, f"__{_operator.__name__}__", _arithmetic(_name, swapped=False))
    setattr(Recorder, f"__r{_operator.__name__}__", _arithmetic(_name, swapped=True))
for _name, _operator in COMPARISONS.items():
    setattr(Recorder, f"__{_operator.__name__}__", lambda self, other, name=_name: compared(name, self, other))


class Whole(Recorder, int):
    """Anybody may count with it. A float of Python's does not ask it first: factors are `Real`."""


class Real(Recorder, float):
    pass


class Recorders(np.ndarray[Any, Any]):
    """Many of them."""

    slopes: Mapping[str, Any]

    def __array_finalize__(self, made_from: Any) -> None:
        self.slopes = {}

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return by_function(ufunc, method, inputs, options)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        return by_array_function(function, args, options)

    def __getitem__(self, key: Any) -> Any:
        return recorder(plain(self)[key], {name: slope[key] for name, slope in self.slopes.items()})


def install() -> None:
    """Before any other part of the judge is imported: it takes the numbers by their names."""
    for name, row in TABLE.items():
        if row.kind != "method":
            factor = row.unit.startswith("×")
            setattr(thresholds, name, recorder(float(row.value) if factor else row.value, {name: 1.0}))


# Runs


class Run(NamedTuple):
    name: str
    right: str  # `healthy`, `broken` or `neither`: its right verdict is not known, or no other one than inconclusive
    judge: Callable[[], Any]


def runs(folders: Sequence[pathlib.Path], count: int, seed: int, place: pathlib.Path) -> Iterator[Run]:
    from mutants.bent import BROKEN, NEIGHBOURS
    from ruler.histories import Stored, golden, simulated, stored

    from harness.evidence.logs import load_evidence
    from harness.judge.score import judge

    def run(each: Stored, right: str) -> Run:
        return Run(each.name, right, lambda: judge(load_evidence(each.path), each.name))

    for folder in folders:
        for each in stored(folder.resolve()):
            if each.allowed or (each.path / "report.json").exists():
                yield run(each, told_right(each.allowed) if each.allowed else "healthy")
    for each in golden(place / "golden"):
        yield run(each, told_right(each.allowed))
    for right, bents in (("broken", BROKEN), ("healthy", NEIGHBOURS)):
        yield from (Run(f"mutants/{bent.name}", right, bent.judge) for bent in bents)
    for number, each in enumerate(simulated(place / "simulated", count, seed)):
        if number >= len(BROKEN):
            yield run(each, "healthy" if each.name.endswith("-whole") else "neither")


def told_right(allowed: Sequence[str]) -> str:
    if tuple(allowed) == ("pass",):
        return "healthy"
    return "broken" if "pass" not in allowed and {"fail", "invalid"} & set(allowed) else "neither"


@contextlib.contextmanager
def in_time() -> Iterator[None]:
    def too_long(number: int, frame: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


# What was found


@dataclass
class Side:
    """The nearest run of one side."""

    ratio: float
    run: str
    rule: str


@dataclass
class Margin:
    healthy: Side | None = None
    broken: Side | None = None
    beyond: int = 0  # healthy runs on the side of the broken ones: something else speaks for them
    beyond_run: str = ""
    compared: int = 0  # healthy and broken runs in which anything was compared with it

    @property
    def gap(self) -> float | None:
        """Between the two nearest runs; `None`: one side has none that is near."""
        one, other = self.near("healthy"), self.near("broken")
        ratios = sorted(side.ratio for side in (one, other) if side)
        return ratios[1] / ratios[0] if len(ratios) == 2 else None

    def near(self, side: str) -> Side | None:
        found: Side | None = getattr(self, side)
        return found if found and 1 / NEAR <= found.ratio <= NEAR else None

    @classmethod
    def read(cls, told: Mapping[str, Any]) -> Margin:
        sides = {side: Side(**told[side]) if told[side] else None for side in ("healthy", "broken")}
        return cls(**{**told, **sides})

    def take(self, row: Threshold, right: str, run: str, noted: Mapping[bool | None, Seen]) -> None:
        """A healthy run stands by its values on the side of the healthy ones, a broken one by those on the other."""
        self.compared += 1
        good = {side: seen for side, seen in noted.items() if _is_good(row, side)}
        bad = {side: seen for side, seen in noted.items() if side not in good}
        for seen in (good if right == "healthy" else bad).values():
            known = getattr(self, right)
            if known is None or _distance(seen.ratio) < _distance(known.ratio):
                setattr(self, right, Side(float(f"{seen.ratio:.3g}"), run, seen.rule))
        if right == "healthy" and bad and row.kind == "healthy":
            self.beyond, self.beyond_run = self.beyond + 1, self.beyond_run or run


def _is_good(row: Threshold, side: bool | None) -> bool:
    """Whether a value below, at or above the threshold is one of healthy runs, or of evidence that is not enough."""
    meets = {"<": side is False, "<=": side is not True, ">": side is True, ">=": side is not False}[row.sign or "<"]
    return meets if row.kind == "healthy" else not meets


def _distance(ratio: float) -> float:
    return abs(math.log(ratio)) if ratio > 0 else math.inf


def measured(found: Iterator[Run]) -> tuple[dict[str, Margin], dict[str, int]]:
    margins = {name: Margin() for name, row in TABLE.items() if row.kind != "method"}
    counts = {"healthy": 0, "broken": 0, "neither": 0, "not judged": 0}
    for run in found:
        if run.right == "neither":
            counts["neither"] += 1
            continue
        NOTED.clear()
        try:
            with in_time():
                card = run.judge()
        except Exception as error:  # a log that cannot be read shows nothing of a threshold
            counts["not judged"] += 1
            if type(error).__name__ not in ("EventLogError", "TimeoutError"):
                raise
            continue
        if crashed := [reason for reason in map(str, card.reasons) if " crashed: " in reason]:
            raise RuntimeError(f"{run.name}: {crashed[0]}")
        counts[run.right] += 1
        for name, noted in NOTED.items():
            margins[name].take(TABLE[name], run.right, run.name, noted)
    return margins, counts


def shown(row: Threshold, ratio: float = 1.0) -> str:
    value = row.value * ratio
    if row.unit == "ns":
        return format_duration(round(value))
    return f"{int(value):,} {row.unit}" if value == int(value) else f"{value:.3g} {row.unit}"


def words(name: str, margin: Margin) -> str:
    row = TABLE[name]
    told = [f"{name}: {SIGNS[row.sign]}{shown(row)}: {row.parts}"]
    for side in ("healthy", "broken") if margin.compared else ():
        if (seen := margin.near(side)) is None:
            told.append(f"    {side:8} no {side} run within a factor of ten: make one")
        else:
            told.append(f"    {side:8} {seen.ratio:.3g} × ({shown(row, seen.ratio)})  {seen.run}  {seen.rule}")
    if not margin.compared:
        told.append("    no run compares anything with it: make one")
    if margin.gap is not None and margin.gap < GAP:
        told.append(f"    the gap is {margin.gap:.3g} ×: under {GAP:g}")
    if margin.beyond:
        told.append(
            f"    {counted(margin.beyond, 'healthy run')} beyond it: other conditions decide; {margin.beyond_run}"
        )
    return "\n".join(told)


def section() -> list[str]:
    """That of docs/guarantees.md. A threshold that is new was not measured yet."""
    kept = {name: Margin.read(told) for name, told in json.loads(KEPT.read_text()).items()}
    lines = [
        "## Thresholds",
        "",
        "Each number that decides: what it parts, where it comes from, and the nearest runs, in multiples of it, among those",
        "whose right verdict is known (`make margins`). A healthy run that is beyond it is excused by another condition.",
        "",
        "| threshold | value | what it parts | comes from | nearest healthy run | nearest broken run |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in TABLE.items():
        found = kept.get(name, Margin())
        cells = [_cell(found.near(side)) if row.sign else "–" for side in ("healthy", "broken")]
        if found.beyond:
            cells[0] += f"; {found.beyond} beyond"
        if found.gap is not None and found.gap < GAP:
            cells[1] += f"; **gap {found.gap:.2g} ×**"
        lines.append(
            f"| `{name}` | {SIGNS[row.sign]}{shown(row)} | {row.parts.replace(' | ', ' · ')} | {row.source} | {' | '.join(cells)} |"
        )
    return lines


def _cell(seen: Side | None) -> str:
    return f"{seen.ratio:.2g} ×, {seen.run}" if seen else "none"


def without_source() -> list[str]:
    return [name for name, row in TABLE.items() if not row.source.startswith(SOURCES) or row.source in SOURCES]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="make margins", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--folder", type=pathlib.Path, nargs="*", default=[], help="stored runs")
    parser.add_argument("--count", type=int, default=1000, help="simulated histories")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="in docs/margins.json")
    chosen = parser.parse_args(arguments)
    if lacking := without_source():
        print(f"thresholds.py does not say where these come from: {', '.join(lacking)}. A source begins with one of")
        print(", ".join(map(repr, SOURCES)))
        return 1
    install()
    with tempfile.TemporaryDirectory() as folder:
        margins, counts = measured(runs(chosen.folder, chosen.count, chosen.seed, pathlib.Path(folder)))
    for name in sorted(margins, key=lambda name: (margins[name].gap or math.inf, name)):
        print(words(name, margins[name]))
    guessed = [name for name, row in TABLE.items() if row.source.startswith("guess: ")]
    print(f"{counted(len(guessed), 'guess', 'guesses')}: {', '.join(guessed) or 'none'}")
    print(", ".join(f"{count} {what}" for what, count in counts.items()))
    rows = (f"{json.dumps(name)}: {json.dumps(asdict(margin))}" for name, margin in margins.items())
    if chosen.keep:
        KEPT.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
