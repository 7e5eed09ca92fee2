"""Files beside the saves that the run without a stop had written, and a restart had not."""

import os
import pathlib

import pytest

from harness.cli.scenarios import plan_of
from harness.matrix.forgotten_files import forgotten

Files = dict[str, tuple[str, int]]  # name → what it holds, and when it was written
BEFORE: Files = {
    "log.txt": ("1 2 3", 1),
    "best.txt": ("0.5", 1),
    "best.bin": ("b", 1),
    "events-1700000001.bin": ("a", 1),
}
RUN: Files = {
    **BEFORE,
    "note-of-base.txt": ("n", 2),
    "log.txt": ("1 2 3 4", 2),
    "best.txt": ("0.4", 2),
    "epoch-1/eval.json": ("{}", 2),
}


@pytest.mark.parametrize(
    ("again", "expected"),
    [
        (RUN, []),
        ({**RUN, "log.txt": ("1 2 3 4 5 6", 3), "events-1700000002.bin": ("b", 3)}, []),
        ({**RUN, "best.txt": BEFORE["best.txt"]}, ["best.txt was not written again"]),
        ({**RUN, "log.txt": ("4", 3)}, ["log.txt was begun anew: it holds 1 bytes, and held 5"]),
        ({name: file for name, file in RUN.items() if name != "best.txt"}, ["best.txt is gone"]),
        ({name: file for name, file in RUN.items() if name != "best.bin"}, ["best.bin is gone"]),
        ({name: file for name, file in RUN.items() if "eval" not in name}, ["epoch-1/eval.json was not written"]),
        ({**{name: file for name, file in RUN.items() if "eval" not in name}, "epoch-7/eval.json": ("{}", 3)}, []),
    ],
)
def test_a_file_is_missed_by_its_name_and_time(again: Files, expected: list[str], tmp_path: pathlib.Path) -> None:
    folders = [tmp_path / name for name in ("before", "run", "again")]
    again = {name.replace("-of-base", "-of-resumed-5"): file for name, file in again.items()}
    for folder, files in zip(folders, (BEFORE, RUN, again), strict=True):
        for name, (text, second) in files.items():
            path = folder / "checkpoints" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            os.utime(path, (second, second))
    plan = plan_of("rank-kill", "local", 1, None, pathlib.Path("scenarios"))[1]
    before, run, restart = folders
    found = forgotten(plan, (before, run), (before, restart), ("base", "resumed-5"))
    assert found.compared == len(RUN)
    assert [each.removeprefix("checkpoints/") for each in found.words] == expected
    sooner = forgotten(plan, (before, run), (before, restart), ("base", "resumed-5"), until_ns=1.5e9)
    assert sooner.compared == len(BEFORE), "what the run wrote later is not due yet"
    assert [each.removeprefix("checkpoints/") for each in sooner.words] == [
        each for each in expected if "written" not in each
    ]
