"""A proxy before an S3-compatible object store that asks for the run's key, and misbehaves as told.

    s3_proxy HOST PORT UPSTREAM FOLDER

It listens at HOST and PORT only; the store listens at the socket file UPSTREAM. Requests must be signed with the run's
key (`CHAOS_KEY`), whose name is `chaos`.
What to do is in `FOLDER/rule.json`, looked at before each request: `kind` (`error`, `throttle`, `slow`, `reset`,
`stale`), `share` of the requests, `seed`, `delay_s`, and `path`, a pattern. What was done is in `FOLDER/counts.json`.
Prints its port once it listens. One request a connection: whoever asks connects again.
"""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import json
import os
import pathlib
import random
import socket
import struct
import sys
import time
from dataclasses import dataclass
from typing import Any

from harness.node.compat import TIMEOUTS
from harness.node.node_paths import KEY_ENV, KEY_NAME
from harness.object_store.s3_signature import Key, is_signed

HEAD_BYTES_MAX = 1 << 16
CHUNK_BYTES = 1 << 16
LIMIT_S = 60.0

_ERRORS = {
    "error": (500, "Internal Server Error", "InternalError", "We encountered an internal error. Please try again."),
    "throttle": (503, "Slow Down", "SlowDown", "Please reduce your request rate."),
    "stale": (404, "Not Found", "NoSuchKey", "The specified key does not exist."),
}
_FORBIDDEN = (403, "Forbidden", "SignatureDoesNotMatch", "The request is not signed with the key of this run.")
_HUNG_UP: tuple[type[Exception], ...] = (
    *(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError),
    *TIMEOUTS,
)  # either side, or it does not speak HTTP


@dataclass(frozen=True)
class Head:
    """The first lines of a request, as they came."""

    raw: bytes
    method: str
    target: str
    headers: dict[str, str]

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


class Proxy:
    def __init__(self, upstream: str, folder: pathlib.Path, key: Key):
        self._upstream, self._key = upstream, key
        self._folder = folder
        self._dice = random.Random(0)
        self._rule: dict[str, Any] | None = None
        self._counts = {"requests": 0, "matched": 0, "acted": 0, "delayed_ns": 0}
        self._written: dict[str, float] = {}  # path → when it was last written

    async def serve(self, client: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        """Serves one request, from its first byte to the end of the connection."""
        with contextlib.suppress(*_HUNG_UP):
            await asyncio.wait_for(self._handle(client, answer), LIMIT_S)
        answer.close()

    async def _handle(self, client: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        head = parse_head(await client.readuntil(b"\r\n\r\n"))
        if not is_signed(head.method, head.target, head.headers, self._key, time.time()):
            answer.write(refusal(head, *_FORBIDDEN))
            return await answer.drain()
        rule = self._due(head)
        if head.headers.get("expect", "").lower() == "100-continue":
            answer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if rule and rule["kind"] == "slow":
            begin_ns = time.monotonic_ns()
            await asyncio.sleep(rule["delay_s"])
            self._count(delayed_ns=time.monotonic_ns() - begin_ns)
        if rule and rule["kind"] == "reset":
            await client.read(CHUNK_BYTES)  # in the middle of what is sent
            return reset(answer)
        body = await read_body(client, head)
        if rule and rule["kind"] in _ERRORS:
            answer.write(refusal(head, *_ERRORS[rule["kind"]]))
            return await answer.drain()
        if head.method in ("PUT", "POST"):
            self._written[head.path] = time.monotonic()
        await self._forward(head, body, answer)

    def _due(self, head: Head) -> dict[str, Any] | None:
        """Returns the rule if it acts on this request."""
        self._load_rule()
        self._counts["requests"] += 1
        rule = self._rule
        if rule is None or not fnmatch.fnmatch(head.path, rule["path"]) or not self._concerns(rule, head):
            return None
        self._counts["matched"] += 1
        acts = self._dice.random() < rule["share"]
        self._count(acted=int(acts))
        return rule if acts else None

    def _concerns(self, rule: dict[str, Any], head: Head) -> bool:
        if rule["kind"] == "reset":
            return head.method == "PUT"
        if rule["kind"] == "stale":
            fresh = time.monotonic() - self._written.get(head.path, float("-inf")) < rule["delay_s"]
            return head.method in ("GET", "HEAD") and fresh
        return True

    def _load_rule(self) -> None:
        try:
            rule = json.loads((self._folder / "rule.json").read_text())
        except (OSError, ValueError):
            rule = None
        if rule is not None and rule != self._rule:
            self._dice = random.Random(rule["seed"])
            self._counts = dict.fromkeys(self._counts, 0)
        self._rule = rule

    def _count(self, **more: int) -> None:
        for name, value in more.items():
            self._counts[name] += value
        temporary = self._folder / "counts.new"
        temporary.write_text(json.dumps(self._counts))
        os.replace(temporary, self._folder / "counts.json")

    async def _forward(self, head: Head, body: bytes, answer: asyncio.StreamWriter) -> None:
        reader, writer = await asyncio.open_unix_connection(self._upstream)
        try:
            writer.write(closing(head) + body)
            await writer.drain()
            while chunk := await reader.read(CHUNK_BYTES):
                answer.write(chunk)
                await answer.drain()
        finally:
            writer.close()


def parse_head(raw: bytes) -> Head:
    first, *lines = raw.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ", 2)
    headers = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)
    }
    return Head(raw, method, target, headers)


def closing(head: Head) -> bytes:
    """Returns the head for the store with `Connection: close`, so that the answer's end is known."""
    lines = head.raw.split(b"\r\n")
    kept = [line for line in lines[:-2] if not line.lower().startswith((b"connection:", b"expect:"))]
    return b"\r\n".join([*kept, b"Connection: close", b"", b""])


async def read_body(client: asyncio.StreamReader, head: Head) -> bytes:
    """Reads the body as it came, chunks and all."""
    if "chunked" not in head.headers.get("transfer-encoding", ""):
        return await client.readexactly(int(head.headers.get("content-length", "0")))
    body = b""
    while True:
        line = await client.readuntil(b"\r\n")
        size = int(line.split(b";")[0], 16)
        body += line + await client.readexactly(size + 2)
        if size == 0:
            return body


def refusal(head: Head, status: int, reason: str, code: str, message: str) -> bytes:
    """Returns an answer in the form of S3."""
    body = f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
    text = (
        f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/xml\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return text.encode() + (b"" if head.method == "HEAD" else body.encode())


def reset(answer: asyncio.StreamWriter) -> None:
    """Ends the connection with RST instead of FIN."""
    answer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    answer.transport.abort()


async def main(host: str, port: int, upstream: str, folder: str) -> None:
    """Raises `KeyError` where there is no key to ask for."""
    proxy = Proxy(upstream, pathlib.Path(folder), Key(KEY_NAME, os.environ[KEY_ENV]))
    server = await asyncio.start_server(proxy.serve, host, port, limit=HEAD_BYTES_MAX)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]))
