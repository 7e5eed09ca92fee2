"""Copies checkpoints between pods that share no disk, through an HTTP server (the `Vault`) in a separate pod.

A trainer renames each finished checkpoint into the node's checkpoint folder. Every node sends its new checkpoints to
the server, and gets the new checkpoints of other nodes from the server. A checkpoint that is deleted on one node is
deleted on all nodes. Files whose names begin with a dot count as unfinished and are not copied. Checkpoints are copied
in the background: if a node dies before its newest checkpoint is copied, the job resumes from the previous checkpoint.

The server answers `GET /entries?after=N` (which waits for a version other than N), and GET, PUT and DELETE of
`/entries/<name>`, a tar archive. Each request must carry the run's secret token.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import http.client
import http.server
import json
import os
import pathlib
import re
import shutil
import socket
import sys
import tarfile
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}")
NEWS_S_MAX = 1.0
CALL_S_MAX = 60.0
REACH_S_MAX = 15.0
LOOK_S = 0.05
_BLOCK = 2**20
_DELETED = ".deleted-"


@dataclass
class Shelf:
    """The checkpoints on the checkpoint server. `version` counts changes, and `entries` maps each checkpoint's name to
    the version in which the checkpoint last changed."""

    folder: pathlib.Path
    version: int = 0
    entries: dict[str, int] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def path(self, name: str) -> pathlib.Path:
        return self.folder / f"{name}.tar"

    def put(self, name: str, arrived: pathlib.Path) -> int:
        with self.changed:
            os.replace(arrived, self.path(name))
            self.version += 1
            self.entries[name] = self.version
            self.changed.notify_all()
            return self.version

    def delete(self, name: str) -> None:
        with self.changed:
            self.path(name).unlink(missing_ok=True)
            if self.entries.pop(name, None):
                self.version += 1
                self.changed.notify_all()

    def news(self, after: int) -> dict[str, object]:
        with self.changed:
            self.changed.wait_for(lambda: self.version != after, NEWS_S_MAX)
            return {"version": self.version, "entries": dict(self.entries)}


class Vault:
    """The HTTP server that holds the checkpoints of all nodes. The constructor starts the server at the IP address
    `address`."""

    def __init__(self, folder: pathlib.Path, address: str, token: str):
        folder.mkdir(parents=True, exist_ok=True)
        self.shelf = Shelf(folder)
        self._server = http.server.ThreadingHTTPServer((address, 0), functools.partial(_Handler, self.shelf, token))
        self._server.daemon_threads = True
        self.url = f"http://{address}:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, name="vault", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    timeout = CALL_S_MAX

    def __init__(self, shelf: Shelf, token: str, *connection: Any):
        self.shelf, self.token = shelf, token
        super().__init__(*connection)  # answers, too

    def do_GET(self) -> None:
        if self.path.partition("?")[0] == "/entries" and self._may():
            after = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query).get("after", ["-1"])[0]
            if not re.fullmatch(r"-?\d{1,18}", after):
                return self._reply(400)
            return self._reply(200, json.dumps(self.shelf.news(int(after))).encode())
        name = self._name()
        if name is None:
            return
        try:
            with self.shelf.path(name).open("rb") as file:
                self.send_response(200)
                self.send_header("Content-Length", str(os.fstat(file.fileno()).st_size))
                self.end_headers()
                shutil.copyfileobj(file, self.wfile, _BLOCK)
        except FileNotFoundError:
            self._reply(404)

    def do_PUT(self) -> None:
        name, length = self._name(), self.headers.get("Content-Length", "")
        if name is None:
            return
        if not length.isdigit():
            return self._reply(411)
        arrived = self.shelf.folder / f".{name}-{threading.get_ident()}"
        with arrived.open("wb") as file:
            left = int(length)
            while left and (block := self.rfile.read(min(left, _BLOCK))):
                file.write(block)
                left -= len(block)
        if left:  # the node died on the way: half of a checkpoint is none
            arrived.unlink()
            return self._reply(400)
        self._reply(200, str(self.shelf.put(name, arrived)).encode())

    def do_DELETE(self) -> None:
        name = self._name()
        if name is not None:
            self.shelf.delete(name)
            self._reply(204)

    def _may(self) -> bool:
        return hmac.compare_digest(self.headers.get("X-Chaos-Token", "").encode(), self.token.encode())

    def _name(self) -> str | None:
        name = self.path.removeprefix("/entries/")
        if not self._may():
            self._reply(403)
        elif not NAME.fullmatch(name):
            self._reply(404)
        else:
            return name
        return None

    def _reply(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Does not log requests, because one line for each request would hide important log lines."""


