"""What version 1.0.0rc1 wrote, in tests/rc1/rc1.tar.xz: each command reads it, or refuses it in words.

The archive is never made again. A change that makes these tests fail breaks the files of whoever upgrades: read the
older form, too, or raise the schema, so that the refusal below is what people see.
"""

import pathlib
import tarfile
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.cli import main

STORED = pathlib.Path(__file__).resolve().parents[1] / "rc1" / "rc1.tar.xz"
RUN, GATE = "short-20261129-043410-aad9", "tiny-20261129-043353-5753"


@pytest.fixture
def stored(tmp_path: pathlib.Path) -> pathlib.Path:
    with tarfile.open(STORED) as files:
        files.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 has none
        files.extractall(tmp_path)
    return tmp_path


def chaos(stored: pathlib.Path, words: str) -> tuple[int, str]:
    given = [str(stored / word) if word.endswith((".yaml", ".json")) else word for word in words.split()]
    reports = [] if given[0] == "validate" else ["--reports", str(stored / "reports")]
    done: Any = CliRunner().invoke(main.make_app(), [*given, *reports], env={"COLUMNS": "300"})
    return getattr(done.exception, "exit_code", done.exit_code), f"{done.output}{done.exception or ''}"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (f"show {RUN}", "✔ PASS"),
        (f"score {RUN}", "✔ PASS"),
        (f"report {RUN}", "report.html"),
        ("runs", RUN),
        ("history short", RUN),
        ("baseline show rc1", f"From {GATE}"),
        (f"baseline set again --from {GATE}", "short"),
        (f"baseline show reports/{GATE}/figures.json", f"From {GATE}"),
        ("validate short.yaml suite.yaml", "short.yaml: ok"),
    ],
)
def test_a_command_reads_it(stored: pathlib.Path, words: str, told: str) -> None:
    code, out = chaos(stored, words)
    assert code == 0 and told in out, out


@pytest.mark.parametrize(
    ("file", "mark", "words", "told"),
    [
        (f"reports/{RUN}/report.json", '"schema": 1', f"show {RUN}", "this version reads schema 1"),
        (f"reports/{RUN}/events/harness.jsonl", '"schema":1', f"score {RUN}", "this version reads schema 1"),
        (f"reports/{GATE}/suite.json", '"schema": 1', f"gate merge {GATE}", "this version reads schema 1"),
        ("reports/.baselines/rc1.json", '"schema": 1', "baseline show rc1", "this version reads schema 1"),
        ("short.yaml", "version: 1", "validate short.yaml", "version"),
    ],
)
def test_what_a_later_version_wrote_is_refused_in_words(
    stored: pathlib.Path, file: str, mark: str, words: str, told: str
) -> None:
    text = (stored / file).read_text()
    assert mark in text
    (stored / file).write_text(text.replace(mark, mark.replace("1", "9"), 1))
    code, out = chaos(stored, words)
    assert code in (2, 3) and told in out and "unexpected" not in out, out
