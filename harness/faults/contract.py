"""Defines the contract of faults: each file in `harness/faults/` is one fault, and the file's name is its name in YAML.

A fault is a pydantic model of its parameters, with the two methods `inject` and `heal`. `inject` acts on the targets,
waits where the fault takes time, and reports what it measured; `heal` undoes the effects. Each fault has a thread of
its own, so `inject` and `heal` are plain sequential code. Every wait goes through `context.wait`, which ends early when
the run ends.

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
    """One target of a fault: the index of a node in the job and, if the fault concerns a rank, the rank."""

    node_index: int
    rank: int | None = None


Targets = Sequence[Target]


@dataclass(frozen=True)
class Hold:
    """A point in the trainer's log at which a fault stops or disturbs the trainer's process: any event with the fields
    `match`.

    The process stops at the event for at most `limit_s` seconds. If `strikes` is above 0, the fault instead disturbs
    the first `strikes` processes of the rank that log the event. A disturbed process runs the action `does` of
    `harness.node.emitter.strikes` with `argument`, gets a wrong value of the variable `mislead` (`RANK` or
    `WORLD_SIZE`), or, if both are empty, exits with `code`.
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
    """The folder of a job's checkpoints, relative to the run's folder, and their layout (`auto`: the first layout that
    fits)."""

    folder: str = "checkpoints"
    layout: str = AUTO


class Change(NamedTuple):
    """A change of the job's command: arguments to append, environment variables to set, arguments to replace."""

    args: tuple[str, ...] = ()
    env: Mapping[str, str] = {}
    words: Mapping[str, str] = {}


class Figures(NamedTuple):
    """The values that a trainer logged for one step; `nan` for a value that the trainer does not log."""

    step: int
    loss: float
    grad_norm: float
    lr: float


class Context(Protocol):
    """The interface through which a running fault uses the harness: nodes, ranks, event log, undo journal and waits."""

    cluster: Cluster  # `cluster.nodes`: all nodes; `cluster.on_this_host`: they share this host's CPUs
    seed: int  # of this fault, from the run's seed: for what is chosen by chance
    run_dir: pathlib.Path  # the folder of the run, on the host of the harness
    job_goes_on: bool  # after `Cancelled`: only the fault is ended, so everything it took must come back now

    @property
    def checkpoints(self) -> CheckpointPlace:
        """Returns where the job saves its checkpoints."""

    def node(self, target: Target) -> Node:
        """Returns a target's node, which stays the same even if a restart moves the target's rank elsewhere."""

    def pid_of(self, rank: int) -> tuple[Node, int]:
        """Returns the node of the living worker with this rank, and the worker's process id as seen inside the node."""

    def wait(
        self, seconds: float, until: Callable[[], bool] | None = None, meanwhile: Callable[[], None] | None = None
    ) -> bool:
        """Waits for `seconds` and returns False, or returns True as soon as `until()` holds. Calls `meanwhile` about
        once a second during the wait. Raises `Cancelled` when the run ends or the fault is cancelled."""

    def log(self, event: str, **fields: Any) -> None:
        """Writes an event of this fault into the event log. Choose an event name of your own without the prefix
        `fault.`: log readers ignore event names that docs/events.md does not list."""

    def undo(self, action: str, **arguments: Any) -> None:
        """Writes an undo record and syncs it to the disk. Call `undo` *before* the fault changes anything that outlives
        the nodes. `action` is `faults.<name>`: the harness later calls `UNDO(run_dir, **arguments)` of this fault's
        module. Raises `FaultError` if `UNDO` cannot be called with these arguments. A change that ends with its node
        needs no undo record."""

    def ready(self) -> None:
        """Tells the harness that the fault is set up and acts by itself. If the fault's trigger has stopped a trainer,
        the trainer now continues."""

    def injected(self) -> None:
        """Tells the harness that the fault acts from this moment on."""

    def injected_again(self, target: Target, node: Node) -> None:
        """Tells the harness that the fault acts once more from this moment on, only on this target, which is now on
        `node`. The event log has a record of its own for each time that the fault acts."""

    def effect(self, measured: float, expected: float, unit: str, ok: bool, detail: str = "") -> None:
        """Reports the measured effect of the fault, beside the expected effect. A fault can report several effects. The
        run is invalid if an effect has `ok=False`, or if the fault reports no effect."""

    def traffic(self, node: Node, measured: int | None, least: int | None, seconds: float, detail: str) -> None:
        """Reports how many bytes of the training's own traffic passed the disturbed path on this node in `seconds`.

        The run is invalid if `measured` is below `least`. `measured` is `None` if the bytes could not be counted, and
        `least` is `None` if the number of bytes proves nothing.
        """

    def ended(self, measured: float, expected: float, unit: str, ok: bool, detail: str = "") -> None:
        """Reports a measurement, made after `heal`, of whether the effect is over. `ok=False` makes the run invalid. If
        a fault never calls `ended`, its end is not judged."""

    def step_times_ns(self, rank: int, since_ns: int = 0) -> list[int]:
        """Returns the durations of this rank's steps that began after `since_ns` (monotonic), oldest first."""

    def data_wait_share(self, rank: int, since_ns: int) -> float | None:
        """Returns the share (0 to 1) of this rank's step time since `since_ns` in which the rank waited for data, or
        `None` if the share is unknown."""

    def figures(self, rank: int) -> list[Figures]:
        """Returns the values that a rank logged in its latest steps, in order. A repeated step appears twice."""

    def ranks_on(self, node: Node) -> list[int]:
        """Returns the ranks whose newest process is on this node."""

    def worker_pids(self, node: Node) -> list[int]:
        """Returns the process ids, inside the node, of the newest processes of the ranks on this node."""

    def reached(self, rank: int, failpoint: str) -> int:
        """Returns when this rank was last at a failpoint, a named place in the trainer (in monotonic ns, or 0 for
        never)."""

    def said(self, rank: int, failpoint: str, since_ns: int) -> list[str]:
        """Returns the texts that a rank logged since `since_ns` (monotonic) at a failpoint, a named place in the
        trainer. The oldest text comes first."""

    def wall_offset_ns(self, rank: int) -> int | None:
        """Returns how far this rank's wall clock is ahead of the harness's, by the rank's newest event, or `None` if
        unknown."""

    def hold(self) -> None:
        """Activates `Fault.holds`: from now on, a trainer's process stops at these log events, or waits there for
        `strike`."""

    def let_go(self) -> None:
        """Ends `hold`: trainers no longer stop at the events of `Fault.holds`, and waiting processes go on."""

    def caught(self) -> int | None:
        """Returns the rank of a trainer's process that waits for `strike`, or `None` if no process waits."""

    def strike(self) -> None:
        """Disturbs the waiting process whose rank `caught` returns, as the fault's `Hold` says."""

    def change_command(self) -> None:
        """Makes nodes that start from now on run the job's command as changed by `Fault.change`."""

    def release(self, node: Node, reason: str) -> None:
        """Tells the harness that the fault has taken this node, whose GPUs no longer count as the job's."""

    def replace(self, node: Node) -> Node:
        """Starts and returns a replacement for a taken node. The replacement's GPUs count as the job's from now on."""


