from __future__ import annotations

import os
import pathlib

import pytest

from harness.run.last_words import LENGTH_MAX, TAIL_BYTES, first_error, words_of


def log_with(folder: pathlib.Path, text: str, name: str = "node0.1.log") -> pathlib.Path:
    (folder / name).write_text(text)
    return folder / name


MARK = (
    "E1122 12:11:47.8 31157 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {}) local_rank: 1"
)
TABLE = """Traceback (most recent call last):
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
Root Cause (first observed failure):
  exitcode  : 1 (pid: 31169)
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""
CLOSED = "    raise RendezvousClosedError\ntorch.distributed.elastic.rendezvous.api.RendezvousClosedError\n"
LOST = "[rank1]: RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.77.0.1]:2345"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a\nValueError: first\nRuntimeError: second\n  bye  \n\n", "ValueError: first"),
        ("a\n  bye  \n\n", "bye"),
        ("cp: error: no room\nbye", "cp: error: no room"),
        ("\n", "its log is empty"),
        (f"ValueError: old\n{MARK.format(1)}\nKeyError: 'new'\n{MARK.format(1)}\n{TABLE}", "KeyError: 'new'"),
        (f"{LOST}\nValueError: its own\n{MARK.format(1)}\n{TABLE}", "ValueError: its own"),
        (f"[rank0]: OSError: bad file\n{MARK.format(1)}\n{CLOSED}", "OSError: bad file"),
        (f"[rank0]: OSError: bad file\n{MARK.format(1)}\n{CLOSED}ValueError: later", "ValueError: later"),
        (CLOSED, CLOSED.splitlines()[1]),
        (f"{LOST}\n{MARK.format(-11)}\n{TABLE}", "the worker with local rank 1 was ended by SIGSEGV"),
        (f"{LOST}\n{MARK.format(1)}\n{TABLE}", LOST.removeprefix("[rank1]: ")),
        (f"no such dataset\n{MARK.format(1)}\n{TABLE}", "no such dataset"),
        (f"{MARK.format(3)}\n{TABLE}", "a worker ended with 3 and wrote nothing"),
        (f"{LOST}\nlaunch: RendezvousTimeoutError: 1 of 2 came", "RendezvousTimeoutError: 1 of 2 came"),
        ("a.spawn.ProcessRaisedException: \n\n-- Process 0\nOSError: disk full", "OSError: disk full"),
        (f"KeyError: 'x'\n{MARK.format(1)}\na.b.RendezvousTimeoutError\n", "a.b.RendezvousTimeoutError"),
        ("torch.OutOfMemoryError: CUDA\nRuntimeError: then this", "torch.OutOfMemoryError: CUDA"),
    ],
)
def test_the_first_error_of_the_life_that_ended_it(tmp_path: pathlib.Path, text: str, words: str) -> None:
    assert words_of(log_with(tmp_path, text)).text == words


def test_an_error_of_its_own_tells_more_than_a_lost_peer_on_another_node(tmp_path: pathlib.Path) -> None:
    logs = [log_with(tmp_path, LOST), log_with(tmp_path, "ValueError: mine", "node1.1.log"), tmp_path / "absent.log"]
    assert first_error(logs) == f"ValueError: mine ({tmp_path.name}/node1.1.log)"
    assert first_error([tmp_path / "absent.log"]) == "it left no log"


def test_a_huge_log_is_read_from_its_end(tmp_path: pathlib.Path) -> None:
    log = tmp_path / "node0.1.log"
    with log.open("wb") as file:
        file.write(b"Error: long ago\n")
        file.truncate(10**12)
        file.seek(0, os.SEEK_END)
        file.write(b"\nError: now" + b"!" * TAIL_BYTES)
    assert words_of(log).text == "!" * LENGTH_MAX


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
    assert words_of(log).text.startswith("its log cannot be read: ")
