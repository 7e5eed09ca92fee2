"""The Fault contract: one file in `harness/faults/` per fault; the file name is its name in the YAML.

A fault is a pydantic model of its parameters with two methods. `inject` acts on the targets, waits where the
fault takes time, and reports what it measured; `heal` undoes it. Both run in a thread of their own, so they
are written as plain sequential code; every wait goes through `context.wait`, which ends early when the run does.

    class RankKill(Fault):
        \"\"\"A rank's process dies by SIGKILL.\"\"\"
        needs = frozenset({Verb.SIGNAL})
        kills = True

        def inject(self, targets, context):
            for target in targets: ...
            context.injected()
            context.effect(measured=gone, expected=len(targets), unit="processes", ok=gone == len(targets))
"""

from __future__ import annotations

import abc
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, WithJsonSchema

from harness import units
from harness.backend import Cluster, Node, Verb
from harness.errors import UsageError


def _unit(parse: Callable[[object], Any], pattern: str, example: str) -> tuple[Any, ...]:
    """A field that keeps the text as written after checking it; the planner turns it into a number."""

    def check(value: object) -> object:
        parse(value)
        return value

    schema = {"type": "string", "pattern": pattern, "examples": [example]}
    return BeforeValidator(check), PlainSerializer(str), WithJsonSchema(schema)


Duration = Annotated[str, *_unit(units.parse_duration_ns, r"^\d+(\.\d+)?\s*(ns|us|ms|s|m|h)$", "30s")]
Size = Annotated[str, *_unit(units.parse_size_bytes, r"^\d+(\.\d+)?\s*(B|kB|MB|GB|KiB|MiB|GiB)$", "64MiB")]
Rate = Annotated[str, *_unit(units.parse_rate_bits, r"^\d+(\.\d+)?\s*(bit|kbit|mbit|gbit)$", "100mbit")]


@dataclass(frozen=True)
class Target:
    """One thing a fault acts on: a place in the job, and a rank there when the fault is about a rank."""

    node_index: int
    rank: int | None = None


class Context(Protocol):
    """What a fault may use while it acts."""

    cluster: Cluster
    seed: int

    def node(self, target: Target) -> Node: ...
    def pid_of(self, rank: int) -> tuple[Node, int]:
        """The node and process id (as numbered there) of the living worker with this rank."""
        ...

    def wait(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """Waits; returns early with `True` when `until()` holds. Raises `Cancelled` when the run ends."""
        ...

    def log(self, event: str, **fields: Any) -> None:
        """An event of this fault in the event log."""
        ...

    def undo(self, action: str, **arguments: Any) -> None:
        """Writes the undo record `module:function` with its arguments, fsynced, *before* the fault touches
        anything that outlives the nodes (files on the host). What dies with the nodes needs none."""
        ...

    def injected(self) -> None:
        """The fault acts from this moment on."""
        ...

    def effect(self, measured: float, expected: float, unit: str, ok: bool, detail: str = "") -> None:
        """What was measured. `ok=False`, or no effect at all, makes the run invalid."""
        ...

    def release(self, node: Node, reason: str) -> None:
        """The node's GPUs are no longer allocated to the job (it is gone)."""
        ...

    def replace(self, node: Node) -> Node:
        """A replacement arrives now, and is allocated from now on."""
        ...


class Cancelled(Exception):
    """The run ends while a fault waits; the engine catches it."""


class Fault(BaseModel, abc.ABC):
    """Parameters of one fault. Subclasses add fields; an unknown key in the YAML is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    needs: ClassVar[frozenset[Verb]] = frozenset()
    kills: ClassVar[bool] = False  # processes of the target are meant to die: their exits are explained
    aims_at: ClassVar[str] = "node"  # or "rank": what a target resolves to

    def needed(self) -> frozenset[Verb]:
        """The verbs these parameters need: `needs`, unless a fault depends on a parameter."""
        return self.needs

    @abc.abstractmethod
    def describe(self, targets: Sequence[Target]) -> str:
        """One sentence in words of what will be done to what (`chaos explain`)."""

    @abc.abstractmethod
    def inject(self, targets: Sequence[Target], context: Context) -> None: ...

    def heal(self, targets: Sequence[Target], context: Context) -> None:
        """Undoes what still acts. Runs at the end of the fault or of the run, also after a failed `inject`."""

    def replaces(self) -> bool:
        """Whether the fault itself brings back the capacity it takes."""
        return True

    def losses(self, targets: Sequence[Target]) -> int:
        """How many nodes are gone for a time (or for good)."""
        return 0


def fault_names() -> list[str]:
    import harness.faults

    return sorted(module.name for module in pkgutil.iter_modules(harness.faults.__path__))


def load_fault(name: str) -> type[Fault]:
    """The `FAULT` of `harness/faults/<name>.py`."""
    if name not in fault_names():
        raise UsageError(f"there is no fault {name!r}; there is {', '.join(fault_names())}")
    fault: type[Fault] = importlib.import_module(f"harness.faults.{name}").FAULT
    return fault


def build_fault(name: str, parameters: Mapping[str, Any]) -> Fault:
    return load_fault(name).model_validate(dict(parameters))
