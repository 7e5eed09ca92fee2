"""Declares which consequences a fault may have for a training job, such as killed processes.

The event `fault.injected` records the consequences, so that the judge needs no code of the fault.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Self

from harness.units import Duration


class May(StrEnum):
    """A possible consequence of a fault for a training job, such as a killed process. The judge excuses a failure only
    if a fault declares the failure as its consequence."""

    KILL = "kill"  # processes of the target are meant to die: their exits are explained
    STOP = "stop"  # a healthy job may have to stop and start again over it: a time-out, a watchdog
    SPOIL = "spoil"  # checkpoints made or read meanwhile, and older ones if it damages: a restart may take an older one
    DRIFT = "drift"  # a rank has other weights than its peers afterwards, which the trainer must notice
    SKEW = "skew"  # a rank trains on other samples than its part of a batch, which the trainer must notice
    DIVERGE = "diverge"  # the loss may leave its course, which the trainer must notice, and go back before it
    MOVE = "move"  # the loss: it changes samples, gradients or weights, so the job computes other values from then on
    LEAK = "leak"  # a rank's memory grows until it is killed, which the trainer should foresee


def _may(*any_of: May) -> property:
    return property(lambda self: not self.may.isdisjoint(any_of))


@dataclass(frozen=True, kw_only=True)
class Consequences:
    """The consequences that a fault declares. The event `fault.injected` has fields of the same names."""

    may: frozenset[May] = frozenset()  # what may happen to a healthy job
    lasts: Duration | None = None  # it must act for all of it; `None`: as long as it takes
    notice_ns: int | None = None  # it takes the node so long after a notice; `None`: it gives none
    freezes: bool = False  # its targets say nothing and do no step as long as it lasts
    graceful: bool = False  # its victims are asked to end, and may exit by themselves
    network: bool = False  # it acts on the network, so the training's own traffic must meet it
    clocks: bool = False  # it sets clocks wrong
    preempts: bool = False  # the owner of a node takes it back
    damages: bool = False  # it damages checkpoints that were complete before, so the last one may be lost
    benign: bool = False  # nothing is wrong: it explains no alarm, and no restart
    replaced: bool | None = None  # whether what it takes comes back; `None`: it takes no node
    sticks: bool = False  # it strikes each new life of its nodes as well, so the job may leave them out
    must_leave: bool = False  # no right decision keeps its node: somebody must react
    spoilt_steps: int | None = None  # it spoils the batches of so many steps
    changes: bool = False  # it changes the job's command on purpose, so the job computes other values afterwards
    updates_only: bool = False  # its change of the command concerns updates alone, such as the learning rate
    shows: str = ""  # a figure of a step that must be another one after the change; empty: none need

    kills, stops, spoils = _may(May.KILL), _may(May.STOP), _may(May.SPOIL)  # bool: `may` has it
    drifts, skews = _may(May.DRIFT), _may(May.SKEW)  # bool: `may` has it
    diverges, leaks = _may(May.DIVERGE), _may(May.LEAK)  # bool: `may` has it
    moves = _may(May.MOVE, May.DRIFT, May.SKEW, May.DIVERGE)  # bool: it changes by itself what the job computes

    def to_event(self) -> dict[str, Any]:
        """Returns the consequences as fields of the event `fault.injected`: `may`, and each field that differs from its
        default."""
        told = {name: value for name, value in vars(self).items() if value != getattr(Consequences, name)}
        return told | {"may": sorted(self.may)} | ({"lasts": str(self.lasts)} if self.lasts else {})

    @classmethod
    def from_event(cls, event: Mapping[str, Any]) -> Self:
        """Reads a fault's consequences from the event `fault.injected`. Values of `may` that this version does not know
        are ignored."""
        told = {each.name: event[each.name] for each in fields(Consequences) if each.name in event}
        may = frozenset(each for each in May if each in told["may"])
        return cls(**told | {"may": may, "lasts": duration(told.get("lasts"))})


def duration(text: object) -> Duration | None:
    """Parses a duration such as `10s`, and returns `None` for any text that is not a duration, such as `forever`."""
    try:
        return Duration(text)  # type: ignore[arg-type]  # whatever it is: it is checked here
    except ValueError:
        return None
