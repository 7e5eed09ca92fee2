"""Looks at a running job that somebody else started, and acts on it from outside.

An engine provides this in a module that is an entry point of the group `chaos_harness.attach`. `attach(text)` finds the
job, and refuses it if the owner did not allow strikes; `HOW` says how `text` is written; `UNDO` undoes one act. No
function here can start or end a job.
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
    """A node of the job at one moment. `state`: running, paused, stopped, disconnected, ended, or the engine's word.

    `life` changes when the node's processes begin anew; `code`: how the node ended; `cpu_s`: the CPU time since its
    begin; `told`: other facts of the engine, for the report.
    """

    state: str
    life: str = ""
    code: int | None = None
    cpu_s: float | None = None
    told: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Undo:
    """A record of the undo journal: the name of an undo function and its arguments."""

    action: str
    arguments: dict[str, Any]


def all_stopped(states: Collection[str]) -> bool:
    """Returns True if processes with these states in /proc are stopped, or wait in the kernel beside a stopped one.

    A process waits there (D) for a child that was stopped between vfork and exec. It stops before it runs again.
    """
    return not {"T", "t"}.isdisjoint(states) and {"T", "t", "D"}.issuperset(states)


class AttachedJob(abc.ABC):
    """A job that was found and may be disturbed. Methods raise `BackendError` if the engine fails."""

    name: str
    nodes: Sequence[str]
    verbs: Sequence[str]
    lacks: Mapping[str, str] = MappingProxyType({})  # why a verb is not there, where that needs telling
    allows_kill = False

    @abc.abstractmethod
    def look(self) -> Mapping[str, Seen]:
        """Returns the present state of every node of the job."""

    @abc.abstractmethod
    def log_tails(self) -> Mapping[str, Sequence[str]]:
        """Returns the newest lines of each node's log. Lines of a shared file are under the empty name."""

    @abc.abstractmethod
    def undo_of(self, verb: str, node: str) -> Undo:
        """Returns the undo record of an act, to be stored before it. Raises `UsageError` for an impossible act."""

    @abc.abstractmethod
    def act(self, verb: str, node: str) -> None:
        """Carries out an act, such as `stop`, on a node of the job. `look` shows whether this has an effect."""

    def acted(self, verb: str, node: str, seen: Seen) -> bool:
        """Returns True if the node's state shows that the last act on it took effect."""
        return seen.state == STATE_AFTER[verb]

    def healed(self, verb: str, seen: Seen) -> bool:
        """Returns True if no effect of this act on a node is left that we could undo."""
        return seen.state in (RUNNING, ENDED)

    def close(self) -> None:
        """Closes the connection to the engine that runs the job. The job goes on."""
        return None


def attach(text: str) -> AttachedJob:
    """Attaches to a running job that somebody else started: `docker:KEY=VALUE`, `slurm:JOBID` or `kubernetes:SELECTOR`.

    Raises `UsageError` if the job does not exist or does not allow it.
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
    """Returns True if a job's owner allows kills, too. Raises `UsageError` if the owner allows nothing at all."""
    if told not in ("true", "kill"):
        said = f"{OPT_IN}={told}" if told else f"no {OPT_IN}"
        raise UsageError(f"{what} has {said}: its owner must allow this first, {how}; nothing was touched")
    return told == "kill"
