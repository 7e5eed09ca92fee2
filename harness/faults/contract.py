"""The Fault contract: one file in `harness/faults/` per fault; the file name is its name in the YAML.

A fault is a pydantic model of its parameters with two methods. `inject` acts on the targets, waits where the
fault takes time, and reports what it measured; `heal` undoes it. Both run in a thread of their own, so they
are written as plain sequential code; every wait goes through `context.wait`, which ends early when the run does.

    class RankKill(Fault):
        \"\"\"A rank's process dies by SIGKILL.\"\"\"
        needs = frozenset({Verb.SIGNAL})
        may = frozenset({May.KILL})

        def inject(self, targets, context):
            for target in targets: ...
            context.injected()
            context.effect(measured=gone, expected=len(targets), unit="processes", ok=gone == len(targets))
"""

from __future__ import annotations

import abc
import dataclasses
import importlib.util
import inspect
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_serializer, field_validator

from harness.backends.contract import Cluster, Node, Verb
from harness.errors import UsageError
from harness.extras import how_to_install
from harness.log import untrusted_files
from harness.log.consequences import Consequences, May
from harness.log.truth import Truth
from harness.parameters import Parameters
from harness.plugins import Family
from harness.trainers.checkpoints.contract import AUTO
from harness.units import Duration

END_SEEN_WITHIN_S = 2.0
RunPath = Annotated[str, AfterValidator(untrusted_files.below)]
"""A path relative to the run's folder that does not leave it."""

Folder = Annotated[RunPath, Field(max_length=200)]


@dataclass(frozen=True)
class Target:
    """One target of a fault: a node by its place in the job and, if the fault concerns a rank, the rank."""

    node_index: int
    rank: int | None = None


Targets = Sequence[Target]


@dataclass(frozen=True)
class Hold:
    """A place at which a fault stops a trainer's process or strikes it: where it logs an event with these fields.

    Stops there for at most `limit_s`; with `strikes`, the first so many processes of the rank that come there exit
    with `code`, or take `mislead` (`RANK` or `WORLD_SIZE`) for another one than they were told, or `does` to themselves
    what `harness.node.emitter.strikes` has under that name, with `argument`.
    """

    match: Mapping[str, Any]
    rank: int | None
    limit_s: float = 10.0
    strikes: int = 0
    code: int = 1
    mislead: str = ""
    does: str = ""
    argument: str | float = ""


@dataclass(frozen=True)
class CheckpointPlace:
    """The folder of a job's saves, below the run's folder, and its layout (`auto`: the first that recognises it)."""

    folder: str = "checkpoints"
    layout: str = AUTO


class Change(NamedTuple):
    """A change of the job's command: words added at its end, variables, and words that replace others."""

    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    words: Mapping[str, str] = {}


class Figures(NamedTuple):
    """A trainer's figures of one step; `nan` for a figure that is not logged."""

    step: int
    loss: float
    grad_norm: float
    lr: float


