from __future__ import annotations

import os
import pathlib

import pytest

from harness.run.last_words import LENGTH_MAX, TAIL_BYTES, last_words


def test_the_last_line_that_looks_like_an_error(tmp_path: pathlib.Path) -> None:
    log = tmp_path / "node0.1.log"
    log.write_text("a\nValueError: first\nRuntimeError: second\n  bye  \n\n")
    assert last_words(log) == "RuntimeError: second"
    log.write_text("a\n  bye  \n\n")
    assert last_words(log) == "bye"
    log.write_text("\n")
    assert last_words(log) == "its log is empty"
    assert last_words(tmp_path / "other.log") == "it left no log"


def test_a_huge_log_is_read_from_its_end(tmp_path: pathlib.Path) -> None:
    log = tmp_path / "node0.1.log"
    with log.open("wb") as file:
        file.write(b"Error: long ago\n")
        file.truncate(10**12)
        file.seek(0, os.SEEK_END)
        file.write(b"\nError: now" + b"!" * TAIL_BYTES)
    assert last_words(log) == "!" * LENGTH_MAX


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "dangling"])
def test_what_is_no_regular_file_is_not_followed(tmp_path: pathlib.Path, kind: str) -> None:
    log, secret = tmp_path / "node0.1.log", tmp_path / "secret"
    secret.write_text("Error: the root password")
    if kind == "link":
        log.symlink_to(secret)
    elif kind == "dangling":
        log.symlink_to(tmp_path / "nothing")
    elif kind == "pipe":
        os.mkfifo(log)
    else:
        log.mkdir()
    assert last_words(log).startswith("its log cannot be read: ")
