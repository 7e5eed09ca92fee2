"""Finds the origin of a run's measurements: its trainer, data, image and software. Unknown facts are left out."""

import importlib.metadata
import pathlib
import re
from typing import Any

from harness.backends.contract import Backend
from harness.plan.run_plan import Plan
from harness.trainers.shared import checkout, outcome_inputs
from harness.trainers.shared.outcome_inputs import data_digest

_CUDA = re.compile(r"^cuda\b[^=]*=\s*['\"]([0-9.]{1,12})['\"]", re.MULTILINE)
_HERE = ("local",)  # backends whose workers use this machine's software


def facts(plan: Plan, backend: Backend) -> dict[str, Any]:
    """Returns digests of a run's code, data, image and scenario, with the commit and the versions of software."""
    code = outcome_inputs.code_of(plan.workload.trainer)
    folder = code.resolve().parent if code else None
    software = _software() if plan.backend in _HERE else {}
    told = {
        "source_digest": outcome_inputs.source_digest(plan.workload.trainer),
        "trainer_commit": checkout.commit_of(folder) if folder else None,
        "trainer_diff": checkout.diff_digest(folder) if folder else None,
        "data_digest": data_digest() if plan.workload.data else None,
        "image_digest": backend.image_digest(),
        "scenario_digest": plan.scenario.file_digest,
        **software,
    }
    return {name: value for name, value in told.items() if value is not None}


def _software() -> dict[str, str | None]:
    """Returns the CUDA and NCCL versions of the torch installed on this machine, without an import of torch."""
    try:
        torch = importlib.metadata.distribution("torch")
        text = pathlib.Path(str(torch.locate_file("torch/version.py"))).read_text(errors="replace")
    except (importlib.metadata.PackageNotFoundError, OSError):
        return {}
    built = _CUDA.search(text)
    return {"cuda": built[1] if built else "none: torch was built without it", "nccl": _nccl()}


def _nccl() -> str | None:
    for major in ("cu13", "cu12", "cu11"):
        try:
            return importlib.metadata.version(f"nvidia-nccl-{major}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return None
