"""Simulates the metadata servers of EC2, GCP and Azure, with their eviction notices, at one address on a node.

EC2 requests need a session token (IMDSv2), and `spot/instance-action` answers 404 before an eviction notice. GCP's
`instance/preempted` answers FALSE or TRUE, and can wait for a change. Azure's scheduled events can be acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import json
import secrets
import socket
import time
import urllib.parse
from dataclasses import dataclass, field
from email.utils import formatdate

from harness.errors import UsageError
from harness.node.compat import TIMEOUTS

PROVIDERS = ("ec2", "gcp", "azure")
REQUEST_BYTES_MAX = 16 * 2**10
REQUEST_S_MAX = 10.0
_NOT_SENT: tuple[type[Exception], ...] = (asyncio.IncompleteReadError, asyncio.LimitOverrunError)
WAIT_S_MAX = 3600.0
TOKEN_TTL_S_MAX = 21600


@dataclass(frozen=True)
class HttpRequest:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]  # names in lower case
    body: bytes


@dataclass(frozen=True)
class Reply:
    """An HTTP reply of the simulated metadata server. `notice` is True if the reply holds an eviction notice."""

    status: int
    body: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    notice: bool = False


@dataclass(frozen=True)
class Notice:
    provider: str
    at_s: float
    event_id: str


def environment(endpoint: str) -> dict[str, str]:
    """Returns environment variables that make the clouds' own libraries use the metadata server at `endpoint`
    (`host:port`)."""
    host = endpoint.removesuffix(":80")
    return {
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://{host}",
        "GCE_METADATA_HOST": host,
        "CHAOS_METADATA": f"http://{host}",
    }


class Endpoint:
    def __init__(self, node: str):
        self.node = node
        self.seen = 0
        self._notice: Notice | None = None
        self._announced = asyncio.Event()
        self._acknowledged = False
        self._tokens: dict[str, float] = {}
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    def announce(self, provider: str, in_s: float) -> None:
        if provider not in PROVIDERS:
            raise UsageError(f"unknown metadata provider {provider!r}; choose one of: {', '.join(PROVIDERS)}")
        if not 0 <= in_s < 1e9:
            raise UsageError(f"a notice of {in_s!r} s: write a number of seconds from 0 up")
        self._notice = Notice(provider, time.time() + in_s, secrets.token_hex(16).upper())
        self._announced.set()

    async def serve(self, listener: socket.socket) -> None:
        self._server = await asyncio.start_server(self._handle, sock=listener, limit=REQUEST_BYTES_MAX)

    def close(self) -> None:
        """Closes the listening socket and all connections, because open sockets keep the node's network namespace
        alive."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with contextlib.suppress(OSError, *TIMEOUTS, *_NOT_SENT):  # nobody to answer
                request = await asyncio.wait_for(_read_request(reader), REQUEST_S_MAX)
                reply = await self._reply(request) if request else Reply(400, "not an HTTP request\n")
                writer.write(_encode(reply))
                await writer.drain()
                self.seen += reply.notice
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _reply(self, request: HttpRequest) -> Reply:
        if request.path.startswith("/latest/"):
            return self._ec2(request)
        if request.path == "/" or request.path.startswith("/computeMetadata/"):
            return await self._gcp(request)
        if request.path.startswith("/metadata/"):
            return self._azure(request)
        return Reply(404)

    def _notice_of(self, provider: str) -> Notice | None:
        return self._notice if self._notice and self._notice.provider == provider else None

    # EC2 ---------------------------------------------------------------------------------------------------
    def _ec2(self, request: HttpRequest) -> Reply:
        if request.path == "/latest/api/token":
            return self._ec2_token(request)
        if request.method != "GET":
            return Reply(405)
        now = time.monotonic()
        if self._tokens.get(request.headers.get("x-aws-ec2-metadata-token", ""), 0.0) < now:
            return Reply(401, "a session token is required\n")
        notice = self._notice_of("ec2")
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(notice.at_s)) if notice else ""
        asked = request.path.removeprefix("/latest/meta-data/")
        if asked == "spot/instance-action" and notice:
            return _json({"action": "terminate", "time": at}, notice=True)
        if asked == "spot/termination-time" and notice:
            return Reply(200, at, notice=True)
        answers = {"instance-life-cycle": "spot", "instance-id": self.node, "hostname": self.node}
        return Reply(200, answers[asked]) if asked in answers else Reply(404)

    def _ec2_token(self, request: HttpRequest) -> Reply:
        ttl = request.headers.get("x-aws-ec2-metadata-token-ttl-seconds", "")
        if request.method != "PUT":
            return Reply(405)
        if not ttl.isdigit() or not 1 <= int(ttl) <= TOKEN_TTL_S_MAX:
            return Reply(400, f"token time to live {ttl!r}: give 1 to {TOKEN_TTL_S_MAX} seconds\n")
        now = time.monotonic()
        self._tokens = {token: until for token, until in self._tokens.items() if until >= now}
        token = secrets.token_urlsafe(40)
        self._tokens[token] = now + int(ttl)
        return Reply(200, token, {"X-Aws-Ec2-Metadata-Token-Ttl-Seconds": ttl})

    # GCP ---------------------------------------------------------------------------------------------------
    async def _gcp(self, request: HttpRequest) -> Reply:
        flavor = {"Metadata-Flavor": "Google"}
        if request.path == "/":
            return Reply(200, "computeMetadata/\n", flavor)
        if request.headers.get("metadata-flavor") != "Google":
            return Reply(403, "the header Metadata-Flavor: Google is missing\n", flavor)
        asked = request.path.removeprefix("/computeMetadata/v1/instance/")
        if asked == "preempted":
            return await self._gcp_preempted(request, flavor)
        answers = {"maintenance-event": "NONE", "name": self.node, "hostname": self.node}
        return Reply(200, answers[asked], flavor) if asked in answers else Reply(404, headers=flavor)

    async def _gcp_preempted(self, request: HttpRequest, flavor: dict[str, str]) -> Reply:
        known = request.query.get("last_etag")
        if request.query.get("wait_for_change") == "true" and known in (None, self._gcp_etag()):
            limit = request.query.get("timeout_sec", "")
            await self._gcp_change(float(limit) if limit.isdigit() else WAIT_S_MAX)
        notice = self._notice_of("gcp")
        headers = flavor | {"ETag": self._gcp_etag()}
        return Reply(200, "TRUE" if notice else "FALSE", headers, notice=notice is not None)

    async def _gcp_change(self, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        with contextlib.suppress(*TIMEOUTS):  # unchanged: the reply says so
            while self._notice_of("gcp") is None:
                await asyncio.wait_for(self._announced.wait(), deadline - time.monotonic())
                if self._notice_of("gcp") is None:
                    self._announced.clear()  # another provider's notice

    def _gcp_etag(self) -> str:
        notice = self._notice_of("gcp")
        return notice.event_id[:16].lower() if notice else "0" * 16

    # Azure -------------------------------------------------------------------------------------------------
    def _azure(self, request: HttpRequest) -> Reply:
        if request.headers.get("metadata", "").lower() != "true":
            return _json({"error": "Bad request. Required metadata header not specified"}, status=400)
        if "api-version" not in request.query:
            return _json({"error": "Bad request. api-version was not specified in the request"}, status=400)
        if request.path == "/metadata/instance":
            return _json({"compute": {"name": self.node, "priority": "Spot"}})
        if request.path.rstrip("/") != "/metadata/scheduledevents":
            return Reply(404)
        notice = self._notice_of("azure")
        if request.method == "POST":
            return self._azure_acknowledge(request, notice)
        events = [self._azure_event(notice)] if notice else []
        document = {"DocumentIncarnation": 1 + len(events), "Events": events}
        return _json(document, notice=notice is not None)

    def _azure_event(self, notice: Notice) -> dict[str, object]:
        return {
            "EventId": notice.event_id,
            "EventStatus": "Started" if self._acknowledged else "Scheduled",
            "EventType": "Preempt",
            "ResourceType": "VirtualMachine",
            "Resources": [self.node],
            "NotBefore": "" if self._acknowledged else formatdate(notice.at_s, usegmt=True),
            "Description": "",
            "EventSource": "Platform",
            "DurationInSeconds": -1,
        }

    def _azure_acknowledge(self, request: HttpRequest, notice: Notice | None) -> Reply:
        try:
            starts = [start["EventId"] for start in json.loads(request.body)["StartRequests"]]
        except (ValueError, KeyError, TypeError):
            return _json({"error": "Bad request. StartRequests is missing"}, status=400)
        if notice is None or notice.event_id not in starts:
            return Reply(404)
        self._acknowledged = True
        return Reply(200)


def _json(document: object, status: int = 200, notice: bool = False) -> Reply:
    return Reply(status, json.dumps(document), {"Content-Type": "application/json"}, notice)


async def _read_request(reader: asyncio.StreamReader) -> HttpRequest | None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip("\r\n").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return None
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    length = headers.get("content-length", "0")
    if not length.isdigit() or int(length) > REQUEST_BYTES_MAX:
        return None
    body = await reader.readexactly(int(length))
    target = urllib.parse.urlsplit(words[1])
    return HttpRequest(words[0], target.path, dict(urllib.parse.parse_qsl(target.query)), headers, body)


def _encode(reply: Reply) -> bytes:
    body = reply.body.encode()
    headers = {"Content-Type": "text/plain"} | reply.headers
    headers |= {"Content-Length": str(len(body)), "Connection": "close"}
    lines = [f"HTTP/1.1 {reply.status} {http.HTTPStatus(reply.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
