"""Defines the live page as an ASGI application: HTML page, event stream, buttons, logs, charts, and a route for
alerts."""

from __future__ import annotations

import json
import pathlib
import re
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import TimeoutError as NoReply
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from harness.errors import FaultError
from harness.gameday.page import alerts
from harness.gameday.page.access import LOOKS, MAY, Access
from harness.gameday.page.connection_limits import STAYS_OPEN
from harness.gameday.page.hub import Hub
from harness.gameday.requests import TEXT_MAX, Ask, Desk
from harness.log import untrusted_files
from harness.report import html_page
from harness.report.words import PHASE_MEANING, plain

BODY_BYTES_MAX = 256 * 1024
WHO_MAX = 60
REPLY_S = 3.0
LOG_BYTES = 6000
CHART_KEPT_S = 2.0
PHASES = ("running", *PHASE_MEANING)  # each has its colour in the style sheet of the reports
STREAMS_MAX = 100  # most open pages; buttons, notes and alerts work without a stream
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
REPORT_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)  # the page of a report has a stricter one in itself: its own script alone
REPORT_BYTES_MAX = 64 * 2**20
_REPORT = re.compile(r"(rehearsals/[^/]+/)?report\.html")
BEARER = "send Authorization: Bearer and a token that may do this"
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

Chart = Callable[[bool], str]  # narrow or wide → SVG of ours; empty: nothing to draw yet


class Page:
    """Answers the requests to the live page. `cookie` is the prefix of all cookie names, and contains the port, because
    browsers share cookies between the ports of a host."""

    def __init__(self, access: Access, hub: Hub, desk: Desk, run_dir: pathlib.Path, chart: Chart, cookie: str):
        self.access, self.hub, self.desk, self.run_dir = access, hub, desk, run_dir
        self.cookie = cookie
        self._chart, self._drawn = chart, dict[bool, tuple[float, str]]()

    def app(self) -> ASGIApp:
        routes = [
            Route("/", self.index),
            Route("/page.css", _file("text/css", "report.css", f"{__package__}/page.css")),
            Route("/page.js", _file("text/javascript", f"{__package__}/page.js")),
            Route("/events", self.events),
            Route("/log", self.log),
            Route("/chart", self.chart),
            Route("/report/{path:path}", self.report),
            Route("/act", self.act, methods=["POST"]),
            Route("/notes", self.notes, methods=["POST"]),
            Route("/alerts", self.alerts, methods=["POST"]),
        ]

        @asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            self.hub.start()
            yield

        return _Guard(Starlette(routes=routes, lifespan=lifespan), self.access)

    def _role(self, request: Request) -> str | None:
        token = request.query_params.get("token")
        role = self.access.role_of(token) if token else self._role_of_cookie(request)
        return role if role in LOOKS else None

    def _role_of_cookie(self, request: Request) -> str | None:
        wanted = request.query_params.get("as")
        for role in LOOKS[::-1] if wanted is None else (wanted,):
            if self.access.role_of_cookie(request.cookies.get(f"{self.cookie}-{role}", "")) == role:
                return role
        return None

    async def index(self, request: Request) -> Response:
        role = self._role(request)
        if role is None:
            return HTMLResponse(html_page.fill(f"{__package__}/closed.jinja"), status_code=403)
        page = html_page.fill(f"{__package__}/page.jinja", role=role, may=MAY[role], phases=PHASES)
        response = HTMLResponse(page)
        cookie = f"{self.cookie}-{role}", self.access.cookies[role]
        response.set_cookie(*cookie, httponly=True, samesite="strict", secure=self.access.secure)
        return response

    async def events(self, request: Request) -> Response:
        role = self._role(request)
        if role is None:
            return _refused("no token, or a wrong token")
        if self.hub.streams >= STREAMS_MAX:
            return JSONResponse({"refused": f"{STREAMS_MAX} pages are open already"}, status_code=503)
        setattr(request.state, STAYS_OPEN, True)
        return _Stream(self.hub, role)

    async def log(self, request: Request) -> Response:
        if self._role(request) is None:
            return _refused("no token, or a wrong token")
        view, wanted = self.hub.view, request.query_params.get("node", "")
        if view is None or wanted not in view.nodes:
            return PlainTextResponse("There is no such node.", status_code=404)
        return PlainTextResponse(await run_in_threadpool(newest_words, self.run_dir, wanted))

    async def report(self, request: Request) -> Response:
        if self._role(request) is None:
            return _refused("no token, or a wrong token")
        path = request.path_params["path"] or "report.html"
        view = self.hub.view
        try:
            if view is None or not view.report or not _REPORT.fullmatch(path):
                raise FileNotFoundError
            text = await run_in_threadpool(untrusted_files.read, self.run_dir, path, REPORT_BYTES_MAX)
        except (FaultError, OSError):
            return PlainTextResponse("There is no such report yet.", status_code=404)
        return HTMLResponse(text, headers={"content-security-policy": REPORT_POLICY})

    async def chart(self, request: Request) -> Response:
        if self._role(request) is None:
            return _refused("no token, or a wrong token")
        narrow = request.query_params.get("narrow") == "1"
        return Response(await run_in_threadpool(self._draw, narrow), media_type="image/svg+xml")

    def _draw(self, narrow: bool) -> str:
        drawn_at, text = self._drawn.get(narrow, (0.0, ""))
        if time.monotonic() - drawn_at > CHART_KEPT_S:
            text = self._chart(narrow)
            self._drawn[narrow] = time.monotonic(), text
        return text

    async def act(self, request: Request) -> Response:
        """Handles a press of a button. A request needs a role's cookie, the page's own origin, and a JSON body; no
        other website can send all three."""
        role = self._role_of_cookie(request)
        if role not in LOOKS:
            return _refused("no token, or a wrong token")
        if not self.access.is_own_origin(request.headers.get("origin", ""), request.headers.get("host", "")):
            return _refused("this request does not come from the page itself")
        return await self._hand_in(request, role)

    async def notes(self, request: Request) -> Response:
        role = self._bearer(request)
        return await self._hand_in(request, role) if role in LOOKS else _refused(BEARER)

    async def _hand_in(self, request: Request, role: str) -> Response:
        try:
            wanted = _asked(await _json(request), role)
        except ValueError as error:
            return JSONResponse({"refused": str(error)}, status_code=400)
        if wanted.action not in MAY[role]:
            return _refused(f"this token may not {wanted.action}")
        if not self.desk.hand_in(wanted):
            return JSONResponse({"refused": "too many requests at once; try again"}, status_code=429)
        try:
            refused = await run_in_threadpool(wanted.reply.result, REPLY_S)
        except NoReply:
            return JSONResponse({"refused": "the job was asked, but has not answered yet"}, status_code=504)
        return JSONResponse({"refused": refused}, status_code=409 if refused else 200)

    def _bearer(self, request: Request) -> str | None:
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        return self.access.role_of(token.strip()) if kind.lower() == "bearer" else None

    async def alerts(self, request: Request) -> Response:
        if self._bearer(request) not in ("alerts", "master"):
            return _refused(BEARER)
        try:
            found = alerts.read(await _json(request))
        except ValueError as error:
            return JSONResponse({"refused": str(error)}, status_code=400)
        taken = [self.desk.hand_in(each) for each in found]
        return JSONResponse({"taken": sum(taken)}, status_code=200 if all(taken) else 429)