class Context(Protocol):
    """The means of a running fault: the job's nodes and ranks, the log, the undo journal, waiting."""

    cluster: Cluster  # `cluster.nodes`: all nodes; `cluster.on_this_host`: they share this host's CPUs
    seed: int  # of this fault, from the run's seed: for what is chosen by chance
    run_dir: pathlib.Path  # the folder of the run, on the host of the harness
    job_goes_on: bool  # after `Cancelled`: only the fault is ended, so everything it took must come back now

    @property
    def checkpoints(self) -> CheckpointPlace:
        """Returns where the job saves its checkpoints."""

    def node(self, target: Target) -> Node:
        """Returns the node of a target: always the same one, even if a restart moves the rank."""

    def pid_of(self, rank: int) -> tuple[Node, int]:
        """Returns the node and the process id (in the node's numbers) of the living worker with this rank."""

    def wait(
        self, seconds: float, until: Callable[[], bool] | None = None, meanwhile: Callable[[], None] | None = None
    ) -> bool:
        """Waits for `seconds` and returns False, or returns True as soon as `until()` holds. Calls `meanwhile` about
        once a second. Raises `Cancelled` when the run ends."""

    def log(self, event: str, **fields: Any) -> None:
        """Writes an event of this fault into the event log. Readers ignore a name that docs/events.md lacks: take one
        of your own, without `fault.` before it."""

    def undo(self, action: str, **arguments: Any) -> None:
        """Writes an undo record, fsynced, *before* the fault changes anything that outlives the nodes. `action`:
        `faults.<name>`: its module's `UNDO(run_dir, **arguments)` is called later. Raises `FaultError` if it could not
        be called so. Things that die with the nodes need no record."""

    def ready(self) -> None:
        """Tells that the fault is set up and acts by itself later: a trainer held for it goes on."""

    def injected(self) -> None:
        """Tells the harness that the fault acts from this moment on."""

    def injected_again(self, target: Target, node: Node) -> None:
        """Tells that the fault acts once more from this moment on, and only on this target, now on `node`. The log then
        has one record of the fault for each time."""

    def effect(self, measured: float, expected: float, unit: str, ok: bool, detail: str = "") -> None:
        """Reports the measured effect of the fault, beside the expected one. May be called several times, and each
        counts: one with `ok=False`, or no call at all, makes the run invalid."""

    def traffic(self, node: Node, measured: int | None, least: int | None, seconds: float, detail: str) -> None:
        """Reports how many bytes of the training passed the disturbed path on this node in these seconds.

        Fewer than `least` make the run invalid. `None`: it could not be measured, or proves nothing.
        """

    def ended(self, measured: float, expected: float, unit: str, ok: bool, detail: str = "") -> None:
        """Reports a measurement after the healing: `ok=False` makes the run invalid; without any it is not judged."""

    def step_times_ns(self, rank: int, since_ns: int = 0) -> list[int]:
        """Returns the durations of this rank's steps that began after `since_ns` (monotonic), oldest first."""

    def data_wait_share(self, rank: int, since_ns: int) -> float | None:
        """Returns which share (0 to 1) of this rank's step time since then was waiting for data; `None`: not known."""

    def figures(self, rank: int) -> list[Figures]:
        """Returns the figures that a rank logged in its latest steps, as executed; a repeated step comes again."""

    def ranks_on(self, node: Node) -> list[int]:
        """Returns the ranks whose newest process is on this node."""

    def worker_pids(self, node: Node) -> list[int]:
        """Returns the process ids of the ranks' newest processes on this node, in the node's numbers."""

    def reached(self, rank: int, failpoint: str) -> int:
        """Returns when this rank was last seen at the failpoint (monotonic ns), or 0 if never."""

    def said(self, rank: int, failpoint: str, since_ns: int) -> list[str]:
        """Returns the texts that a rank logged at a failpoint since a moment (monotonic ns), the oldest first."""

    def wall_offset_ns(self, rank: int) -> int | None:
        """Returns how far this rank's wall clock is ahead of ours, by its newest event; `None` if not known."""

    def hold(self) -> None:
        """Makes trainers stop or be struck, from now on, at the places that `Fault.holds` names."""

    def let_go(self) -> None:
        """Ends `hold()`: no place stops a trainer any more, and waiting processes go on."""

    def caught(self) -> int | None:
        """Returns the rank of a process that waits at a place in `Fault.holds` to be struck, or `None`."""

    def strike(self) -> None:
        """Carries out the planned strike on the process that `caught` returned."""

    def change_command(self) -> None:
        """Starts nodes that come from now on with the command as `Fault.change` has changed it."""

    def release(self, node: Node, reason: str) -> None:
        """Tells that the fault has taken this node, so that its GPUs no longer count as the job's."""

    def replace(self, node: Node) -> Node:
        """Brings a replacement for a taken node, whose GPUs count as the job's from now on."""


class Cancelled(Exception):
    """Raised in a fault that waits when the run ends. The engine catches it."""