class Cancelled(Exception):
    """Raised by `Context.wait` when the run ends or the fault is cancelled. A fault must not catch this exception."""


class Fault(Parameters, abc.ABC):
    """The base of all faults, whose fields are the parameters in the YAML. Subclasses add fields; an unknown key in the
    YAML is an error. Every fault must define `describe` and `inject`; all other methods have a default."""

    needs: ClassVar[frozenset[Verb]] = frozenset()  # what it uses of a backend; where one is missing, a plan is refused
    may: ClassVar[frozenset[May]] = frozenset()  # what may come of it: without one, its targets must go on
    network: ClassVar[bool] = False  # it acts on the network, so the training's own traffic must meet it
    clocks: ClassVar[bool] = False  # it sets clocks wrong
    preempts: ClassVar[bool] = False  # the owner of a node takes it back
    benign: ClassVar[bool] = False  # nothing is wrong: it explains no alarm, and no restart
    sticks: ClassVar[bool] = False  # it strikes each new life of its nodes as well, so the job may leave them out
    damages: ClassVar[bool] = False  # it damages checkpoints that were complete before, so the last one may be lost
    aims_at: ClassVar[str] = "node"  # or "rank": what a target resolves to
    truth: ClassVar[Truth | None] = None  # the right answers to "who was it?"; none: answers about it are not graded
    runbook: ClassVar[str] = ""  # `docs/runbooks/<this>.md` says what to do about the failure that it rehearses
    packages: ClassVar[Mapping[str, str]] = {}  # Python packages it needs here, and the extra each comes with

    @classmethod
    def lacks(cls) -> list[str]:
        """Returns what this machine lacks for the fault, with one sentence for each missing thing. By default, the
        missing things are `packages`. A plan is refused if the machine lacks anything for one of its faults. The
        harness calls this class method before the fault has parameters."""
        missing = [name for name in cls.packages if importlib.util.find_spec(name) is None]
        return [f"{name} is not installed: {how_to_install(cls.packages[name])}" for name in missing]

    def needed(self) -> frozenset[Verb]:
        """Returns the verbs (acts on nodes) that the fault needs with these parameters: by default `needs`."""
        return self.needs

    def lasts(self) -> Duration | None:
        """Returns how long the fault acts until it is healed: `duration`, or `None` if the fault has no `duration`."""
        found = getattr(self, "duration", None)
        return found if isinstance(found, Duration) else None

    def freezes(self) -> bool:
        """Returns True if the targeted ranks log nothing and do no step while the fault lasts."""
        return False

    def over_rdma(self) -> bool | None:
        """Returns True if the fault acts only on RDMA traffic, False if it acts only on IP traffic, and `None` if it
        acts on neither. A plan is refused if its job has only the kind of traffic on which the fault does not act."""
        return False if self.network else None

    def graceful(self) -> bool:
        """Returns True if the fault asks processes to end, as by SIGTERM, so that they may exit by themselves."""
        return False

    def replaced(self) -> bool | None:
        """Returns True if the nodes that the fault takes come back, or `None` if the fault takes no nodes."""
        return None

    def change(self) -> Change | None:
        """Returns how the fault changes the job's command, or `None` if the command stays the same."""
        return None

    def updates_only(self) -> bool:
        """Returns True if the changed command only affects updates of weights, such as by another learning rate."""
        return False

    def shows(self) -> str:
        """Returns the name of the logged value, such as `loss`, that must differ after the fault's change of the
        command. Returns an empty text if no value must differ."""
        return ""

    def spoilt_steps(self) -> int | None:
        """Returns the number of steps whose batches the fault spoils, or `None` if it spoils no batch."""
        return None

    def true_answers(self) -> Truth | None:
        """Returns which diagnoses of the fault are right. By default, this is the fault's attribute `truth`."""
        return self.truth

    def consequences(self) -> Consequences:
        """Returns all that the fault may do to the job. The log event `fault.injected` holds these consequences."""
        said = {each.name: getattr(self, each.name, None) for each in dataclasses.fields(Consequences)}
        told: dict[str, Any] = {name: value() if callable(value) else value for name, value in said.items()}
        told["notice_ns"] = None if self.notice_s is None else round(self.notice_s * 1e9)
        truth = self.true_answers()
        told |= {"changes": self.change() is not None, "must_leave": truth is not None and truth.must_leave}
        return Consequences(**told)

    def holds(self, targets: Targets) -> list[Hold]:
        """Returns the log events at which this fault stops or disturbs trainers that use the harness's emitter."""
        return []

    def environment(self, run_dir: pathlib.Path) -> Mapping[str, str]:
        """Returns environment variables without which the fault could not act on processes later. The harness calls
        this method once, before the first start, and gives the variables to every node, including replacements. A
        `PYTHONPATH` among the variables replaces the workload's `PYTHONPATH`. The harness puts its own path before your
        `PYTHONPATH`, and the harness's `sitecustomize` also runs your `sitecustomize`."""
        return {}

    def mounts(self) -> Sequence[str]:
        """Returns the run's folders whose file operations the fault may disturb. The harness prepares these folders."""
        return ()

    def beside(self, folder: pathlib.Path) -> Self:
        """Returns a copy of the fault that holds the content of its files, which are in `folder`. Raises `ValueError`
        for an unusable file."""
        return self

    @property
    def notice_s(self) -> float | None:
        """Returns how many seconds of notice the fault gives before it takes a node, or `None` without a notice."""
        return None

    def fresh(self) -> Self:
        """Returns a new fault with the same parameters, and without any state of an earlier injection."""
        return type(self).model_validate(self.model_dump(mode="json"))

    @abc.abstractmethod
    def describe(self, targets: Targets) -> str:
        """Returns one sentence for `chaos plan` on what the fault does to these targets."""

    @abc.abstractmethod
    def inject(self, targets: Targets, context: Context) -> None:
        """Acts on the targets, measures the effect, and waits while the fault lasts. Runs in a thread of its own."""

    def heal(self, targets: Targets, context: Context) -> None:
        """Undoes all effects of the fault. The harness calls `heal` when the fault or the run ends, also if `inject`
        failed."""

    def see_end(self, targets: Targets, context: Context) -> None:
        """Checks after `heal` that the effect is over, and reports the result by `context.ended`. The check must take
        at most `END_SEEN_WITHIN_S` seconds. The harness calls `see_end` only if the fault reported an effect and was
        not cancelled."""