class _Stream(StreamingResponse):
    def __init__(self, hub: Hub, role: str):
        super().__init__(hub.stream(role), media_type="text/event-stream")
        self._hub = hub

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._hub.streams += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._hub.streams -= 1


def _refused(why: str) -> Response:
    return JSONResponse({"refused": why}, status_code=403)


async def _json(request: Request) -> Any:
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise ValueError("send application/json")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            raise ValueError(f"more than the {BODY_BYTES_MAX // 1024} KiB that are allowed")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError("not valid JSON") from error


def _asked(given: Any, role: str) -> Ask:
    if not isinstance(given, dict) or not isinstance(given.get("action"), str):
        raise ValueError("an action is needed")
    text, who = given.get("text", ""), given.get("who", "")
    if not isinstance(text, str) or not isinstance(who, str):
        raise ValueError("text and who are text")
    if len(text) > TEXT_MAX or len(who) > WHO_MAX:
        raise ValueError(f"at most {TEXT_MAX} characters of text, and {WHO_MAX} of a name")
    known = frozenset[str]().union(*MAY.values())
    if given["action"] not in known:
        raise ValueError(f"{given['action'][:40]!r} is not an action; choose one of: {', '.join(sorted(known))}")
    return Ask(given["action"], role, text.strip(), who.strip())


def newest_words(run_dir: pathlib.Path, node: str) -> str:
    try:
        names = [name for name in untrusted_files.names_in(run_dir, "logs") if name.startswith(f"{node}.")]
        names = [name for name in names if name.removeprefix(f"{node}.").removesuffix(".log").isdigit()]
        newest = max(names, key=lambda name: int(name.split(".")[-2]))
        words = untrusted_files.tail(run_dir, f"logs/{newest}", LOG_BYTES)
    except (FaultError, OSError, ValueError):
        return "Nothing was written yet."
    return "\n".join(plain(line) for line in words.splitlines()) or "Nothing was written yet."


class _Guard:
    """Refuses requests for foreign host names (DNS rebinding), and adds security headers to every answer."""

    def __init__(self, inner: ASGIApp, access: Access):
        self.inner, self.access = inner, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.inner(scope, receive, send)
            return

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        inner = self.inner
        if not self.access.is_own_host(Headers(scope=scope).get("host", "")):
            inner = PlainTextResponse("This page has another address.", status_code=421)
        await inner(scope, receive, send_on)


def _file(media_type: str, *names: str) -> Callable[[Request], Response]:
    def answer(request: Request) -> Response:
        return Response("\n".join(map(html_page.resource, names)), media_type=media_type)

    return answer