class Fault(Parameters, abc.ABC):
    """The base of all faults, whose fields are the parameters in the YAML. Subclasses add fields; an unknown key in the
    YAML is an error. It must define `describe` and `inject`; all else has a default."""

    needs: ClassVar[frozenset[Verb]] = frozenset()  # what it uses of a backend; where one is missing, a plan is refused
    may: ClassVar[frozenset[May]] = frozenset()  # what may come of it: without one, its targets must go on
    network: ClassVar[bool] = False  # it acts on the network, so the training's own traffic must meet it
    clocks: ClassVar[bool] = False  # it sets clocks wrong
    preempts: ClassVar[bool] = False  # the owner of a node takes it back
    benign: ClassVar[bool] = False  # nothing is wrong: it explains no alarm, and no restart
    sticks: ClassVar[bool] = False  # it strikes each new life of its nodes as well, so the job may leave them out
    damages: ClassVar[bool] = False  # it damages checkpoints that are written, so the last one may be lost
    aims_at: ClassVar[str] = "node"  # or "rank": what a target resolves to
    truth: ClassVar[Truth | None] = None  # the right answers to "who was it?"; none: answers about it are not graded
    runbook: ClassVar[str] = ""  # `docs/runbooks/<this>.md` says what to do about the failure that it rehearses
    packages: ClassVar[Mapping[str, str]] = {}  # Python packages it needs here, and the extra each comes with

    @classmethod
    def lacks(cls) -> list[str]:
        """Returns what this machine lacks for the fault, one sentence each: by default missing `packages`. A plan with
        such a fault is refused. Called on the class, before there are parameters."""
        missing = [name for name in cls.packages if importlib.util.find_spec(name) is None]
        return [f"{name} is not installed: {how_to_install(cls.packages[name])}" for name in missing]

    def needed(self) -> frozenset[Verb]:
        """Returns the acts on nodes that the fault needs with these parameters: `needs`, unless overridden."""
        return self.needs

    def lasts(self) -> Duration | None:
        """Returns how long the fault acts, from its begin until it is healed: its `duration`, or `None`."""
        found = getattr(self, "duration", None)
        return found if isinstance(found, Duration) else None

    def freezes(self) -> bool:
        """Returns True if the targets log nothing and do no step while the fault lasts."""
        return False

    def over_rdma(self) -> bool | None:
        """Returns True if the fault only acts on RDMA traffic, False if only on IP traffic, `None` if on neither. A
        plan whose job has only the other kind is refused."""
        return False if self.network else None

    def graceful(self) -> bool:
        """Returns True if the fault asks its victims to end, so that they may exit by themselves."""
        return False

    def replaced(self) -> bool | None:
        """Returns True if the nodes that it takes come back; `None` if it takes no nodes."""
        return None

    def change(self) -> Change | None:
        """Returns how the fault changes the job's command; `None` if it does not."""
        return None

    def updates_only(self) -> bool:
        """Returns True if the change of the command concerns only updates of weights, such as the learning rate."""
        return False

    def shows(self) -> str:
        """Returns the figure of a step that the fault's change of the command must change; empty: none need."""
        return ""

    def spoilt_steps(self) -> int | None:
        """Returns the number of steps whose batches the fault spoils; `None` if it spoils none."""
        return None

    def true_answers(self) -> Truth | None:
        """Returns the right diagnoses of the fault: `truth`, unless a fault overrides this."""
        return self.truth

    def consequences(self) -> Consequences:
        """Returns all that the fault may do to the job, as fields of its event `fault.injected`."""
        said = {each.name: getattr(self, each.name, None) for each in dataclasses.fields(Consequences)}
        told: dict[str, Any] = {name: value() if callable(value) else value for name, value in said.items()}
        told["notice_ns"] = None if self.notice_s is None else round(self.notice_s * 1e9)
        truth = self.true_answers()
        told |= {"changes": self.change() is not None, "must_leave": truth is not None and truth.must_leave}
        return Consequences(**told)

    def holds(self, targets: Targets) -> list[Hold]:
        """Returns the places at which this fault stops or strikes trainers that use our emitter."""
        return []

    def environment(self, run_dir: pathlib.Path) -> Mapping[str, str]:
        """Returns environment variables without which the fault could not act on processes later. Called once, before
        the first start: every node gets them, replacements too, and no later start gets others. `PYTHONPATH` replaces
        that of the workload; the harness's comes before it, and its `sitecustomize` runs yours."""
        return {}

    def mounts(self) -> Sequence[str]:
        """Returns folders of the run whose file operations the fault may disturb, so that they are prepared."""
        return ()

    def beside(self, folder: pathlib.Path) -> Self:
        """Returns the fault with its files' content, read from `folder`. Raises `ValueError` for a wrong file."""
        return self

    @property
    def notice_s(self) -> float | None:
        """Returns how many seconds of notice the fault gives before it takes a node; `None`: no notice."""
        return None

    def fresh(self) -> Self:
        """Returns a fault with the same parameters, and no memory of an injection."""
        return type(self).model_validate(self.model_dump(mode="json"))

    @abc.abstractmethod
    def describe(self, targets: Targets) -> str:
        """Returns one sentence for `chaos plan` on what the fault does to these targets."""

    @abc.abstractmethod
    def inject(self, targets: Targets, context: Context) -> None:
        """Strikes the targets, measures the effect, and waits while the fault lasts. Has a thread of its own."""

    def heal(self, targets: Targets, context: Context) -> None:
        """Undoes all of the fault's effects. Runs at its end or the run's, also after a failed `inject`."""

    def see_end(self, targets: Targets, context: Context) -> None:
        """Checks after `heal` that the effect is over, and reports this by `context.ended`. Takes `END_SEEN_WITHIN_S`
        at most, as the job goes on. Not called if the job is over, too."""


class Replacement(Parameters):
    """The time from when a node is gone until its replacement comes."""

    after: Duration


