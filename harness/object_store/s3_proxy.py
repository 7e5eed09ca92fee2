"""Runs a proxy in front of an object store (S3 or GCS) that demands the run's key, and injects faults.

    s3_proxy HOST PORT UPSTREAM FOLDER

The proxy listens at HOST and PORT; the store listens at the socket file UPSTREAM. Requests must be signed with the
run's key (`CHAOS_KEY`), whose name is `chaos`; GCS requests have the key as bearer token. The proxy reads
`FOLDER/rule.json`, which describes the fault, before each request. The rule has `kind` (`error`, `throttle`, `slow`,
`reset`, `stale`, `short_read`, `stale_list`, `lost_part`), `share` of the requests, `seed`, `delay_s`, and a `path`
pattern of objects. Counts of the disturbed requests are in `FOLDER/counts.json`. The proxy prints its port once it
listens, and serves one request for each connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import json
import math
import os
import pathlib
import random
import re
import socket
import struct
import sys
import time
from typing import Any

from harness.node.compat import TIMEOUTS
from harness.node.node_paths import KEY_ENV, KEY_NAME
from harness.object_store import dialects
from harness.object_store.dialects import Asked, Head
from harness.object_store.s3_signature import Key

HEAD_BYTES_MAX = 1 << 16
CHUNK_BYTES = 1 << 16
LIMIT_S = 60.0

LIST_BYTES_MAX = 16 << 20
LISTS_MAX = 256  # answers that are remembered

_REFUSALS = {"error": dialects.ERROR, "throttle": dialects.THROTTLE, "stale": dialects.MISSING}
_PART = re.compile(rb"<Part>.*?</Part>", re.S)
_HUNG_UP: tuple[type[Exception], ...] = (
    *(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError),
    *TIMEOUTS,
)  # either side, or it does not speak HTTP


class Proxy:
    def __init__(self, upstream: str, folder: pathlib.Path, key: Key):
        self._upstream, self._key = upstream, key
        self._folder = folder
        self._dice = random.Random(0)
        self._rows = self._left = self._place = 0  # rows of requests so far; in this one: those left, and the drawn one
        self._rule: dict[str, Any] | None = None
        self._counts = {"requests": 0, "matched": 0, "acted": 0, "delayed_ns": 0}
        self._written: dict[str, float] = {}  # path of an object → when it was last written
        self._changed: dict[str, float] = {}  # bucket → when any object there was last written or deleted
        self._lists: dict[str, tuple[float, bytes]] = {}  # what asked for a list → when, and the answer

    async def serve(self, client: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(*_HUNG_UP):
            await asyncio.wait_for(self._handle(client, answer), LIMIT_S)
        answer.close()

    async def _handle(self, client: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
        head = parse_head(await client.readuntil(b"\r\n\r\n"))
        dialect = dialects.of(head)
        if not dialect.allowed(head, self._key, time.time()):
            answer.write(dialect.refusal(head, dialects.FORBIDDEN))
            return await answer.drain()
        asked = dialect.asked(head)
        rule = self._due(asked)
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
        if rule and rule["kind"] in _REFUSALS:
            answer.write(dialect.refusal(head, _REFUSALS[rule["kind"]]))
            return await answer.drain()
        if asked.operation in (dialects.WRITE, dialects.COMPLETE, dialects.DELETE):
            self._changed[asked.bucket] = self._written[asked.path] = time.monotonic()
        if asked.operation == dialects.COMPLETE and len(_PART.findall(body)) > 1 and self._acts("lost_part", asked):
            head, body = self._without_a_part(head, body)
        await self._forward(head, asked, body, answer)

    def _due(self, asked: Asked) -> dict[str, Any] | None:
        self._load_rule()
        self._counts["requests"] += 1
        rule = self._rule
        if rule is None or not self._concerns(rule, asked):
            return None
        return rule if self._acts(rule["kind"], asked) else None

    def _acts(self, kind: str, asked: Asked) -> bool:
        rule = self._rule
        if rule is None or rule["kind"] != kind:
            return False
        if kind != "stale_list" and not fnmatch.fnmatch(asked.path, rule["path"]):
            return False
        self._counts["matched"] += 1
        acts = self._drawn(rule["share"])
        self._count(acted=int(acts))
        return acts

    def _drawn(self, share: float) -> bool:
        """Decides at random whether to disturb a request. Even among few requests, the disturbed fraction is about
        `share`."""
        rare = min(share, 1 - share)
        if rare == 0:
            return True
        if not self._left:
            self._rows += 1
            self._left = math.ceil(self._rows / rare) - math.ceil((self._rows - 1) / rare)
            self._place = self._dice.randrange(self._left)
        self._left -= 1
        return (self._left == self._place) == (share <= 0.5)

    def _concerns(self, rule: dict[str, Any], asked: Asked) -> bool:
        if rule["kind"] == "reset":
            return asked.operation == dialects.WRITE
        if rule["kind"] == "stale":
            fresh = time.monotonic() - self._written.get(asked.path, float("-inf")) < rule["delay_s"]
            return asked.operation in (dialects.READ, dialects.STAT) and fresh
        return rule["kind"] in ("error", "throttle", "slow")

    def _without_a_part(self, head: Head, body: bytes) -> tuple[Head, bytes]:
        lost = self._dice.choice(list(_PART.finditer(body)))
        body = body[: lost.start()] + body[lost.end() :]
        return with_header(head, "Content-Length", str(len(body))), body

    def _load_rule(self) -> None:
        try:
            rule = json.loads((self._folder / "rule.json").read_text())
        except (OSError, ValueError):
            rule = None
        if rule is not None and rule != self._rule:
            self._dice = random.Random(rule["seed"])
            self._rows = self._left = 0
            self._counts = dict.fromkeys(self._counts, 0)
        self._rule = rule

    def _count(self, **more: int) -> None:
        for name, value in more.items():
            self._counts[name] += value
        temporary = self._folder / "counts.new"
        temporary.write_text(json.dumps(self._counts))
        os.replace(temporary, self._folder / "counts.json")

    async def _forward(self, head: Head, asked: Asked, body: bytes, answer: asyncio.StreamWriter) -> None:
        reader, writer = await asyncio.open_unix_connection(self._upstream)
        try:
            writer.write(closing(head) + body)
            await writer.drain()
            if asked.operation == dialects.LIST:
                answer.write(self._listed(head, asked, await read_list(reader)))
            elif asked.operation == dialects.READ and not await self._pass_on(asked, reader, answer):
                return await answer.drain()
            while chunk := await reader.read(CHUNK_BYTES):
                answer.write(chunk)
                await answer.drain()
        finally:
            writer.close()

    async def _pass_on(self, asked: Asked, reader: asyncio.StreamReader, answer: asyncio.StreamWriter) -> bool:
        """Passes the head of the store's answer on to the client. For the fault `short_read`, sends a false length and
        only half of the body, and returns False."""
        told = parse_head(await reader.readuntil(b"\r\n\r\n"))
        size = int(told.headers.get("content-length", "0"))
        if told.target != "200" or size < 2 or not self._acts("short_read", asked):
            answer.write(told.raw)
            return True
        answer.write(with_header(told, "Content-Length", str(size // 2)).raw)
        answer.write(await reader.readexactly(size // 2))
        return False

    def _listed(self, head: Head, asked: Asked, found: bytes) -> bytes:
        now, rule = time.monotonic(), self._rule
        at, before = self._lists.get(head.target, (now, found))
        changed = at < self._changed.get(asked.bucket, 0.0)
        if rule and changed and now - at < rule["delay_s"] and before != found and self._acts("stale_list", asked):
            return before
        if len(self._lists) < LISTS_MAX or head.target in self._lists:
            self._lists[head.target] = now, found
        return found


def parse_head(raw: bytes) -> Head:
    first, *lines = raw.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ", 2)
    headers = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)
    }
    return Head(raw, method, target, headers)


def closing(head: Head) -> bytes:
    """Returns a request's head with `Connection: close`, so that the end of the store's answer is known."""
    lines = head.raw.split(b"\r\n")
    kept = [line for line in lines[:-2] if not line.lower().startswith((b"connection:", b"expect:"))]
    return b"\r\n".join([*kept, b"Connection: close", b"", b""])


async def read_list(reader: asyncio.StreamReader) -> bytes:
    """Reads a list of objects from the store's answer, or about its first `LIST_BYTES_MAX` bytes."""
    found = bytearray()
    while len(found) < LIST_BYTES_MAX and (chunk := await reader.read(CHUNK_BYTES)):
        found += chunk
    return bytes(found)


