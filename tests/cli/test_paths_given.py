"""Names and paths on the command line that cannot be: exit 2 and one clear line, whatever the command."""

import os
import pathlib
import sys

import pytest

from harness.cli import main, output

LONG = "a" * 5000
SUBCOMMANDS = ("merge", "set", "list", "show", "run", "resume", "note", "stop")
SAID_MAX = 2000  # characters: a long name is not repeated at its full length
OF_RUNS = [
    *("show x", "score x", "report x", "export x --perfetto trace.json", "history", "compare x y", "runs"),
    *("gate pre-launch", "gate merge x", "baseline set x", "baseline list", "baseline show x", "matrix checkpoint"),
    *("run spot-evict", "run --plan x", "init python train.py", "gameday run pre-launch --no-page"),
    *("gameday resume x", "gameday note x words", "gameday stop x"),
]
OF_SCENARIOS = [
    *("run x", "plan x", "validate x", "list", "gate x", "matrix checkpoint x", "gameday run x --dry-run", "doctor")
]
FILES = list(
    map(
        str.split,
        [
            *(
                "run FILE",
                "run --plan FILE",
                "plan FILE",
                "validate FILE",
                "gate FILE",
                "gate pre-launch --against FILE",
            ),
            *("gate merge FILE", "baseline set x --from FILE", "baseline show FILE", "matrix checkpoint FILE"),
            *("gameday run FILE --dry-run", "gameday run FILE --attach docker:a=b", "gameday resume FILE"),
            "gameday run pre-launch --tls-cert FILE --tls-key FILE",
            *("gameday note FILE words", "gameday stop FILE", "history --slo FILE", "history --page FILE/page.html"),
            *("show FILE", "score FILE", "report FILE", "compare FILE FILE", "export FILE --perfetto trace.json"),
            "init --folder FILE/chaos python train.py",
        ],
    )
)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(output.err, "_file", None)
    (tmp_path / "train.py").write_text("import torch\n")


def refused(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(sys, "argv", ["chaos", *words])
    with pytest.raises(SystemExit) as end:
        main.main()
    said = capsys.readouterr().err
    assert end.value.code == 2, said
    assert len(said) < SAID_MAX
    return said


def words(command: list[str]) -> str:
    return " ".join(command[:3])


@pytest.mark.parametrize("below", ["", "/below"], ids=["a-file", "in-a-file"])
@pytest.mark.parametrize("command", list(map(str.split, OF_RUNS)), ids=words)
def test_reports_that_are_no_folder(
    command: list[str], below: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pathlib.Path("file").write_text("mine")
    place = 2 if command[0] in ("gate", "baseline", "gameday") and command[1] in SUBCOMMANDS else 1
    said = refused([*command[:place], "--reports", f"file{below}", *command[place:]], monkeypatch, capsys)
    assert "--reports" in said and "not a folder" in said
    assert pathlib.Path("file").read_text() == "mine" and sorted(os.listdir()) == ["file", "train.py"]


@pytest.mark.parametrize("command", list(map(str.split, OF_SCENARIOS)), ids=words)
def test_scenarios_that_are_no_folder(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pathlib.Path("file").touch()
    said = refused([*command, "--scenarios", "file"], monkeypatch, capsys)
    assert "--scenarios" in said and "not a folder" in said
    for option in ("--reports", "--scenarios"):
        refused(["run", "spot-evict", option, LONG], monkeypatch, capsys)


@pytest.mark.parametrize(
    "command", ["history --page", "compare x y --page", "export x --perfetto", "run spot-evict --summary"]
)
def test_what_is_no_file_to_write_stays_what_it_is(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo("pipe")
    os.symlink("/dev/null", "null")
    os.mkdir("folder")
    for name in ("pipe", "null", "folder"):
        said = refused([*command.split(), name], monkeypatch, capsys)
        assert "left alone" in said or "is a directory" in said
    assert os.readlink("null") == "/dev/null" and pathlib.Path("pipe").is_fifo()


@pytest.mark.parametrize("command", FILES, ids=words)
def test_a_name_of_5000_characters(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (LONG, f"{LONG}.yaml", f"{LONG}.json", "d/" * 3000 + "e.yaml"):
        refused([word.replace("FILE", name) for word in command], monkeypatch, capsys)
    assert os.listdir() == ["train.py"]


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
@pytest.mark.parametrize("command", [each for each in FILES if "FILE" in each], ids=words)
def test_what_is_no_file_to_read(
    command: list[str], suffix: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A link to memory, a pipe that nobody writes to, a device without an end, a folder, and 10 GB."""
    os.symlink("/proc/self/mem", f"memory{suffix}")
    os.symlink("/dev/zero", f"device{suffix}")
    os.mkfifo(f"pipe{suffix}")
    os.mkdir(f"folder{suffix}")
    with open(f"huge{suffix}", "wb") as file:
        file.truncate(10 * 10**9)
    for name in ("memory", "device", "pipe", "folder", "huge"):
        refused([word.replace("FILE", name + suffix) for word in command], monkeypatch, capsys)