class TakesNodes(Fault):
    """The base of faults that take whole nodes away, and may bring replacements."""

    replacement: Replacement | Literal["none"] = Field(
        "none", description="{after: 5s}, or none: the job must go on with fewer nodes."
    )

    needs = frozenset({Verb.KILL})
    may = frozenset({May.KILL})

    def needed(self) -> frozenset[Verb]:
        return self.needs if self.replacement == "none" else self.needs | {Verb.REPLACE}

    def replaced(self) -> bool:
        return self.replacement != "none"

    def describe_replacement(self) -> str:
        if isinstance(self.replacement, Replacement):
            return f"a replacement arrives {self.replacement.after} later"
        return "no replacement: the job must go on with fewer nodes"

    def take(self, nodes: Sequence[Node], reason: str, context: Context) -> None:
        """Kills nodes, checks that nothing of them is left, and brings their replacements. Does not call
        `context.injected()`: call it before."""
        before, since = [len(node.pids()) for node in nodes], time.monotonic()
        for node in nodes:  # all of them first: a rack is lost at once
            context.log("fault.taking", node=node.name)
            node.kill()
            context.release(node, reason)
        together = f"; all {len(nodes)} within {time.monotonic() - since:.2f} s" if len(nodes) > 1 else ""
        for node, number in zip(nodes, before, strict=True):
            left = len(node.pids())
            gone = left == 0 and not node.alive
            detail = f"{node.name}: {number} before{together}"
            context.effect(left, 0, "processes left on the node", ok=gone, detail=detail)
        self.bring_replacements(nodes, context)

    def bring_replacements(self, nodes: Sequence[Node], context: Context) -> None:
        if isinstance(self.replacement, Replacement):
            try:
                context.wait(self.replacement.after.s)
            except Cancelled:
                if not context.job_goes_on:
                    raise
            for node in nodes:
                context.replace(node)
        else:
            for node in nodes:
                context.cluster.give_up(node)


def name_nodes(targets: Targets) -> str:
    """Returns the names of the targeted nodes in words: `node 0, 2`."""
    return "node " + ", ".join(str(target.node_index) for target in targets)


def ranks_of(targets: Targets) -> list[int]:
    """Returns the ranks of a fault with `aims_at: rank`, as the planner resolves them."""
    return [target.rank for target in targets if target.rank is not None]


def name_ranks(targets: Targets) -> str:
    """Returns the names of the targeted ranks in words: `rank 0, 2`."""
    return "rank " + ", ".join(str(target.rank) for target in targets)


_DECORATED = {classmethod: "@classmethod", property: "@property"}
_FAMILY = Family("fault", "harness.faults", "FAULT")
fault_names = _FAMILY.names
fault_module = _FAMILY.module


def load_fault(name: str) -> type[Fault]:
    """Returns the fault class that `harness/faults/<name>.py` defines."""
    fault: type[Fault] = _FAMILY.load(name)
    where = fault_module(name).__name__.replace(".", "/") + ".py"
    if not (isinstance(fault, type) and issubclass(fault, Fault)):
        raise UsageError(f"{where}: FAULT must be a class of a Fault")
    if shadowed := sorted(fault.model_fields.keys() & set(dir(Fault))):
        said = f"with a type, `{shadowed[0]}` is a parameter; write `{shadowed[0]} = …`, as each fault has it"
        raise UsageError(f"{fault.__module__}: {said}")
    if lacking := sorted(getattr(fault, "__abstractmethods__", ())):
        raise UsageError(f"{where}: {fault.__name__} does not define {' or '.join(lacking)}")
    for member, ours in vars(Fault).items():
        needs = _DECORATED.get(type(ours))
        if member[0] != "_" and needs and isinstance(inspect.getattr_static(fault, member), FunctionType):
            raise UsageError(f"{where}: write {needs} above `def {member}`, as docs/fault-api.md shows it")
    return fault


def missing_here(fault: type[Fault]) -> list[str]:
    """Returns what this machine lacks for a fault. If the fault's own code breaks, the error is what is missing."""
    try:
        found = fault.lacks()
        if isinstance(found, list) and all(isinstance(each, str) for each in found):
            return found
        return [f"{fault.__module__}: lacks() returned {found!r}; it must return a list of texts"]
    except Exception as error:  # it may be another's code
        return [f"{fault.__module__}: lacks() raised {type(error).__name__}: {error}"]


def build_fault(name: str, parameters: object) -> Fault:
    """Returns the fault of this name with these parameters, as in YAML."""
    return load_fault(name).model_validate(parameters)


class NamedFault(Parameters):
    """A fault of a plan, with its id. In YAML and JSON, `fault` is the name of its kind; here it is the fault."""

    id: str
    kind: str = Field(alias="fault")
    action: Fault = Field(alias="parameters")

    @field_validator("kind")
    @classmethod
    def _known(cls, name: str) -> str:
        return _FAMILY.known(name)

    @field_validator("action", mode="plain")
    @classmethod
    def _build(cls, parameters: object, info: ValidationInfo) -> object:
        if isinstance(parameters, Fault) or "kind" not in info.data:  # what is wrong with the kind is told already
            return parameters
        return build_fault(info.data["kind"], parameters)

    @field_serializer("action")
    def _parameters(self, action: Fault) -> dict[str, Any]:
        return action.model_dump(mode="json")
