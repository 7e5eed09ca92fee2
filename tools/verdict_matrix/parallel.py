"""Jobs whose ranks hold parts of the model, with the bugs that show only there, and the same jobs without."""

import pathlib
import re
import subprocess
import sys
from dataclasses import dataclass

import yaml
from verdict_matrix.rehearsal import NotRun

from harness.evidence.logs import load_evidence
from harness.judge.score import Scorecard, judge
from harness.judge.verdict import Verdict

TRAINER = pathlib.Path(__file__).resolve().with_name("parallel_trainer.py")
MESHES = {"tp": {"dp": 2, "tp": 2}, "ep": {"dp": 2, "ep": 2}, "pp": {"pp": 2, "dp": 2}}
LIMIT_S = 900


@dataclass(frozen=True)
class Parallel:
    layout: str
    bug: str  # a value of `--broken`; empty: none
    reason: str = ""  # a regular expression that one of the reasons must match
    restart_layout: str = ""
    verdict: Verdict = Verdict.FAIL

    @property
    def name(self) -> str:
        return self.bug or "as it is"

    @property
    def how(self) -> str:
        return f"run: {self.layout}" + (f", resumed with {self.restart_layout}" if self.restart_layout else "")

    def accepts(self, card: Scorecard) -> bool:
        return card.verdict is self.verdict and any(re.search(self.reason, text) for text in card.reasons)


OTHER = r"differs? from (the same rank of )?the fault-free run"
EARLIER = r"restored different steps|restored step|only reached step"
ROWS = [
    *(Parallel(layout, "", verdict=Verdict.PASS) for layout in MESHES),
    Parallel("tp", "", restart_layout="dp", verdict=Verdict.PASS),
    Parallel("tp", "equal_random_state", OTHER),
    Parallel("tp", "other_random_state", OTHER),
    Parallel("tp", "older_part", EARLIER),
    Parallel("pp", "older_part", EARLIER),
    Parallel("tp", "optimizer_lost", f"optimizer's state was|{OTHER}"),
    Parallel("tp", "optimizer_swapped", OTHER),
    Parallel("ep", "part_lost", OTHER),
    Parallel("tp", "parts_in_wrong_order", r"final loss is .* off the fault-free run", restart_layout="dp"),
    Parallel("tp", "stale_average", r"saved other tensors|tensors in its save"),
    Parallel("pp", "schedule_ahead", OTHER),
    Parallel("tp", "samples_by_rank", OTHER),
]


def scenario(row: Parallel) -> dict[str, object]:
    words = ["--checkpoints", "{checkpoints}", "--layout", row.layout]
    words += ["--restart-layout", row.restart_layout] if row.restart_layout else []
    words += ["--broken", row.bug] if row.bug else []
    part = {axis: 1 for axis in MESHES[row.layout]}
    mesh = {} if row.restart_layout else {"mesh": MESHES[row.layout]}
    return {
        "version": 1,
        "name": "parallel",
        "title": "A rank that holds a part of the model is killed",
        "workload": {
            "trainer": {"torchrun": str(TRAINER), "args": words},
            "nodes": 2,
            "ranks_per_node": 2,
            **mesh,
            "restore_drill": True,
        },
        "faults": [{"id": "kill", "fault": "rank_kill", "when": {"step": 35}, "target": part if mesh else {"rank": 3}}],
        "expect": {
            "recovery_time": {"max": "10m"},
            "loss_continuity": {"mode": "final", "max_final_gap": "1%"} if row.restart_layout else {"mode": "exact"},
            "pace": "off",
        },
        "abort": {"if_no_step_for": "5m", "wall_clock": "10m"},
    }


def run(row: Parallel, folder: pathlib.Path, stored_only: bool = False) -> Scorecard:
    """Runs such a job; one that is there already is only judged again. Raises `NotRun` if it is not and `stored_only`."""
    place = folder / f"{row.layout}-{row.bug or 'healthy'}-{row.restart_layout}".strip("-").replace("_", "-")
    found = sorted(place.glob("*/report.json"))
    if not found and stored_only:
        raise NotRun(f"{place.name} is not in {folder}")
    if not found:
        place.mkdir(parents=True, exist_ok=True)
        path = place / "parallel.yaml"
        path.write_text(yaml.safe_dump(scenario(row), sort_keys=False))
        command = [sys.executable, "-m", "harness", "run", str(path), "--reports", str(place)]
        subprocess.run(command, check=False, timeout=LIMIT_S, stdout=subprocess.DEVNULL)
        found = sorted(place.glob("*/report.json"))
        assert found, "no run"
    return judge(load_evidence(found[-1].parent), found[-1].parent.name)
