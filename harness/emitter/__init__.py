"""The event log: what happened, as each process saw it. The only thing between running and scoring.

This file is what anybody's trainer may import: standard library only, no thread, no buffer.

    from harness.emitter import Emitter
    emit = Emitter.open("trainer", rank=rank, local_rank=local_rank, world_size=world_size)
    emit("step", step=step, begin_ns=begin, loss=loss)

One writer, one file, one process: `$CHAOS_EVENTS/<role>-<node>.<incarnation>-<rank>-<start>.jsonl`. Each event
is one line, written by one `os.write` to an `O_APPEND` descriptor, so that SIGKILL tears at most the last line.
Outside a harness (`CHAOS_EVENTS` unset) every call returns at once.

**First line** (header): `schema`, `writer`, `role`, `host`, `clock` (the kernel's boot id: writers with
the same one share the monotonic clock), `pid`, `wall_ns`, `mono_ns`, `node`, `incarnation`, and for a
trainer `rank`, `local_rank`, `world_size`, and, if it likes, `tells`: the kinds of evidence (`TELLS`) that this writer
will write. What it declares and does not write is missing evidence; what it does not declare is not judged.
**Every other line**: `event`, `wall_ns`, `mono_ns` and the fields below. A loss that is not a finite
number is written as the string `"nan"`, `"inf"` or `"-inf"`. `dropped` on an event counts the events
lost before it because the disk took no more.

`step` counts completed optimizer steps: the first one is 1; `restored` with step 20 is followed by
step 21; a checkpoint of step 20 holds the state after 20 steps.

Role `trainer`, one writer per worker process:

* `started`: the worker's code runs
* `rendezvous`: the process group is ready: `world_size`
* `restored`: `step`, `source` (path, or `scratch`), `fallback`: list of `{source, reason}` passed over
* `step`: `step`, `begin_ns` (monotonic; the event's `mono_ns` is the end), `loss`, `grad_norm`, `lr`, `digest` (of the
  global batch's sample indices), `first`, `count` (its index range in the shuffled order), `data_ns`, `checkpoint_ns`
  (time in this step blocked on data, on checkpointing), `sync_ns` (gradient all-reduce, if measured)
* `phase`: `name`, `edge`: `begin` or `end` — `startup`, `rendezvous`, `restore`, `checkpoint.snapshot`,
  `checkpoint.write`, `checkpoint.publish`, `drain`
* `checkpoint.started`, `checkpoint.committed`, `checkpoint.failed`: `step`, `kind` (`periodic`, `emergency`, `final`);
  committed: `path`, `bytes`, `duration_ns`; failed: `error`
* `notice`: `source` (`signal`, `ec2`, `gcp`, `azure`, `peer`, `straggler`)
* `anomaly`: `kind` (`hang`, `nonfinite`, `gradient`, `straggler`, `topology`, …), `detail`
* `failpoint`: `name`: an armed failpoint was reached
* `exiting`: `code`, `reason` (`completed`, `drained`, `peer lost`, …; `error`: over something of its own, which no
  other rank's end and no fault elsewhere accounts for), `step`

Role `agent`, the launcher on a node: `agent.started`; `agent.rendezvous` with `edge` `begin`/`end`;
`worker.exit` with `local_rank`, `rank`, `pid`, `code` (negative: killed by that signal); `agent.exiting` with `code`.

Role `harness`: `plan` (first event: the whole plan) · `environment` · `node.allocated` and
`node.released` (`node`, `incarnation`, `gpus`; released: `reason`) · `process.exit` (`node`,
`incarnation`, `code`) · `fault.armed`, `fault.injecting`, `fault.injected`, `fault.effect` (`measured`,
`expected`, `unit`, `ok`), `fault.recovered`, `fault.healed`, `fault.failed`, `fault.postponed` (`reason`: it is due
and must wait for others), `fault.ended` (`measured`, `expected`, `unit`, `ok`: whether its effect is over once it was
healed) (each with `fault`: the id; injected: `kind`, `targets`: list of
`{node, incarnation, rank}`, `kills`: whether processes of the target are meant to die, `stops`: whether a healthy
job may have to stop over it, `spoils`: whether it may damage checkpoints) · `fault.taking` (`fault`, `node`: it is
killed now) · `drill.started` (`step`: the newest committed checkpoint), `drill.finished` (`outcome`: `restored`,
`scratch`, `failed`, `timeout`, `error`; `step`, `restored_step`, `reason`; what the drill's workers write lies in
`drill/events/`) · `clock` (`host`, `offset_ns`, `uncertainty_ns`) · `abort` (`reason`) ·
`run.finished` (`outcome`: `completed`, `failed`, `aborted`, `interrupted`; `reason`).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import pathlib
import socket
import time
from collections.abc import Iterator
from typing import Any, Literal, get_args

SCHEMA_VERSION = 1
Tell = Literal["steps", "loss", "positions", "digests", "checkpoints", "restores", "phases", "exits", "clocks"]
TELLS: tuple[Tell, ...] = get_args(Tell)
EXIT_LEFT = 75  # of a node's command: drained, and out of the job for good (sysexits' EX_TEMPFAIL)
EVENTS_DIR_ENV = "CHAOS_EVENTS"
HOLDS_ENV = "CHAOS_HOLDS"
NODE_ENV = "CHAOS_NODE"
INCARNATION_ENV = "CHAOS_INCARNATION"
STRIKE_TAKEN = ".taken"
HOLD_S_MAX = 10.0  # a harness that died while holding a trainer must not hang it


def clock_id() -> str:
    """Identity of this machine's monotonic clock: the kernel's boot id."""
    try:
        return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


class Emitter:
    """Appends events to this process's own file. Never raises: telemetry must not kill a training job."""

    def __init__(self, path: pathlib.Path | None, identity: dict[str, Any] | None = None):
        self.path = path
        self._fd = -1
        self._written = 0
        self._dropped = 0
        self._holds: list[dict[str, Any]] = []
        self._rank = (identity or {}).get("rank")
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError:
            return  # no events from here: the scorer sees the missing writer and cannot pass
        header = {"schema": SCHEMA_VERSION, "writer": path.stem, "host": socket.gethostname()}
        header |= {"clock": clock_id(), "pid": os.getpid()} | (identity or {})
        self._append(header)
        self._load_holds()

    @classmethod
    def open(cls, role: str, **identity: Any) -> Emitter:
        """The emitter of this process, as told by the environment (a silent one outside a harness)."""
        directory = os.environ.get(EVENTS_DIR_ENV)
        if not directory:
            return cls(None)
        node = os.environ.get(NODE_ENV, socket.gethostname())
        incarnation = int(os.environ.get(INCARNATION_ENV, "1"))
        rank = f"-{identity['rank']}" if "rank" in identity else ""
        name = f"{role}-{node}.{incarnation}{rank}-{time.monotonic_ns():x}.jsonl"
        return cls(pathlib.Path(directory) / name, {"role": role, "node": node, "incarnation": incarnation} | identity)

    @property
    def enabled(self) -> bool:
        return self._fd >= 0

    def __call__(self, event: str, **fields: Any) -> int:
        """Writes one event; returns its `mono_ns`, so that what follows can begin exactly where it ended."""
        if self._fd < 0:
            return time.monotonic_ns()
        if self._dropped:
            fields["dropped"] = self._dropped
        mono_ns = self._append({"event": event} | fields)
        if self._holds:
            self._hold({"event": event} | fields)
        return mono_ns

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Marks the begin and, unless it is left by an exception, the end of a named phase."""
        self("phase", name=name, edge="begin")
        yield
        self("phase", name=name, edge="end")

    def failpoint(self, name: str, **fields: Any) -> None:
        """A named place where a harness may want to act. Costs one list test when none is armed."""
        if self._holds and any(hold["match"].get("name") == name for hold in self._holds):
            self("failpoint", name=name, **fields)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _append(self, record: dict[str, Any]) -> int:
        record["wall_ns"] = time.time_ns()
        record["mono_ns"] = mono_ns = time.monotonic_ns()
        line = (json.dumps(_finite(record), separators=(",", ":")) + "\n").encode()
        try:
            written = os.write(self._fd, line)
        except OSError:
            written = 0
        if written == len(line):
            self._written += written
            self._dropped = 0
            return mono_ns
        self._dropped += 1
        with contextlib.suppress(OSError):  # a full disk: take the half line back so that the file stays readable
            os.ftruncate(self._fd, self._written)
        return mono_ns

    def _load_holds(self) -> None:
        path = os.environ.get(HOLDS_ENV)
        if path:
            with contextlib.suppress(OSError, ValueError):
                self._holds = json.loads(pathlib.Path(path).read_text())

    def _hold(self, record: dict[str, Any]) -> None:
        """Waits where the plan wants a fault to act, until the harness has acted; or is struck."""
        for hold in self._holds:
            matches = all(record.get(key) == value for key, value in hold["match"].items())
            mine = hold.get("rank") in (None, self._rank)
            if matches and mine and os.path.exists(hold["armed"]):
                if "tokens" in hold:
                    self._be_struck(hold)
                    continue
                deadline = time.monotonic() + hold.get("limit_s", HOLD_S_MAX)
                while not os.path.exists(hold["released"]) and time.monotonic() < deadline:
                    time.sleep(0.001)

    def _be_struck(self, hold: dict[str, Any]) -> None:
        """Ends or misleads the process if one of the planned strikes is left: whoever renames its file takes it.

        The harness removes the renamed file once it has logged the strike, so that no death comes before its reason.
        """
        for token in hold["tokens"]:
            with contextlib.suppress(OSError):  # taken by another process before
                os.rename(token, token + STRIKE_TAKEN)
                deadline = time.monotonic() + HOLD_S_MAX
                while os.path.exists(token + STRIKE_TAKEN) and time.monotonic() < deadline:
                    time.sleep(0.001)
                if not hold["mislead"]:
                    os._exit(hold["code"])
                self._append({"event": "failpoint", "name": "misled"} | _mislead(hold["mislead"]))
                return


def _mislead(variable: str) -> dict[str, str]:
    """Another place in the job than the one this process was started for: a neighbour's, or in a larger world."""
    rank, world_size = (int(os.environ.get(name, "0")) for name in ("RANK", "WORLD_SIZE"))
    wrong = (rank + 1) % max(1, world_size) if variable == "RANK" else world_size + 1
    os.environ[variable] = str(wrong)
    return {"variable": variable, "value": str(wrong)}


def _finite(value: Any) -> Any:
    """JSON has no NaN: a float that is not finite becomes its name."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
