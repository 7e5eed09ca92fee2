"""NVIDIA's management library (NVML) reports a sick GPU, for example heat, ECC errors, an XID error or a lost GPU.

The fault tests the job's health check, its alarms and its preflight. The GPU itself computes as before.
"""

import contextlib
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from harness.backends.contract import Node, Verb
from harness.errors import BackendError, FaultError, NodeGone, UsageError
from harness.faults.contract import END_SEEN_WITHIN_S, Context, Fault, RunPath, Target, Targets, name_ranks
from harness.log.consequences import May
from harness.log.truth import Decision, Kind, Place, Truth
from harness.node import gpu_health
from harness.node.emitter import nvml
from harness.node.types import GpuReading
from harness.units import Duration

SEEN_WITHIN_S = 20.0
SILENT_S = 1.0  # without an answer: NVML hangs
COUNTERS = ("ecc_corrected", "ecc_uncorrected", "remapped", "nvlink_errors")  # they grow by what the fault says

_REPLACE = (Decision.EVICT_NODE, Decision.RESTART_ELSEWHERE)
_WATCH = (Decision.IGNORE, *_REPLACE)


@dataclass(frozen=True)
class _Sickness:
    says: str
    tells: Mapping[str, int]  # by the names of `gpu_health.FIELDS`; counters grow by `errors` where this is 0
    decisions: tuple[Decision, ...]
    xid: int | None = None
    benign: bool = False  # nobody need say anything


KINDS = {
    "ecc": _Sickness("uncorrectable ECC errors", {"ecc_uncorrected": 0, "remapped": 1}, _REPLACE, 48),
    "ecc_corrected": _Sickness("ECC errors that were corrected", {"ecc_corrected": 0}, _WATCH, benign=True),
    "lost": _Sickness("fallen off the bus", {"lost": 1}, _REPLACE, 79),
    "xid": _Sickness("an error of the driver (XID)", {}, _WATCH),
    "nvlink": _Sickness("an NVLink that is down, with errors", {"nvlinks_down": 1, "nvlink_errors": 0}, _WATCH, 74),
    "thermal": _Sickness("slowed by heat", {"temperature": 97, "throttle": 0x68, "sm_clock": 345}, _WATCH),
    "power": _Sickness("slowed by its power supply", {"throttle": 0x88, "sm_clock": 345}, _WATCH),
    "idle": _Sickness("5 % busy", {"busy": 5}, _WATCH, benign=True),
    "hang": _Sickness("NVML and `nvidia-smi` hang", {"hang": 1}, _WATCH),
}