class Copies:
    """Keeps a node's checkpoint folder equal to the checkpoints on the server for all nodes (the `Vault`)."""

    def __init__(self, folder: pathlib.Path, url: str, token: str):
        self._folder, self._url, self._token = folder, url, token
        # Entries that are the same here and there: inode here, version there.
        self._same: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        folder.mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        """Copies the server's checkpoints to this node, then starts to copy changes in both directions in the
        background. Raises `OSError` if the server does not answer."""
        place = urllib.parse.urlsplit(self._url)
        try:
            socket.create_connection((place.hostname, place.port), REACH_S_MAX).close()
        except OSError as error:
            raise OSError(f"this pod does not reach the control pod at {place.netloc} ({error})") from error
        version = self.pull(-1)

        def push() -> None:
            self.push()
            self._stop.wait(LOOK_S)

        def pull() -> None:
            nonlocal version
            version = self.pull(version)

        threading.Thread(target=self._keep, args=(push,), name="push", daemon=True).start()
        threading.Thread(target=self._keep, args=(pull,), name="pull", daemon=True).start()

    def close(self) -> None:
        self._stop.set()

    def push(self) -> None:
        with self._lock:
            here = self._here()
            for name in self._same.keys() - here.keys():
                self._ask("DELETE", f"/entries/{name}")
                del self._same[name]
            for name, inode in here.items():
                if name not in self._same or self._same[name][0] != inode:
                    self._upload(name, inode)

    def pull(self, after: int) -> int:
        """Copies changes on the checkpoint server to this node, and returns the server's version. Waits up to 1 s for a
        change if the server's version is still `after`."""
        news = json.loads(self._ask("GET", f"/entries?after={after}"))
        version, entries = int(news["version"]), news["entries"]
        with self._lock:
            for doomed in self._folder.glob(f"{_DELETED}*"):  # of a try that failed
                _remove(doomed)
            here = self._here()
            for name, (_, known) in list(self._same.items()):
                if name not in entries and known <= version:  # else it was sent after this answer was made
                    self._discard(name)
                    del self._same[name]
            for name, changed in sorted(entries.items()):
                unsent = name in here and name not in self._same  # made here just now, and newer
                if NAME.fullmatch(name) and not unsent and changed > self._same.get(name, (0, 0))[1]:
                    self._download(name, changed)
        return version

    def _here(self) -> dict[str, int]:
        found = (entry for entry in os.scandir(self._folder) if NAME.fullmatch(entry.name))
        return {entry.name: entry.inode() for entry in found if entry.is_dir(follow_symlinks=False)}

    def _keep(self, work: Callable[[], None]) -> None:
        while not self._stop.is_set():
            try:
                work()
            except (OSError, tarfile.TarError, ValueError, http.client.HTTPException) as error:
                print(f"copies of checkpoints: {error!r}; trying again", file=sys.stderr, flush=True)
                self._stop.wait(1.0)

    def _upload(self, name: str, inode: int) -> None:
        archive = self._folder / f".outgoing-{name}"
        try:
            with tarfile.open(archive, "w") as tar:
                tar.add(self._folder / name, arcname=name)
            with archive.open("rb") as file:
                version = int(self._ask("PUT", f"/entries/{name}", file, archive.stat().st_size))
            self._same[name] = (inode, version)
        except FileNotFoundError:
            return  # deleted meanwhile: the next look sees that
        finally:
            archive.unlink(missing_ok=True)

    def _download(self, name: str, version: int) -> None:
        archive, incoming = self._folder / f".incoming-{name}.tar", self._folder / f".incoming-{name}"
        _remove(incoming)
        try:
            with self._answer("GET", f"/entries/{name}") as answer, archive.open("wb") as file:
                shutil.copyfileobj(answer, file, _BLOCK)
            _unpack(archive, incoming)
            self._discard(name)
            os.rename(incoming / name, self._folder / name)
            self._same[name] = ((self._folder / name).stat().st_ino, version)
        except urllib.error.HTTPError as error:
            if error.code != 404:  # 404: deleted meanwhile
                raise
        finally:
            archive.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # then the next try for this entry says it
                _remove(incoming)

    def _discard(self, name: str) -> None:
        """Renames a checkpoint before removing it, because a half-removed checkpoint under its own name would be sent
        to all other nodes. If the removal fails with an `OSError`, the next `pull` completes the removal."""
        doomed = self._folder / f"{_DELETED}{name}"
        _remove(doomed)
        with contextlib.suppress(FileNotFoundError):
            os.rename(self._folder / name, doomed)
        _remove(doomed)

    def _ask(self, method: str, path: str, data: object = None, length: int | None = None) -> bytes:
        with self._answer(method, path, data, length) as answer:
            body: bytes = answer.read()
        return body

    def _answer(self, method: str, path: str, data: object = None, length: int | None = None) -> Any:
        headers = {"X-Chaos-Token": self._token} | ({"Content-Length": str(length)} if length is not None else {})
        request = urllib.request.Request(self._url + path, data=data, headers=headers, method=method)  # type: ignore[arg-type]
        return self._opener.open(request, timeout=CALL_S_MAX)


def _remove(folder: pathlib.Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)


def _unpack(archive: pathlib.Path, folder: pathlib.Path) -> None:
    """Unpacks a tar archive. Raises `tarfile.TarError` if the archive has links, or paths outside of `folder`."""
    folder.mkdir()
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            parts = pathlib.PurePosixPath(member.name).parts
            if not (member.isreg() or member.isdir()) or member.name.startswith("/") or ".." in parts:
                raise tarfile.TarError(f"{member.name!r} has no place in a checkpoint")
        if hasattr(tarfile, "data_filter"):  # some Python 3.11 have none, and newer ones warn where none is chosen
            tar.extraction_filter = tarfile.data_filter
        tar.extractall(folder)
