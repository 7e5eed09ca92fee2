"""Makes Hypothesis strategies that draw random schedules of faults from the definitions of the faults' parameters.

The JSON Schema of a fault gives the allowed values of each parameter. A new kind of fault needs no change of this
module. Drawn values stay near their defaults, so that a run ends soon and does not exhaust the host. A fault with a
parameter that only a user can give, such as a file, cannot be drawn."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from harness.backends.contract import Capability
from harness.errors import ScenarioError, UsageError
from harness.extras import needed
from harness.faults.contract import Fault, build_fault, fault_names, load_fault
from harness.fuzz.schedules import OF_AN_ENTRY, Base, Entry, Schedule, key_of, without
from harness.parameters import Percentage
from harness.plan.capabilities import lacking
from harness.trainers.contract import Workload
from harness.units import Duration, Rate, Size

with needed("chaos fuzz", "fuzz"):
    import hypothesis
    from hypothesis import HealthCheck, Phase, settings
    from hypothesis import strategies as st
    from hypothesis.configuration import set_hypothesis_home_dir
    from hypothesis.errors import Unsatisfiable

T = TypeVar("T")
Values = Mapping[str, Any]

FACTORS = (0.25, 0.5, 2)  # times a default
NS = {"ms": 10**6, "s": 10**9}
USUAL_NS = (10**9, 5 * 10**9, 10**10)  # durations that are tried where the default is longer
SHORT = ("0ms", "20ms", "200ms", "1s")  # where the default is no time at all
BYTES = ("0B", "64KiB", "1MiB")  # where there is no other default
RATES = ("10mbit", "100mbit", "1gbit")
PERCENTS = (1, 5, 10, 25, 50, 75, 100)
FEW = 32  # a range of whole numbers that is drawn from as a whole
DELAYS = ("200ms", "500ms", "1s", "2s", "4s", "8s")  # from one fault to the next
MOMENTS = ("2s", "5s", "10s", "20s")  # of a job whose number of steps is not known
EVENTS = ("effect", "recovered", "healed")
TRIES = 100  # draws of a fault's parameters until none seems to be valid


# Parameters


def parameters(kind: str) -> st.SearchStrategy[dict[str, Any]]:
    fault = load_fault(kind)
    schema = fault.model_json_schema()
    required: dict[str, st.SearchStrategy[Any]] = {}
    optional: dict[str, st.SearchStrategy[Any]] = {}
    for name, part in schema.get("properties", {}).items():
        field = fault.model_fields[name]
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        found = _values(part, schema.get("$defs", {}), default)
        if found is not None:
            (required if field.is_required() else optional)[name] = found
    return st.fixed_dictionaries(required, optional=optional).filter(functools.partial(_is_valid, kind))


def _is_valid(kind: str, values: Values) -> bool:
    try:
        build_fault(kind, dict(values))
    except ValidationError:
        return False
    return True


def _values(schema: Values, known: Mapping[str, Any], default: object) -> st.SearchStrategy[Any] | None:
    if "$ref" in schema:
        return _values(known[schema["$ref"].rpartition("/")[2]], known, default)
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "const" in schema:
        return st.just(schema["const"])
    if "anyOf" in schema:
        return _one_of(schema["anyOf"], known, default)
    return _of_type(schema, known, default)


def _one_of(parts: Sequence[Values], known: Mapping[str, Any], default: object) -> st.SearchStrategy[Any] | None:
    """Returns a strategy for a parameter with several schemas. If one schema is a duration, only durations are drawn,
    so that the fault ends."""
    ends = [part for part in parts if part.get("pattern") == Duration.pattern]
    found = [_values(part, known, default) for part in ends or parts if part.get("type") != "null"]
    usable = [each for each in found if each is not None]
    return st.one_of(usable) if usable else None


def _of_type(schema: Values, known: Mapping[str, Any], default: object) -> st.SearchStrategy[Any] | None:
    if schema.get("pattern") in _QUANTITIES:
        return st.sampled_from(_QUANTITIES[schema["pattern"]](default))
    kind = schema.get("type")
    if kind == "boolean":
        return st.booleans()
    if kind in ("integer", "number") or kind == ["number", "string"]:
        return _numbers(schema, default)
    if kind == "array" and "enum" in schema.get("items", {}):
        return st.lists(st.sampled_from(schema["items"]["enum"]), min_size=1, unique=True)
    if kind == "object" and "properties" in schema:
        parts = {name: _values(part, known, None) for name, part in schema["properties"].items()}
        usable = {name: each for name, each in parts.items() if each is not None}
        return None if parts.keys() - usable.keys() else st.fixed_dictionaries(usable)
    return None


def _numbers(schema: Values, default: object) -> st.SearchStrategy[Any]:
    low, high = schema.get("minimum", schema.get("ge")), schema.get("maximum", schema.get("le"))
    above, below = schema.get("exclusiveMinimum", schema.get("gt")), schema.get("exclusiveMaximum", schema.get("lt"))
    whole = schema.get("type") == "integer"
    if whole and low is not None and high is not None and high - low < FEW:
        return st.integers(low, high)
    tried: list[float] = [0, 1, 2, 5]
    if schema.get("pattern") == _PERCENT:
        tried = list(PERCENTS)
    elif isinstance(default, (int, float)) and default:
        tried = [float(default), *(default * factor for factor in FACTORS)]
    elif low is not None:
        tried = [low, low + 1, low + 2]
    fit = [
        round(each) if whole else each
        for each in tried
        if (low is None or each >= low) and (high is None or each <= high)
        if (above is None or each > above) and (below is None or each < below)
    ]
    return st.sampled_from(list(dict.fromkeys(fit))) if fit else st.just(default)


def _durations(default: object) -> list[str]:
    if not isinstance(default, Duration):
        return [_duration(ns) for ns in USUAL_NS]
    if not default.ns:
        return list(SHORT)
    near = {round(default.ns * factor) for factor in (*FACTORS, 1)}
    return [_duration(ns) for ns in sorted(near | {ns for ns in USUAL_NS if ns < default.ns})]


def _duration(ns: int) -> str:
    unit = "s" if ns % NS["s"] == 0 else "ms"
    return f"{ns // NS[unit]}{unit}" if ns >= NS["ms"] else f"{ns}ns"


def _sizes(default: object) -> list[str]:
    number = default.bytes if isinstance(default, Size) else 0
    return [_size(round(number * factor)) for factor in (*FACTORS, 1)] if number else list(BYTES)


def _size(number: int) -> str:
    unit, scale = next(each for each in (("MiB", 2**20), ("KiB", 2**10), ("B", 1)) if number % each[1] == 0)
    return f"{number // scale}{unit}"


def _rates(default: object) -> list[str]:
    number = default.bits_per_s if isinstance(default, Rate) else 0
    return [f"{round(number * factor)}bit" for factor in (*FACTORS, 1)] if number else list(RATES)


_QUANTITIES = {Duration.pattern: _durations, Size.pattern: _sizes, Rate.pattern: _rates}
_PERCENT = Percentage.__metadata__[1].json_schema["pattern"]  # type: ignore[attr-defined]


# Schedules


@dataclass(frozen=True)
class Space:
    """The faults that a search may draw for a job. `kinds` maps each kind of fault that can be drawn to its simplest
    parameters. `undrawn` maps each kind of fault that cannot be drawn to the reason."""

    base: Base
    kinds: Mapping[str, Values]
    undrawn: Mapping[str, str]
    faults_max: int = 3

    def schedules(self, kinds: Collection[str] = ()) -> st.SearchStrategy[list[dict[str, Any]]]:
        return _schedules(self, sorted(kinds or self.kinds)).filter(self.base.allows)

    def neighbours(self, schedule: Schedule, kinds: Collection[str] = ()) -> st.SearchStrategy[list[dict[str, Any]]]:
        """Returns a strategy that draws variants of `schedule`: with one fault or trigger changed, or one fault added
        or removed."""
        return _neighbours(self, schedule, sorted(kinds or self.kinds)).filter(self.base.allows)


@st.composite
def _schedules(draw: st.DrawFn, space: Space, kinds: Sequence[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, space.faults_max))):
        found.append(draw(_entries(space, found, kinds)))
    return found


@st.composite
def _neighbours(draw: st.DrawFn, space: Space, schedule: Schedule, kinds: Sequence[str]) -> list[dict[str, Any]]:
    acts = ["fault", "when"] + ["more"] * (len(schedule) < space.faults_max) + ["fewer"] * (len(schedule) > 1)
    found = [dict(entry) for entry in schedule]
    act, place = draw(st.sampled_from(acts)), draw(st.integers(0, len(found) - 1))
    if act == "more":
        return [*found, draw(_entries(space, found, kinds))]
    if act == "fewer":
        return without(found, place)
    if act == "when":
        found[place]["when"] = draw(_triggers(space.base.spec.workload, found[:place]))
    else:
        found[place] = {"id": found[place]["id"], "when": found[place]["when"], **draw(_faults(space, kinds))}
    return found


@st.composite
def _entries(draw: st.DrawFn, space: Space, earlier: Schedule, kinds: Sequence[str]) -> dict[str, Any]:
    when = draw(_triggers(space.base.spec.workload, earlier))
    return {"id": f"f{len(earlier) + 1}", "when": when, **draw(_faults(space, kinds))}


@st.composite
def _faults(draw: st.DrawFn, space: Space, kinds: Sequence[str]) -> dict[str, Any]:
    kind = draw(st.sampled_from(kinds))
    workload, aims_at = space.base.spec.workload, load_fault(kind).aims_at
    places = range(workload.nodes if aims_at == "node" else workload.world_size)
    all_of_them = draw(st.integers(0, 3)) == 3
    target = "all" if all_of_them else draw(st.sampled_from(places))
    return {"fault": kind, "target": {aims_at: target}, **draw(_parameters(kind))}


@st.composite
def _triggers(draw: st.DrawFn, workload: Workload, earlier: Schedule) -> dict[str, Any]:
    steps, phases = workload.steps or 0, workload.trainer.phases
    forms: list[tuple[str, ...]] = [("step",) if steps > 1 else ("after",)]
    if phases:
        forms += [("phase",)] + [("step", "phase")] * (steps > 1)
    if earlier:
        forms += [("following",), ("following", "after"), ("following", "after"), ("following", "event")]
        forms += [("following", "phase")] * bool(phases)
    form = draw(st.sampled_from(forms))
    moments = sorted({max(1, steps * part // 20) for part in range(1, 15)})
    choices: dict[str, Sequence[Any]] = {"step": moments, "phase": phases, "event": EVENTS}
    choices |= {"after": DELAYS if earlier else MOMENTS, "following": [entry["id"] for entry in earlier]}
    return {key: draw(st.sampled_from(choices[key])) for key in form}


@functools.cache
def _parameters(kind: str) -> st.SearchStrategy[dict[str, Any]]:
    return parameters(kind)


def space_of(base: Base, capability: Capability, faults_max: int = 3) -> Space:
    """Finds the faults that a search can draw for this job on this machine. Raises `UsageError` if no fault fits."""
    kinds: dict[str, Values] = {}
    undrawn: dict[str, str] = {}
    for kind in fault_names():
        found = _simplest(kind, base)
        if isinstance(found, str):
            undrawn[kind] = found
            continue
        reasons = [reason for _, reason in lacking(base.plan([_example(kind, base, found)]), capability)]
        if reasons:
            undrawn[kind] = reasons[0].removeprefix(f"fault f1 ({kind}) ").removeprefix(f"fault f1 ({kind}): ")
        else:
            kinds[kind] = found
    if not kinds:
        raise UsageError("no fault can be drawn for this job on this machine; `chaos faults` says what each needs")
    return Space(base, kinds, undrawn, faults_max)


def _example(kind: str, base: Base, values: Values) -> Entry:
    steps = base.spec.workload.steps
    when = {"step": max(1, steps // 2)} if steps and steps > 1 else {"after": MOMENTS[0]}
    return {"id": "f1", "fault": kind, "when": when, "target": {load_fault(kind).aims_at: 0}, **values}


def _simplest(kind: str, base: Base) -> Values | str:
    fault: type[Fault] = load_fault(kind)
    if own := set(OF_AN_ENTRY) & fault.model_fields.keys():
        return f"its parameter {min(own)} has the name of a key that each fault has"
    why = "only a person can give its parameters"
    for values in _tried(kind):
        try:
            base.plan([_example(kind, base, values)])
        except ScenarioError as error:
            why = error.problems[0].rpartition("faults.0: ")[2]
        else:
            return values
    return why


def _tried(kind: str) -> Iterator[Values]:
    yield {}
    yield from sorted(draw(parameters(kind), TRIES, 0), key=lambda each: (len(each), key_of([each])))


def draw(strategy: st.SearchStrategy[T], count: int, seed: int) -> list[T]:
    """Draws at most `count` values from a strategy. Equal seeds give equal values. Returns an empty list if the
    strategy yields no valid value."""
    found: list[T] = []

    @hypothesis.seed(seed)
    @settings(
        max_examples=count,
        database=None,
        phases=[Phase.generate],
        deadline=None,
        derandomize=False,
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(strategy)
    def collect(value: T) -> None:
        found.append(value)

    with tempfile.TemporaryDirectory() as home:  # else it leaves a folder where the user is
        set_hypothesis_home_dir(home)
        try:
            with contextlib.suppress(Unsatisfiable):
                collect()
        finally:
            set_hypothesis_home_dir(None)
    return found
