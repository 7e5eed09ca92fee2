"""Probes end in time, whatever they ask, and keep little of what comes."""

import contextlib
import os
import pathlib
import signal
import socket
import threading
import time

from waiting import until

from harness.gameday.day_file import Probe
from harness.gameday.probes import Asking, question


def test_a_server_that_trickles_does_not_answer_for_ever() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def trickle() -> None:
            peer, _ = listening.accept()
            with peer, contextlib.suppress(OSError):  # who asked has gone
                peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                while True:
                    peer.sendall(b"x")
                    time.sleep(0.1)

        threading.Thread(target=trickle, daemon=True).start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        probe = Probe.model_validate({"name": "up", "http": {"url": url}, "timeout": "500ms"})
        asking = Asking([probe])
        asking.ask(probe, "during", "a")
        told = until(lambda: list(asking.answers()), "the answer of the probe")[0]
    assert not told.ok and told.detail == "no answer within 0.5 s"


def test_a_command_that_says_much_ends_and_little_of_it_is_kept() -> None:
    loud = ["sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x; echo end"]
    ok, detail = question(Probe.model_validate({"name": "loud", "command": loud}))
    assert ok and detail.endswith("xend") and len(detail) < 600


def test_a_child_that_is_left_behind_holds_nobody_up(tmp_path: pathlib.Path) -> None:
    command = ["sh", "-c", f"sleep 1000 & echo $! >{tmp_path}/child"]
    ok, _ = question(Probe.model_validate({"name": "left", "command": command, "timeout": "5m"}))
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)  # it was still there
    assert ok
