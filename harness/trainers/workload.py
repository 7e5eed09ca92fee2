"""What runs on the nodes: a plan's workload as commands, and the digest of everything that decides its outcome."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import pathlib
import platform
import sys
import sysconfig
from collections.abc import Mapping
from typing import Any

from harness import units
from harness.backends.agent.places import KEY_ENV, KEY_NAME
from harness.backends.contract import Workload
from harness.errors import UsageError
from harness.plan.making import Plan

STORE_PORT = 29400
S3_PORT = 29500
S3_BUCKET = "checkpoints"
_ROOT = pathlib.Path(__file__).resolve().parents[2]


def render_workload(plan: Plan) -> Workload:
    """The commands of a plan, pure. Placeholders are filled by the backend."""
    spec = plan.workload
    shape: dict[str, Any] = {"nodes": spec["nodes"], "ranks_per_node": spec["ranks_per_node"]}
    notices = (fault.parameters["notice"] for fault in plan.faults if "notice" in fault.parameters)
    shape["notice_s"] = max((units.parse_duration_ns(notice) / 1e9 for notice in notices), default=0.0)
    trainer = spec["trainer"]
    if trainer != "reference":
        control = tuple(trainer["control"]) if trainer["control"] else None
        return Workload(tuple(trainer["command"]), control=control, env=trainer["env"], **shape)
    launch = (
        *("{python}", "-m", "reference_trainer.launch"),
        *("--nnodes", f"{spec['min_nodes']}:{spec['nodes']}"),
        *("--nproc-per-node", str(spec["ranks_per_node"])),
        *("--rdzv-endpoint", f"{{control}}:{STORE_PORT}"),
        *("--rdzv-id", plan.run_id),
        *("--local-addr", "{address}"),
        "--",
    )
    train = (
        *("--steps", str(spec["steps"])),
        *("--seed", str(plan.seed)),
        *_checkpoint_place(spec),
        *("--checkpoint-every", str(spec["checkpoint"]["every_steps"])),
        *("--keep", str(spec["checkpoint"]["keep"])),
        *(("--data", "{run_dir}/data") if spec.get("data") else ()),
        *spec["args"],
    )
    store = ("{python}", "-m", "reference_trainer.store", "--host", "{control}", "--port", str(STORE_PORT))
    if spec["checkpoint"].get("store") != "s3":
        return Workload((*launch, *train), control=store, **shape)
    # fsspec reads settings of a file system from the environment; botocore wants some region.
    keys = f'AWS_ACCESS_KEY_ID={KEY_NAME} AWS_SECRET_ACCESS_KEY=${KEY_ENV} AWS_DEFAULT_REGION=us-east-1 exec "$@"'
    settings = ("env", f"FSSPEC_S3_ENDPOINT_URL=http://{{control}}:{S3_PORT}", "sh", "-c", keys, "sh")
    where = ("{control}", str(S3_PORT), "{run_dir}/object_store", S3_BUCKET)
    server = ("{python}", "-m", "harness.backends.agent.object_store", *where)
    return Workload((*settings, *launch, *train), control=(*server, *store), **shape)


def _checkpoint_place(spec: Mapping[str, Any]) -> tuple[str, ...]:
    if spec["checkpoint"].get("store") != "s3":
        return ("--checkpoint-dir", "{run_dir}/checkpoints")
    staging = "{run_dir}/staging/{index}-{incarnation}"  # a new node comes with an empty disk
    return ("--checkpoint-dir", f"s3://{S3_BUCKET}/job", "--staging-dir", staging)


def write_data(plan: Plan, run_dir: pathlib.Path) -> None:
    """The shards of the plan's own training data: the same on every run with the same Python."""
    if not plan.workload.get("data"):
        return
    files = sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = b"".join(file.read_bytes() for file in files)
    size = -(-len(text) // plan.workload["data"]["shards"])
    (run_dir / "data").mkdir()
    for number, start in enumerate(range(0, len(text), size)):
        (run_dir / "data" / f"shard-{number:03d}.txt").write_bytes(text[start : start + size])


def outcome_digest(plan: Plan) -> str:
    """Names what decides a fault-free run bit for bit: workload, seed, trainer source, torch, Python, CPU, backend."""
    decides = {
        "workload": plan.workload,
        "seed": plan.seed,
        "backend": plan.backend,
        "source": _source_digest(plan),
        "torch": _version("torch"),
        "python": sys.version,
        "machine": [platform.machine(), _cpu_model()],
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:16]


def _source_digest(plan: Plan) -> str:
    trainer = plan.workload["trainer"]
    if trainer == "reference":
        files = [*sorted((_ROOT / "reference_trainer").glob("*.py")), _ROOT / "harness" / "emitter" / "__init__.py"]
    else:
        files = _files_of(trainer)
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as content:  # a word of a command may name a large one
            digest.update(file.name.encode() + b"\0" + hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()


def _files_of(trainer: Mapping[str, Any]) -> list[pathlib.Path]:
    """Those that the scenario names, and every word of its commands that names a file here."""
    for name in trainer["digest"]:
        if not os.path.isfile(name):
            raise UsageError(f"workload.trainer.digest: there is no file {name!r} in the working directory")
    words = [*trainer["digest"], *trainer["command"], *(trainer["control"] or ())]
    return [pathlib.Path(word) for word in dict.fromkeys(words) if os.path.isfile(word)]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def _cpu_model() -> str:
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def environment_facts() -> dict[str, Any]:
    """What the report says about the machine. No host name, no path, no environment variable."""
    return {
        "python": platform.python_version(),
        "torch": _version("torch"),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        "harness": _version("chaos-harness"),
    }
