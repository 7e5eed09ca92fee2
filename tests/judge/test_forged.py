"""Stored histories, healthy and broken, each with the verdicts that are acceptable for it.

`golden/forged.json` says what each of them is; the logs are in `golden/forged.tar.xz`.

PYTHONPATH=tests python tests/judge/test_forged.py [PART OF AN ID …]      judges them, and says why
"""

from __future__ import annotations

import json
import pathlib
import sys
import tarfile
import tempfile
from typing import Any

import pytest

from harness.errors import EventLogError
from harness.judge.evidence import load_evidence
from harness.judge.score import judge

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
CASES: list[dict[str, Any]] = json.loads((GOLDEN / "forged.json").read_text())


@pytest.fixture(scope="session")
def histories(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return unpack(tmp_path_factory.mktemp("forged"))


def unpack(folder: pathlib.Path) -> pathlib.Path:
    with tarfile.open(GOLDEN / "forged.tar.xz") as archive:
        if hasattr(tarfile, "data_filter"):  # not in the first patch releases of Python 3.11
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(folder)
    return folder


def judged(run_dir: pathlib.Path) -> tuple[str, list[str]]:
    """A log that cannot be read is told so, with exit 3: nothing follows from it."""
    try:
        card = judge(load_evidence(run_dir), run_dir.name)
    except EventLogError as error:
        return "inconclusive", [str(error)]
    return card.verdict.value, list(card.reasons)


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_the_verdict_is_acceptable(case: dict[str, Any], histories: pathlib.Path) -> None:
    verdict, reasons = judged(histories / case["id"])
    assert verdict in case["allowed"], [case["what"], *reasons]
    assert not [reason for reason in reasons if "the scorer crashed" in reason]


def main(parts: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        unpack(pathlib.Path(folder))
        chosen = [case for case in CASES if not parts or any(part in case["id"] for part in parts)]
        wrong = 0
        for case in chosen:
            try:
                verdict, reasons = judged(pathlib.Path(folder) / case["id"])
            except Exception as error:
                verdict, reasons = "crash", [f"{type(error).__name__}: {error}"]
            wrong += verdict not in case["allowed"]
            if parts or verdict not in case["allowed"]:
                print(f"{case['id']}: {verdict} ({' or '.join(case['allowed'])} is right): {case['what']}")
                print("".join(f"    {reason}\n" for reason in reasons), end="")
        print(f"{len(chosen) - wrong} of {len(chosen)} are judged rightly")


if __name__ == "__main__":
    main(sys.argv[1:])
