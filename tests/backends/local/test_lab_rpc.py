"""Messages between harness, labd and init: nothing is mixed up, nothing waits for ever."""

import contextlib
import errno
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import HANG_S

from harness import errors
from harness.node import rpc

MESSAGES = st.lists(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=20), max_size=3), max_size=4)


@settings(max_examples=50, deadline=None)
@given(MESSAGES, st.integers(1, 7))
def test_messages_arrive_as_sent_however_the_stream_is_cut(messages: list[rpc.Message], size: int) -> None:
    data = b"".join(rpc.pack(message) for message in messages)

    class Cut:
        """A socket that hands out at most `size` bytes at a time."""

        position = 0

        def recv(self, wanted: int) -> bytes:
            chunk = data[self.position : self.position + min(wanted, size)]
            self.position += len(chunk)
            return chunk

    link: Any = Cut()
    assert [rpc.receive(link) for _ in messages] == messages
    with pytest.raises(ConnectionError):
        rpc.receive(link)


@pytest.mark.parametrize(
    "error", [errors.NodeGone("gone"), errors.UsageError("bad"), rpc.StageError("veth", errno.EPERM, "refused")]
)
def test_our_errors_cross_the_line_and_others_become_the_backends(error: errors.ChaosError) -> None:
    back = rpc.to_error(rpc.error_to_message(error))
    assert (type(back), str(back), vars(back)) == (type(error), str(error), vars(error))
    other = rpc.to_error(rpc.error_to_message(KeyError("x")))
    assert isinstance(other, errors.BackendError) and "KeyError: 'x'" in str(other)


@contextlib.contextmanager
def client() -> Iterator[tuple[rpc.Line, socket.socket, threading.Event, list[rpc.Message]]]:
    ours, theirs = socket.socketpair()
    ended, events = threading.Event(), list[rpc.Message]()
    asking = rpc.Line(ours, events.append, ended.set)
    with theirs:
        yield asking, theirs, ended, events
    asking.close()


def test_a_call_without_an_answer_ends_in_time() -> None:
    with client() as (asking, theirs, _, events):
        with pytest.raises(errors.BackendError, match=r"node\.pids: no answer from the lab within 0\.05 s"):
            asking.call("node.pids", 0.05)
        late = rpc.receive(theirs)
        rpc.send(theirs, {"id": late["id"], "result": "late"})
        rpc.send(theirs, {"event": "exit"})
        answered = threading.Thread(target=lambda: rpc.send(theirs, {"id": rpc.receive(theirs)["id"], "result": 5}))
        answered.start()
        assert asking.call("node.pids", HANG_S) == 5, "a late answer goes to nobody"
        answered.join()
        assert events == [{"event": "exit"}]


def test_a_lab_that_ends_ends_the_calls() -> None:
    with client() as (asking, theirs, ended, _):
        failures: list[Exception] = []

        def ask() -> None:
            try:
                asking.call("node.kill", HANG_S)
            except errors.BackendError as error:
                failures.append(error)

        caller = threading.Thread(target=ask)
        caller.start()
        rpc.receive(theirs)
        theirs.close()
        caller.join()
        assert len(failures) == 1
        assert ended.wait()
        with pytest.raises(errors.BackendError, match="the lab has ended"):
            asking.call("node.pids", HANG_S)


def test_a_stream_that_is_not_ours_is_the_end() -> None:
    with client() as (_, theirs, ended, _):
        theirs.sendall(struct.pack(">I", rpc.FRAME_BYTES_MAX + 1))
        assert ended.wait()
