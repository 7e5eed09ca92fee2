"""`chaos history --slo`: exit codes, and mistakes with their place."""

from __future__ import annotations

import json
import pathlib
import shutil
import time

import pytest
from typer.testing import CliRunner

from harness.cli.main import make_app
from harness.errors import ScenarioError
from harness.gate.slo_file import load_slo, parse_slo

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEAD = "version: 1\nname: ours\ntitle: Ours\nobjectives:\n"


def _stored(reports: pathlib.Path, number: int, verdict: str = "pass") -> None:
    folder = reports / f"run-{number:03d}"
    shutil.copytree(ROOT / "reports" / "sample", folder)
    (folder / "plan.json").write_text("{}")
    report = json.loads((folder / "report.json").read_text())
    begun = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(time.time() - 60))
    report |= {"run_id": folder.name, "verdict": verdict, "begun_at": begun}
    (folder / "report.json").write_text(json.dumps(report))


@pytest.mark.parametrize(
    ("verdicts", "code", "word"),
    [(["pass"] * 3, 0, "met"), (["pass", "fail", "pass"], 1, "missed"), (["pass"] * 2, 3, "too little evidence")],
)
def test_the_exit_code_says_whether_it_is_met(
    tmp_path: pathlib.Path, verdicts: list[str], code: int, word: str
) -> None:
    for number, verdict in enumerate(verdicts):
        _stored(tmp_path / "reports", number, verdict)
    path = tmp_path / "slo.yaml"
    path.write_text(HEAD + "  - {id: all, severity: page, success: 90%, runs_min: 3}\n")
    done = CliRunner().invoke(make_app(), ["history", "--slo", str(path), "--reports", str(tmp_path / "reports")])
    assert done.exit_code == code and word in done.output and "all (page), success" in done.output


def test_without_any_run_nothing_is_met(tmp_path: pathlib.Path) -> None:
    path = ROOT / "examples" / "monitoring" / "slo.yaml"
    done = CliRunner().invoke(make_app(), ["history", "--slo", str(path), "--reports", str(tmp_path), "--json"])
    assert done.exit_code == 3
    assert {each["verdict"] for each in json.loads(done.stdout)} == {"inconclusive"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("  - {id: a}\n", "a.yaml:5:5: objectives.0: it asks for nothing"),
        ("  - {id: a, succes: 99%}\n", "a.yaml:5:13: objectives.0.succes: unknown key; did you mean success?"),
        ("  - {id: a, success: 120%}\n", "a.yaml:5:13: objectives.0.success"),
        ("  - {id: a, success: 9%, faults: [evict]}\n", "unknown fault 'evict'"),
        ("  - {id: a, success: 9%}\n  - {id: a, success: 9%}\n", "already the id of another objective"),
    ],
)
def test_mistakes_are_told_with_their_place(text: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_slo(HEAD + text, "a.yaml")
    assert message in str(caught.value)


def test_the_example_is_right() -> None:
    assert load_slo(ROOT / "examples" / "monitoring" / "slo.yaml").name == "resilience"
