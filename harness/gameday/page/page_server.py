"""Serves the live page in a separate thread."""

from __future__ import annotations

import contextlib
import ipaddress
import pathlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import uvicorn

from harness.errors import CannotRunError, UsageError
from harness.gameday.page.access import Access
from harness.gameday.page.app import Chart, Page
from harness.gameday.page.connection_limits import AT_ONCE_MAX, Patient
from harness.gameday.page.hub import Hub
from harness.gameday.requests import Desk

STARTS_S = 15.0
ENDS_S = 3.0
PEM_BYTES_MAX = 2**20


@dataclass(frozen=True)
class PageAddress:
    """The address of the live page. An address that other hosts can reach needs TLS."""

    address: str = "127.0.0.1"
    port: int = 0  # 0: any free port
    certificate: pathlib.Path | None = None
    key: pathlib.Path | None = None

    @property
    def secure(self) -> bool:
        return self.certificate is not None

    def check(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise UsageError("--tls-cert and --tls-key belong together")
        for path in (self.certificate, self.key):
            if path is not None:
                _check_readable(path)
        if not self.secure and not _is_own(self.address):
            text = f"--address {self.address}: others could read the tokens on the way; give --tls-cert and --tls-key"
            raise UsageError(f"{text}, or leave the page on 127.0.0.1")


def _check_readable(path: pathlib.Path) -> None:
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    try:
        with path.open("rb") as file:
            size = len(file.read(PEM_BYTES_MAX + 1))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    if size > PEM_BYTES_MAX:
        raise UsageError(f"{path}: no PEM file has more than {PEM_BYTES_MAX // 2**20} MiB")


def _is_own(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


@dataclass(frozen=True)
class Served:
    address: str
    access: Access
    hub: Hub

    def url(self, role: str) -> str:
        return f"{self.address}/?token={self.access.tokens[role]}"


@contextlib.contextmanager
def serving(place: PageAddress, desk: Desk, run_dir: pathlib.Path, chart: Chart) -> Iterator[Served]:
    place.check()
    listening = _listen(place)
    with listening:
        port = listening.getsockname()[1]
        names = _names(place.address)
        access = Access(frozenset(name.lower() for name in names), place.secure)
        hub = Hub()
        page = Page(access, hub, desk, run_dir, chart, f"chaos-{port}")
        config = uvicorn.Config(
            page.app(),
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            ssl_certfile=str(place.certificate) if place.certificate else None,
            ssl_keyfile=str(place.key) if place.key else None,
            timeout_graceful_shutdown=2,
            http=Patient,
            backlog=AT_ONCE_MAX,
        )
        server = _Server(config)
        thread = threading.Thread(target=server.run, args=([listening],), name="page", daemon=True)
        thread.start()
        _wait_until_started(server, thread)
        scheme = "https" if place.secure else "http"
        try:
            yield Served(f"{scheme}://{names[0]}:{port}", access, hub)
        finally:
            hub.close_soon()
            server.should_exit = True
            thread.join(ENDS_S)


class _Server(uvicorn.Server):
    """The live page's web server, which leaves signals such as Ctrl-C to the thread of the job."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(place: PageAddress) -> socket.socket:
    try:
        family, _, _, _, where = socket.getaddrinfo(place.address, place.port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CannotRunError(f"the page cannot be served on {place.address}:{place.port}: {reason}") from error
    return listening


def _names(address: str) -> list[str]:
    if _is_own(address):
        return ["127.0.0.1", "localhost", "[::1]"] if ":" not in address else ["[::1]", "localhost", "127.0.0.1"]
    if address in ("0.0.0.0", "::"):
        name = socket.getfqdn()
        try:
            addresses = sorted({str(each[4][0]) for each in socket.getaddrinfo(name, None, socket.AF_INET)})
        except OSError:
            addresses = []
        return [name, socket.gethostname(), "localhost", "127.0.0.1", *addresses]
    return [f"[{address}]" if ":" in address else address]


def _wait_until_started(server: uvicorn.Server, thread: threading.Thread) -> None:
    until = time.monotonic() + STARTS_S
    while not server.started:
        if not thread.is_alive() or time.monotonic() > until:
            raise CannotRunError("the page could not be started")
        time.sleep(0.01)
