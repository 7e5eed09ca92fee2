"""Who knows faults by name: the faults themselves, and the one reader that fills in what older logs do not tell."""

import ast
import pathlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from harness.faults.contract import build_fault, fault_names, load_fault
from harness.log import checked_lines, older_faults
from harness.log.consequences import Consequences, May
from harness.log.vocabulary import ANOMALIES, EVENTS, TEXTS
from harness.units import Duration

ROOT = pathlib.Path(__file__).resolve().parents[2] / "harness"
READERS = [
    path
    for room in ("log", "timeline", "evidence", "judge", "report", "monitoring")
    for path in (ROOT / room).rglob("*.py")
    if path.name != "vocabulary.py"  # it declares what a plan holds, and reads nothing
]
NAMES = frozenset(fault_names()) - set(ANOMALIES)  # what a trainer tells may have the name of a fault


def known(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Texts that are a fault's name, or the begin of several, and those that open a planned fault's parameters. Also
    what is compared with a fault's `kind`, whatever it is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            begins = node.value.endswith("_") and any(name.startswith(node.value) for name in NAMES)
            if node.value in NAMES or node.value == "parameters" or begins:
                yield node.lineno, node.value
        elif isinstance(node, ast.Compare):
            sides = [ast.unparse(side) for side in (node.left, *node.comparators)]
            kinds = [side for side in sides if side in ("fault.kind", "record.kind", "f.kind")]
            yield from ((node.lineno, side) for side in kinds if "fault.id" not in sides)  # shown but once


@pytest.mark.parametrize("path", READERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_reader_knows_a_fault_by_its_name_or_its_parameters(path: pathlib.Path) -> None:
    found = list(known(ast.parse(path.read_text())))
    assert bool(found) == (path.name == "older_faults.py"), f"{path}: {found}: let the fault tell it in fault.injected"


@pytest.mark.parametrize(
    "code", ['fault.kind.startswith("nic_")', 'x == "clock_skew"', 'fault["parameters"]', "fault.kind == NAME"]
)
def test_such_code_is_found(code: str) -> None:
    assert list(known(ast.parse(code)))


def may(*what: May, **more: Any) -> Consequences:
    return Consequences(may=frozenset(what), **more)


UPDATED = may(May.KILL, May.MOVE, replaced=True, changes=True, updates_only=True)
EXAMPLES: list[tuple[str, dict[str, Any], Consequences]] = [
    ("rank_kill", {"signal": "SIGTERM"}, may(May.KILL, graceful=True)),
    ("rank_kill", {}, may(May.KILL)),
    ("preemption", {"notice": "0s"}, may(May.KILL, notice_ns=0, preempts=True, replaced=False)),
    ("checkpoint_torn_write", {"replacement": {"after": "1s"}}, may(May.KILL, damages=True, replaced=True)),
    ("checkpoint_corruption", {}, may(May.SPOIL, damages=True)),
    ("nic_loss", {"loss_percent": 5, "duration": "7s"}, may(May.STOP, network=True, lasts=Duration("7s"))),
    ("nic_flap", {}, may(May.STOP, network=True)),
    ("partition", {"duration": "forever"}, may(May.STOP, network=True)),
    ("clock_skew", {"duration": "2m"}, may(clocks=True, lasts=Duration("2m"))),
    ("data_corruption", {"kind": "nan_batch"}, may(May.STOP, May.MOVE)),
    ("data_skew", {}, may(May.STOP, May.SKEW)),
    ("divergence", {"steps": 3}, may(May.STOP, May.DIVERGE, spoilt_steps=3)),
    ("hang", {"how": "freeze_node", "duration": "7s"}, may(May.STOP, freezes=True, lasts=Duration("7s"))),
    ("hang", {"how": "freeze_launcher", "duration": "7s"}, may(May.STOP, lasts=Duration("7s"))),
    ("memory_leak", {}, may(May.STOP, May.LEAK)),
    ("hot_update", {"env": {"A": "b"}}, may(May.KILL, May.MOVE, replaced=True, changes=True)),
    ("hot_update", {"args": ["x"], "shown_by": "lr"}, may(May.KILL, May.MOVE, replaced=True, changes=True, shows="lr")),
    ("hot_update", {"args": ["--min-lr", "1"]}, UPDATED),
    ("hot_update", {"args": ["optim.lr=1"]}, UPDATED),
    ("hot_update", {"args": ["--lr", "1"], "env": {"A": "b"}}, replace(UPDATED, updates_only=False)),
    ("hot_update", {"args": ["--lr", "1", "--batch", "9"]}, replace(UPDATED, updates_only=False)),
    ("silent_data_corruption", {}, may(May.STOP, May.MOVE)),
    ("silent_data_corruption", {"what": "weight"}, may(May.STOP, May.MOVE, May.DRIFT)),
]


@pytest.mark.parametrize(
    ("kind", "parameters", "meant"), EXAMPLES, ids=[f"{kind}-{parameters}" for kind, parameters, _ in EXAMPLES]
)
def test_what_a_fault_says_comes_through_the_log(kind: str, parameters: dict[str, Any], meant: Consequences) -> None:
    told = build_fault(kind, parameters).consequences().to_event()
    line = {"event": "fault.injected", "mono_ns": 1, "fault": "f", "kind": kind} | told
    checked_lines.event(line, "harness")
    assert Consequences.from_event(line) == meant


NO_FLAG = ("benign", "sticks")  # faults with one of these are younger
YOUNGER = ("hot_update",)
OLD = [each for each in fault_names() if not any(getattr(load_fault(each), flag) for flag in NO_FLAG)]
OLD = [each for each in OLD if each not in YOUNGER]


@pytest.mark.parametrize("kind", OLD)
def test_an_older_log_means_the_same(kind: str) -> None:
    """It has the flags, and the parameters of the plan."""
    required: dict[str, dict[str, Any]] = {
        "gpu_health": {"kind": "ecc"},
        "nic_bandwidth": {"rate": "1mbit"},
        "nic_loss": {"loss_percent": 1},
        "rdma": {"how": "error"},
        "storage_slow": {"latency": "1s"},
    }
    fault = build_fault(kind, required.get(kind, {}) if kind != "own_code" else {"source": "def inject(context): ..."})
    said = fault.consequences()
    flags = {f"{each}s": each in said.may for each in May}
    planned = {"id": "f", "fault": kind, "parameters": fault.model_dump(mode="json")}
    assert older_faults.consequences({"event": "fault.injected"} | flags, planned, kind) == replace(
        said, must_leave=False
    )


def test_the_first_logs_that_told_what_a_fault_may_knew_of_no_move() -> None:
    told = {"event": "fault.injected", "may": ["stop"]}
    assert older_faults.consequences(told, {}, "silent_data_corruption").moves
    assert not older_faults.consequences(told, {}, "straggler").moves
    assert [older_faults.consequences(told, {}, kind).skews for kind in ("data_skew", "straggler")] == [True, False]
    assert [may(each).moves for each in May] == [each in (May.DRIFT, May.SKEW, May.DIVERGE, May.MOVE) for each in May]


def test_what_it_may_is_declared_and_what_a_newer_version_tells_is_left_out() -> None:
    (event,) = [each for each in EVENTS if each.name == "fault.injected"]
    field = next(each for each in event.fields if each.name == "may")
    assert (field.kind, field.values) == (TEXTS, ("kill", "stop", "spoil", "drift", "skew", "diverge", "move", "leak"))
    told = Consequences.from_event({"may": ["kill", "explode"], "lasts": "for a while", "glows": True})
    assert told == may(May.KILL)
