"""Defines how the harness observes and disturbs a running job that somebody else started.

An engine, such as Docker, implements this interface in a module that is an entry point of the group
`chaos_harness.attach`. The module's function `attach(text)` finds the job, and refuses a job whose owner has not
allowed faults. The module's constant `HOW` describes the format of `text`. The module's function `UNDO` undoes one act,
such as `stop`. Attaching never starts or ends a job.
"""

import abc
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from harness.errors import UsageError, choice
from harness.plugins import entry_points, not_installed

OPT_IN = "chaos.allow"  # set by the job's owner: `true`, or `kill` for deeds that end processes, too
GROUP = "chaos_harness.attach"
ALLOWED = "docker:KEY=VALUE, slurm:JOBID or kubernetes:SELECTOR"
RUNNING, ENDED = "running", "ended"
STATE_AFTER = {"pause": "paused", "stop": "stopped", "disconnect": "disconnected", "kill": ENDED}  # by verb
NEEDS_KILL = {"kill", "evict", "delete"}


@dataclass(frozen=True)
class Seen:
    """The observed state of one node of a job at one moment. `state` is running, paused, stopped, disconnected, ended,
    or a state that only the job's engine has.

    `life` changes when the node's processes are started again. `code` is the node's exit code, and `cpu_s` is the CPU
    time since the node's start. `told` holds other facts from the engine for the report.
    """

    state: str
    life: str = ""
    code: int | None = None
    cpu_s: float | None = None
    told: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Undo:
    action: str
    arguments: dict[str, Any]


def all_stopped(states: Collection[str]) -> bool:
    """Returns True if at least one process is stopped (state T or t in /proc), and every other process is stopped or
    waits in the kernel (state D).

    State D is allowed, because a parent process is in state D while its child is stopped between vfork and exec.
    """
    return not {"T", "t"}.isdisjoint(states) and {"T", "t", "D"}.issuperset(states)


class AttachedJob(abc.ABC):
    """A running job that somebody else started, and that the harness may disturb with its owner's permission. Methods
    raise `BackendError` if the engine, such as Docker, fails."""

    name: str
    nodes: Sequence[str]
    verbs: Sequence[str]
    lacks: Mapping[str, str] = MappingProxyType({})  # why a verb is not there, where that needs telling
    allows_kill = False

    @abc.abstractmethod
    def look(self) -> Mapping[str, Seen]: ...

    @abc.abstractmethod
    def log_tails(self) -> Mapping[str, Sequence[str]]:
        """Returns the newest lines of each node's log. If all nodes share one log file, returns its lines under an
        empty node name."""

    @abc.abstractmethod
    def undo_of(self, verb: str, node: str) -> Undo:
        """Returns the undo record of an act; the caller must store the record before the act. Raises `UsageError` if
        the act is impossible on this node."""

    @abc.abstractmethod
    def act(self, verb: str, node: str) -> None:
        """Carries out an act, such as `stop`, on a node of the job. A later call of `look` shows whether the act took
        effect."""

    def acted(self, verb: str, node: str, seen: Seen) -> bool:
        return seen.state == STATE_AFTER[verb]

    def healed(self, verb: str, seen: Seen) -> bool:
        """Returns True if the node runs or has ended, so that the act `verb` need not be undone."""
        return seen.state in (RUNNING, ENDED)

    def close(self) -> None:
        """Closes the connection to the engine that runs the job. The job itself keeps running."""
        return None


def attach(text: str) -> AttachedJob:
    """Attaches to a running job that somebody else started: `docker:KEY=VALUE`, `slurm:JOBID` or `kubernetes:SELECTOR`.

    Raises `UsageError` if the job does not exist, or if the job's owner has not allowed faults.
    """
    engine, _, selection = text.partition(":")
    engines = entry_points(GROUP)
    if engine not in engines:
        known = choice(engine, engines) if engines else not_installed(GROUP)
        raise UsageError(f"--attach {text!r}: write {ALLOWED}; {known}")
    offered = engines[engine].load()
    if not selection:
        raise UsageError(f"--attach {text!r} does not say which job: write {offered.HOW}")
    found: AttachedJob = offered.attach(selection)
    return found


def refuse_unasked(what: str, told: str | None, how: str) -> bool:
    """Returns True if the owner of a job also allows acts that end processes. Raises `UsageError` if the owner of the
    job allows no faults."""
    if told not in ("true", "kill"):
        said = f"{OPT_IN}={told}" if told else f"no {OPT_IN}"
        raise UsageError(f"{what} has {said}: its owner must allow this first, {how}; nothing was touched")
    return told == "kill"
