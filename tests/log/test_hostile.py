"""What a node plants in its folders leads nowhere: links, pipes, devices, folders swapped meanwhile."""

import os
import pathlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import FaultError
from harness.log import untrusted_files

SECRET = "only for root"


@pytest.fixture
def run(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text(SECRET)
    (tmp_path / "run" / "job").mkdir(parents=True)
    return tmp_path / "run"


PLANTS: dict[str, Callable[[pathlib.Path], object]] = {
    "a link": lambda place: place.symlink_to("../../outside/secret"),
    "an absolute link": lambda place: place.symlink_to(place.parents[2] / "outside" / "secret"),
    "a pipe": lambda place: os.mkfifo(place),
    "a folder": lambda place: place.mkdir(),
    "a device": lambda place: place.symlink_to("/dev/zero"),
}
USES: dict[str, Callable[[pathlib.Path], Any]] = {
    "read": lambda run: untrusted_files.read(run, "job/file"),
    "tail": lambda run: untrusted_files.tail(run, "job/file"),
    "write": lambda run: untrusted_files.open_file(run, "job/file", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    "copy": lambda run: untrusted_files.copy_out(run, "job/file", run / "copy"),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("plant", PLANTS)
def test_what_is_no_plain_file_is_left_alone(run: pathlib.Path, plant: str, use: str) -> None:
    PLANTS[plant](run / "job" / "file")
    with pytest.raises(FaultError, match="left alone"):
        USES[use](run)
    assert (run.parent / "outside" / "secret").read_text() == SECRET


@pytest.mark.parametrize("use", USES)
def test_a_folder_that_is_a_link_is_left_alone(run: pathlib.Path, use: str) -> None:
    (run / "job").rmdir()
    (run.parent / "outside" / "file").write_text(SECRET)
    (run / "job").symlink_to("../outside")
    with pytest.raises(FaultError, match="not a plain folder"):
        USES[use](run)
    assert (run.parent / "outside" / "file").read_text() == SECRET


def test_a_folder_that_is_swapped_again_and_again_leads_nowhere(run: pathlib.Path) -> None:
    """Either the file of the run is read or nothing: never the one outside."""
    (run / "job" / "file").write_text("plain")
    (run.parent / "outside" / "file").write_text(SECRET)
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            os.rename(run / "job", run / "aside")
            os.symlink("../outside", run / "job")
            os.unlink(run / "job")
            os.rename(run / "aside", run / "job")

    thread = threading.Thread(target=swap)
    thread.start()
    found = set()
    try:
        for _ in range(2000):
            try:
                found.add(untrusted_files.read(run, "job/file"))
            except (FaultError, FileNotFoundError):
                continue
    finally:
        done.set()
        thread.join()
    assert found <= {b"plain"}


def test_files_are_read_up_to_a_limit(run: pathlib.Path) -> None:
    (run / "job" / "file").write_bytes(b"x" * 100)
    assert untrusted_files.read(run, "job/file", 100) == b"x" * 100
    with pytest.raises(FaultError, match="more than 99 bytes"):
        untrusted_files.read(run, "job/file", 99)
    assert untrusted_files.tail(run, "job/file", 7) == "x" * 7


def test_a_replaced_file_is_new_and_a_link_in_its_place_is_not_followed(run: pathlib.Path) -> None:
    (run / "job" / "file").symlink_to("../../outside/secret")
    untrusted_files.replace(run, "job/file", b"ours")
    assert untrusted_files.read(run, "job/file") == b"ours"
    assert (run.parent / "outside" / "secret").read_text() == SECRET
    assert os.listdir(run / "job") == ["file"]


def test_removing_follows_no_link(run: pathlib.Path) -> None:
    (run / "job" / "deep").mkdir()
    (run / "job" / "deep" / "link").symlink_to("../../../outside", target_is_directory=True)
    (run / "job" / "link").symlink_to("../../outside", target_is_directory=True)
    untrusted_files.remove_tree(run, "job/link")
    untrusted_files.remove_tree(run, "job/deep")
    untrusted_files.remove_tree(run, "job/deep")
    assert os.listdir(run / "job") == []
    assert (run.parent / "outside" / "secret").read_text() == SECRET


def test_only_regular_files_are_listed(run: pathlib.Path) -> None:
    (run / "job" / "deep").mkdir()
    (run / "job" / "deep" / "file").write_text("x")
    (run / "job" / "link").symlink_to("../../outside", target_is_directory=True)
    os.mkfifo(run / "job" / "pipe")
    assert untrusted_files.files_below(run, "job") == ["job/deep/file"]
    assert untrusted_files.names_in(run, "job") == ["deep", "link", "pipe"]
    assert untrusted_files.files_below(run, "nothing") == untrusted_files.names_in(run, "nothing") == []


def test_a_folder_is_not_made_behind_a_link(run: pathlib.Path) -> None:
    untrusted_files.make_folder(run, "events/node0")
    assert (run / "events" / "node0").is_dir()
    (run / "logs").symlink_to("../outside", target_is_directory=True)
    with pytest.raises(FaultError, match="not a plain folder"):
        untrusted_files.make_folder(run, "logs/node0")
    assert os.listdir(run.parent / "outside") == ["secret"]


@given(st.lists(st.sampled_from(["..", "a", ".", "", "b"]), min_size=1, max_size=5).map("/".join))
def test_no_path_leaves_its_root(path: str) -> None:
    root = pathlib.Path("/nonexistent")
    if path.startswith("/") or ".." in path.split("/") or not path:
        with pytest.raises(ValueError, match="not below"):
            untrusted_files.read(root, path)
