"""Serves the metrics of a job over HTTP, from threads beside the job's loop."""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import os
import re
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app

from harness.campaign.ledger_so_far import ask
from harness.errors import CannotRunError, UsageError
from harness.monitoring.monitor import ENDS_S, Books, Monitor

OWN = "127.0.0.1"
ASKED_WITHIN_S = 5.0  # a connection that asks nothing is closed
ENDS_WITHIN_S = 10.0  # every connection, however busy it is
CONNECTIONS_MAX = 32
HOSTS = "CHAOS_METRICS_HOSTS"  # in the environment: more names that scrapers call this host, with commas
PRIVATE = ("localhost", "local", "internal", "svc", "home.arpa")  # endings of names that nobody can buy
MAKES_ROOM_S = 0.5
KEPT_S = 0.2  # an answer serves all who ask so soon after it
_WHERE = re.compile(r"(?P<address>[^:\[\]]*|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})")
_ASKED = ("REQUEST_METHOD", "HTTP_ACCEPT", "HTTP_ACCEPT_ENCODING")  # what an answer depends on

Answer = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def place(where: str) -> tuple[str, int]:
    """Splits `where`, such as `:9464`, `10.0.0.5:9464` or `[::1]:9464`, into address (default 127.0.0.1) and port.
    Raises `UsageError` if `where` is not of the form `ADDRESS:PORT` or `:PORT`."""
    found = _WHERE.fullmatch(where)
    if found is None or int(found["port"]) > 65535:
        raise UsageError(f"--metrics {where!r}: write :PORT, or ADDRESS:PORT to serve others, e.g. :9464")
    address = found["address"].strip("[]") or OWN
    if address != "localhost":
        try:
            ipaddress.ip_address(address)
        except ValueError as error:
            raise UsageError(f"--metrics {where!r}: {address!r} is no IP address") from error
    return address, int(found["port"])


def is_own_host(host: str) -> bool:
    """Returns False for a public host name, by which a web page could read the metrics in a browser (DNS rebinding).
    Returns True for IP addresses, private names, this host's own names, and an empty name, which old scrapers send."""
    name = re.sub(r":\d*\Z", "", host.lower())
    if "." not in name:
        return True
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(name.strip("[]"))
        return True
    more = (each.strip().lower() for each in os.environ.get(HOSTS, "").split(","))
    return name.endswith(tuple(f".{ending}" for ending in PRIVATE)) or name in {_full_name().lower(), *more}


@functools.cache
def _full_name() -> str:
    return socket.getfqdn()


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    """A web server for metrics. Above `CONNECTIONS_MAX` connections, a new connection replaces the oldest
    connection."""

    daemon_threads = True
    request_queue_size = 32

    def __init__(self, *given: Any) -> None:
        self._room = threading.Semaphore(CONNECTIONS_MAX)
        self._since: dict[socket.socket, float] = {}  # of each connection, the oldest first
        super().__init__(*given)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            for oldest in list(self._since)[:1]:
                _hang_up(oldest)
            if not self._room.acquire(timeout=MAKES_ROOM_S):
                self.shutdown_request(request)
                return
        self._since[request] = time.monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Ends connections that take too long. `socketserver` calls this method twice a second."""
        for request, since in list(self._since.items()):
            if time.monotonic() - since > ENDS_WITHIN_S:
                _hang_up(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._since.pop(request, None)
            self._room.release()

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[0], self.server_address[1]  # type: ignore[assignment]
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores errors of a connection, because they occur if the client is gone."""


def _hang_up(connection: socket.socket) -> None:
    """Shuts a connection down, which also ends the thread that serves the connection."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(WSGIRequestHandler):
    timeout = ASKED_WITHIN_S

    def address_string(self) -> str:
        return str(self.client_address[0])

    def log_message(self, format: str, *args: Any) -> None:
        return None


class _Kept:
    """Answers requests that come at the same time with one page, so that many scrapers cost no more than one."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._lock = threading.Lock()
        self._pages: dict[tuple[str, ...], tuple[float, str, list[tuple[str, str]], list[bytes]]] = {}

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if not is_own_host(environ.get("HTTP_HOST", "")):
            start("421 Misdirected Request", [("Content-Type", "text/plain")])
            return [f"This host has another name. {HOSTS} allows more of them.\n".encode()]
        if environ.get("PATH_INFO") not in ("/metrics", "/"):
            start("404 Not Found", [("Content-Type", "text/plain")])
            return [b"The metrics are at /metrics.\n"]
        environ = environ | {"QUERY_STRING": ""}
        asked = tuple(str(environ.get(name, ""))[:1000] for name in _ASKED)
        with self._lock:
            made_at, status, headers, body = self._pages.get(asked, (0.0, "", [], []))
            if not status or time.monotonic() - made_at > KEPT_S:
                told: list[Any] = []
                body = list(self._answer(environ, lambda *said: told.extend(said)))
                status, headers = told[:2]
                self._pages = {asked: (time.monotonic(), status, headers, body)}
        start(status, headers)
        return body


@contextlib.contextmanager
def serving(where: str, budget: float | None = None, books: Books = ask) -> Iterator[tuple[Monitor, str]]:
    """Serves metrics during the `with` block. Yields the observer that collects the metrics, and the URL of the
    metrics. Raises `UsageError` for an invalid address, and `CannotRunError` if the address is not available."""
    address, port = place(where)
    monitor = Monitor(books, budget)
    registry = CollectorRegistry()
    registry.register(monitor)
    ProcessCollector(namespace="chaos_harness", registry=registry)
    server = _listening(address, port, _Kept(make_wsgi_app(registry)))
    threads = [
        threading.Thread(target=job, name=f"metrics-{name}", daemon=True)
        for name, job in (("server", server.serve_forever), ("counts", monitor.watch), ("ledger", monitor.keep_books))
    ]
    for thread in threads:
        thread.start()
    shown = f"[{address}]" if ":" in address else address
    try:
        yield monitor, f"http://{shown}:{server.server_port}/metrics"
    finally:
        monitor.close()
        server.shutdown()
        server.server_close()
        for thread in threads[:2]:  # the ledger may be worked out for long: nobody waits for that
            thread.join(ENDS_S)


def _listening(address: str, port: int, answer: Any) -> _Server:
    kind = type("Server", (_Server,), {"address_family": socket.AF_INET6}) if ":" in address else _Server
    try:
        server: _Server = kind((address, port), _Handler)
    except OSError as error:
        raise CannotRunError(f"the metrics cannot be served on {address}:{port}: {error.strerror or error}") from error
    server.set_app(answer)
    return server
