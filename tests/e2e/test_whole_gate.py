"""A whole gate, for real: the shipped blindness check is caught, a short scenario passes, the answer is yes."""

import json
import pathlib
import shutil

from chaos_cli import NAME, ROOT, chaos, leftovers


def test_the_gate_catches_its_blindness_check_and_says_yes(reports: pathlib.Path, short: pathlib.Path) -> None:
    shutil.copy(ROOT / "scenarios" / "suites" / "blindness-check.yaml", short.parent)
    suite = short.with_name("suite.yaml")
    suite.write_text(f"version: 1\nname: tiny\ntitle: A tiny gate\nscenarios: [{short}]\n")
    done = chaos(reports, "gate", suite)
    assert done.code == 0, done.out
    (folder,) = reports.glob("tiny-*")
    answer = json.loads((folder / "suite.json").read_text())
    assert answer["verdict"] == "pass" and answer["blindness_check"]["verdict"] == "fail"
    assert "resumed from step 0 and gave no reason" in answer["blindness_check"]["reasons"][0]
    assert leftovers(NAME, "blindness-check") == []
