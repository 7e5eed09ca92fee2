"""Stored histories, healthy and broken, each with the verdicts that are acceptable for it.

`golden/forged.json` says what each of them is; the logs are in `golden/forged.tar.xz`. `golden/forged_reports.json.xz` holds
what was said of each, figure by figure, when somebody last looked at it.

PYTHONPATH=tests python tests/judge/test_forged.py      stores what is said of them now; look at the difference
"""

import json
import lzma
import pathlib
import tarfile
import tempfile
from typing import Any

import pytest
from judge.test_golden import differences

from harness.errors import EventLogError
from harness.evidence.logs import load_evidence
from harness.judge.score import Scorecard, judge
from harness.report import run_report

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
REPORTS = GOLDEN / "forged_reports.json.xz"
CASES: list[dict[str, Any]] = json.loads((GOLDEN / "forged.json").read_text())
KEPT = ("verdict", "reasons", "run", "scores", "metrics", "expectations", "not_judged_because")


@pytest.fixture(scope="session")
def reports() -> dict[str, Any]:
    return json.loads(lzma.decompress(REPORTS.read_bytes()))


@pytest.fixture(scope="session")
def histories(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return unpack(tmp_path_factory.mktemp("forged"))


def unpack(folder: pathlib.Path, case: str = "") -> pathlib.Path:
    with tarfile.open(GOLDEN / "forged.tar.xz") as archive:
        if hasattr(tarfile, "data_filter"):  # not in the first patch releases of Python 3.11
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(folder, [each for each in archive if each.name.startswith(case)])
    return folder


def judged(run_dir: pathlib.Path) -> Scorecard | str:
    """A log that cannot be read is told so, with exit 3: nothing follows from it."""
    try:
        return judge(load_evidence(run_dir), run_dir.name)
    except EventLogError as error:
        return str(error).replace(str(run_dir), run_dir.name)


def reported(card: Scorecard | str) -> dict[str, Any]:
    if isinstance(card, str):
        return {"verdict": "inconclusive", "reasons": [card]}
    whole = run_report.from_scorecard(card).to_json()
    return {key: whole[key] for key in KEPT}


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_the_report_is_as_it_was(case: dict[str, Any], histories: pathlib.Path, reports: dict[str, Any]) -> None:
    report = reported(judged(histories / case["id"]))
    assert report["verdict"] in case["allowed"], [case["what"], *report["reasons"]]
    assert not [reason for reason in report["reasons"] if "the scorer crashed" in reason]
    assert differences(json.loads(json.dumps(report)), reports[case["id"]]) == []


def write() -> None:
    with tempfile.TemporaryDirectory() as folder:
        unpack(pathlib.Path(folder))
        reports = {case["id"]: reported(judged(pathlib.Path(folder) / case["id"])) for case in CASES}
    REPORTS.write_bytes(lzma.compress(json.dumps(reports, separators=(",", ":")).encode()))


if __name__ == "__main__":
    write()