class Replacement(Parameters):
    """The time from the loss of a node until its replacement starts."""

    after: Duration


class TakesNodes(Fault):
    """The base of faults that kill whole nodes and can bring replacements for them."""

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
        """Kills nodes, checks that no process is left on them, and brings their replacements. The caller must call
        `context.injected()` first."""
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
    """Returns the targeted nodes as a text, such as `node 0, 2`."""
    return "node " + ", ".join(str(target.node_index) for target in targets)


def ranks_of(targets: Targets) -> list[int]:
    """Returns the targeted ranks of a fault with `aims_at = "rank"`. The planner has chosen these ranks."""
    return [target.rank for target in targets if target.rank is not None]


def name_ranks(targets: Targets) -> str:
    """Returns the targeted ranks as a text, such as `rank 0, 2`."""
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
    """Returns what this machine lacks for a fault. If the fault's own `lacks` fails, the result names the error."""
    try:
        found = fault.lacks()
        if isinstance(found, list) and all(isinstance(each, str) for each in found):
            return found
        return [f"{fault.__module__}: lacks() returned {found!r}; it must return a list of texts"]
    except Exception as error:  # it may be another's code
        return [f"{fault.__module__}: lacks() raised {type(error).__name__}: {error}"]


def build_fault(name: str, parameters: object) -> Fault:
    """Returns the fault `name` with parameters as in YAML. Raises `UsageError` for an unknown name."""
    return load_fault(name).model_validate(parameters)


class NamedFault(Parameters):
    """A fault of a plan. `kind` is the fault's name (key `fault` in YAML and JSON), `action` the fault itself."""

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