async def read_body(client: asyncio.StreamReader, head: Head) -> bytes:
    """Reads a request's body unchanged. A chunked body keeps its chunk headers."""
    if "chunked" not in head.headers.get("transfer-encoding", ""):
        return await client.readexactly(int(head.headers.get("content-length", "0")))
    body = b""
    while True:
        line = await client.readuntil(b"\r\n")
        size = int(line.split(b";")[0], 16)
        body += line + await client.readexactly(size + 2)
        if size == 0:
            return body


def with_header(head: Head, name: str, value: str) -> Head:
    gone = (name.lower().encode() + b":", b"x-amz-checksum-", b"x-goog-hash:", b"content-md5:")
    first, *lines = head.raw.split(b"\r\n")[:-2]
    kept = [line for line in lines if not line.lower().startswith(gone)]
    return parse_head(b"\r\n".join([first, *kept, f"{name}: {value}".encode(), b"", b""]))


def reset(answer: asyncio.StreamWriter) -> None:
    answer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    answer.transport.abort()


async def main(host: str, port: int, upstream: str, folder: str) -> None:
    """Runs the proxy in front of an object store. Raises `KeyError` if the environment has no key (CHAOS_KEY)."""
    proxy = Proxy(upstream, pathlib.Path(folder), Key(KEY_NAME, os.environ[KEY_ENV]))
    server = await asyncio.start_server(proxy.serve, host, port, limit=HEAD_BYTES_MAX)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]))