class GpuHealth(Fault):
    """NVML tells every process of the rank's node that the rank's GPU is sick. All other answers of NVML come from the
    real library. On a node without a GPU, NVML shows one simulated GPU for each rank, except in the fault-free run.

    The harness's machine needs a C compiler, and the job's processes must keep the first entry of `LD_LIBRARY_PATH`. A
    job that notices the sick GPU emits `diagnosis` with `kind: gpu` and the rank. To require the right diagnosis, write
    `expect: {diagnosis: {right_within: 30s}}`. If no diagnosis is required and the job ignores its sick GPU, the run is
    inconclusive for the kinds `ecc` and `lost`, and passes for all other kinds. `chaos diagnose --read lines` reads the
    diagnosis of a job that only prints it. A process that restarts during the fault still sees the increased error
    counters.
    """

    kind: Literal["ecc", "ecc_corrected", "lost", "xid", "nvlink", "thermal", "power", "idle", "hang"] = Field(
        description="; ".join(f"{kind}: {sickness.says}" for kind, sickness in KINDS.items())
    )
    xid: int | None = Field(
        None,
        ge=1,
        le=999,
        description="The number of the XID event. None: 48, 79, 74 with ecc, lost, nvlink; else none.",
    )
    errors: int = Field(4, ge=1, le=10**6, description="How many errors the counters of ecc and nvlink gain.")
    duration: Duration = Field(Duration("30s"), description="After that the GPU is well.")

    runbook = "F7"
    needs = frozenset({Verb.GPU})
    may = frozenset({May.STOP})
    aims_at = "rank"
    truth = Truth((Kind.GPU,), Place.RANK, _REPLACE)
    _sick: list[tuple[Node, int, int]] = PrivateAttr(default_factory=list)  # node, GPU, a process of the node

    @model_validator(mode="after")
    def _has_an_xid(self) -> Self:
        if self.kind == "xid" and self.xid is None:
            raise ValueError("kind xid needs the number: `xid: 119`")
        return self

    def true_answers(self) -> Truth:
        sickness = KINDS[self.kind]
        kinds = (Kind.NONE, Kind.GPU) if sickness.benign else (Kind.GPU,)
        return Truth(kinds, Place.RANK, sickness.decisions)

    def environment(self, run_dir: pathlib.Path) -> Mapping[str, str]:
        return gpu_health.prepare(run_dir)

    def describe(self, targets: Targets) -> str:
        xid = self._tells().get("xid")
        told = f"{KINDS[self.kind].says}{f', XID {xid}' if xid and self.kind != 'xid' else ''}"
        told += f" {xid}" if self.kind == "xid" else ""
        return f"the GPU of {name_ranks(targets)}, for {self.duration}: {told}"

    def inject(self, targets: Targets, context: Context) -> None:
        before = {target: self._begin(target, context) for target in targets}
        for node, gpu, _ in self._sick:
            context.undo("faults.gpu_health", node=node.name, gpu=gpu)
            node.set_gpu_health(gpu, self._tells())
        context.injected()
        for target, (node, gpu, reading) in before.items():
            self._measure(target, node, gpu, reading, context)
            node.watch_gpus(None)
        context.wait(self.duration.s)

    def heal(self, targets: Targets, context: Context) -> None:
        for node, gpu, _ in self._sick:
            with contextlib.suppress(NodeGone):
                node.set_gpu_health(gpu, {})

    def see_end(self, targets: Targets, context: Context) -> None:
        for node, gpu, pid in self._sick:
            with contextlib.suppress(BackendError, UsageError, NodeGone):
                node.watch_gpus(pid)
                if context.wait(END_SEEN_WITHIN_S, until=lambda node=node: bool(node.gpus().devices)):  # type: ignore[misc]
                    found = _device(node.gpus(), gpu)
                    left = [name for name in self._tells() if name != "xid" and self._as_asked(name, found, {})]
                    context.ended(len(left), 0, "answers", ok=not left, detail=f"GPU {gpu} of {node.name}")
                node.watch_gpus(None)

    def _tells(self) -> dict[str, int]:
        sickness = KINDS[self.kind]
        told = {name: value or self.errors for name, value in sickness.tells.items()}
        xid = self.xid if self.xid is not None else sickness.xid
        return told if xid is None else told | {"xid": xid}

    def _begin(self, target: Target, context: Context) -> tuple[Node, int, GpuReading]:
        assert target.rank is not None, "it aims at ranks"
        node, pid = context.pid_of(target.rank)
        visible = node.watch_gpus(pid)
        context.wait(SEEN_WITHIN_S, until=lambda: bool(node.gpus().devices or node.gpus().error))
        reading = node.gpus()
        if not reading.devices:
            why = reading.error or f"no answer within {SEEN_WITHIN_S:g} s"
            raise FaultError(f"NVML tells rank {target.rank} on {node.name} of no GPU: {why}")
        if not reading.ours:
            raise FaultError(f"rank {target.rank} on {node.name} loads another libnvidia-ml.so.1 than the harness's")
        uuids = [each.get("uuid") for each in reading.devices]
        gpu = nvml.number_of(sorted(context.ranks_on(node)).index(target.rank), visible, uuids)
        if gpu is None:
            raise FaultError(f"rank {target.rank} has no GPU of its own: {node.name} has {len(reading.devices)}")
        self._sick.append((node, gpu, pid))
        return node, gpu, reading

    def _measure(self, target: Target, node: Node, gpu: int, before: GpuReading, context: Context) -> None:
        wanted, was = self._tells(), _device(before, gpu)

        def changed() -> list[str]:
            reading = node.gpus()
            if "hang" in wanted:
                return ["hang"] if reading.age_s >= SILENT_S else []
            found = [name for name in wanted if name != "xid" and self._as_asked(name, _device(reading, gpu), was)]
            return found + (["xid"] if [gpu, wanted.get("xid")] in reading.xids else [])

        must = ["hang"] if "hang" in wanted else list(wanted)
        context.wait(SEEN_WITHIN_S, until=lambda: len(changed()) == len(must))
        seen = changed()
        missing = f"; not {', '.join(sorted(set(must) - set(seen)))}" if len(seen) < len(must) else ""
        detail = f"rank {target.rank}, GPU {gpu} of {node.name}: {', '.join(seen) or 'nothing'}{missing}"
        context.effect(len(seen), len(must), "answers of NVML changed", ok=len(seen) == len(must), detail=detail)

    def _as_asked(self, name: str, found: Mapping[str, object], was: Mapping[str, object]) -> bool:
        if name in ("lost", "hang"):
            return found.get("error") == nvml.GPU_IS_LOST if name == "lost" else False
        value, wanted = found.get(name), self._tells()[name]
        if name in COUNTERS and was:
            return isinstance(value, int) and value - int(str(was.get(name) or 0)) >= wanted
        return value == wanted


def _device(reading: GpuReading, gpu: int) -> Mapping[str, object]:
    return next((each for each in reading.devices if each.get("gpu") == gpu), {})


def UNDO(run_dir: pathlib.Path, node: RunPath, gpu: int) -> None:
    """Removes a GPU's simulated sickness from a node's file, in which a killed harness has left it."""
    if (run_dir / gpu_health.FOLDER / node).exists():
        gpu_health.set_health(run_dir, node, gpu, {})


FAULT = GpuHealth
