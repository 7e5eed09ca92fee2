"""Preflights of virtual nodes: what is wrong with one is named, and a cluster without a fault is fit."""

import json
import pathlib
from typing import Any

import pytest
from command_line import chaos, ended

from harness.backends.contract import Verb, load_backend

pytest.importorskip("torch", reason="torch is missing: make setup")
pytestmark = pytest.mark.slow  # real jobs

SMALL = (
    "{nodes: NODES, steps: 60, checkpoint: {every_steps: 20},"
    ' args: [--layers, "1", --width, "64", --context, "32", --compute-s, "0"]}'
)
SLOW = "{id: slow, fault: nic_bandwidth, when: {step: 15}, target: {node: 2}, rate: 100mbit, duration: 90s}"


def preflight(folder: pathlib.Path, workload: str, faults: str, *words: str) -> tuple[int, dict[str, Any]]:
    scenario = folder / "scenario.yaml"
    head = "version: 1\nname: small\ntitle: A small job\nabort: {wall_clock: 5m}\n"
    scenario.write_text(f"{head}workload: {workload}\nfaults: [{faults}]\n")
    result = ended("preflight", scenario, "--reports", folder / "reports", "--json", *words)
    return result.exit_code, json.loads(result.stdout)


def findings(told: dict[str, Any]) -> list[dict[str, Any]]:
    return [finding for check in told["checks"] for finding in check["judged"].get("findings", [])]


def only(*checks: str) -> list[str]:
    return [word for check in checks for word in ("--only", check)]


TRIES = 3  # a host that is too busy lets nothing be judged, and an honest answer then is that


def test_a_slow_card_is_named(tmp_path: pathlib.Path) -> None:
    """A healthy link is never accused with certainty, in any try."""
    if Verb.NET_RATE not in load_backend("local").probe().verbs:
        pytest.skip("local nodes have no network of their own here")
    for number in range(TRIES):
        (folder := tmp_path / str(number)).mkdir()
        code, told = preflight(folder, SMALL.replace("NODES", "3"), SLOW, "--faults", *only("compute", "links"))
        links = [each for each in findings(told) if each.get("link") and each.get("certain", True)]
        assert all("node2" in each["nodes"] for each in links), findings(told)
        assert (code, told["verdict"]) in ((1, "fail"), (3, "inconclusive")), (told["why"], findings(told))
        if told["verdict"] == "fail":
            break
    assert links and code == 1, (told["why"], findings(told))
    assert (folder / "reports" / told["run_id"] / "report.html").exists()


def test_a_trainer_that_comes_back_is_fit_and_the_run_can_be_judged_again(tmp_path: pathlib.Path) -> None:
    code, told = preflight(tmp_path, SMALL.replace("NODES", "2"), "", *only("devices", "clocks", "restore"))
    assert (code, told["verdict"]) == (0, "pass"), findings(told)
    drill = json.loads((tmp_path / "reports" / told["drill"] / "report.json").read_text())
    assert drill["verdict"] == "pass" and drill["faults"][0]["id"] == "kill"
    for command in ("show", "score"):
        result = chaos(command, told["run_id"], "--reports", str(tmp_path / "reports"))
        assert result.exit_code == 0 and "PASS" in result.stdout, result.output
