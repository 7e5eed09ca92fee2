"""Runs an S3-compatible object store behind the harness's proxy, and a command beside it.

    s3_store HOST PORT FOLDER BUCKET COMMAND…

The proxy listens at HOST and PORT, and demands the run's key. Only the proxy can reach the store, which keeps
everything in memory. The store is ready when COMMAND starts. When the store, the proxy or COMMAND ends, the others are
killed. FOLDER holds the description of the proxy's fault (see `harness.object_store.s3_proxy`).
"""

from __future__ import annotations

import http.client
import importlib.util
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from harness.node import boot

# At the socket that it is given; the address and the port mean nothing there. Older versions have no such handler.
SERVER = """
import sys
from moto import server
from werkzeug.serving import make_server
app = server.DomainDispatcherApplication(server.create_backend_app)
handler = getattr(server, "MotoRequestHandler", None)
make_server("unix://", 1, app, True, request_handler=handler, fd=int(sys.argv[1])).serve_forever()
"""
START_S_MAX = 60.0
POLL_S = 0.1


def main(host: str, port: int, folder: pathlib.Path, bucket: str, command: Sequence[str]) -> int:
    """Runs store, proxy and command. Returns the exit code of the process that ends first, or 1 if moto is missing."""
    if importlib.util.find_spec("moto") is None:
        print("object store: moto is not installed: it comes with the extra s3 of the harness", file=sys.stderr)
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    listening, behind = listen()
    server = [sys.executable, "-c", SERVER, str(listening.fileno())]
    running = [subprocess.Popen(server, stderr=subprocess.DEVNULL, pass_fds=[listening.fileno()])]
    listening.close()  # the server alone has it: where that one ends, nobody waits for an answer
    try:
        _create_bucket(way_to(behind), bucket)
        arguments = [host, str(port), way_to(behind), str(folder)]
        proxy = boot.command(sys.executable, boot.place(), "harness.object_store.s3_proxy", arguments)
        running += [subprocess.Popen(proxy, pass_fds=[behind]), subprocess.Popen(command)]
        while True:
            for process in running:
                if process.poll() is not None:
                    return process.returncode
            time.sleep(POLL_S)
    finally:
        for process in running:
            process.kill()


def listen() -> tuple[socket.socket, int]:
    """Returns a listening socket, and a descriptor of the socket's file. The file is deleted at once, so that a killed
    process leaves no file."""
    listening = socket.socket(socket.AF_UNIX)
    with tempfile.TemporaryDirectory(prefix="chaos-") as private:
        path = os.path.join(private, "store")
        listening.bind(path)
        listening.listen()
        return listening, os.open(path, os.O_PATH)


def way_to(descriptor: int) -> str:
    """Returns the path to the socket with this descriptor, for this process and its children."""
    return f"/proc/self/fd/{descriptor}"


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str):
        super().__init__("store", timeout=START_S_MAX)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _create_bucket(behind: str, bucket: str) -> None:
    connection = _Connection(behind)
    try:
        connection.request("PUT", f"/{bucket}")
        if connection.getresponse().status != 200:
            sys.exit("object store: it made no bucket")
    except (OSError, http.client.HTTPException) as error:
        sys.exit(f"object store: it did not come up: {error}")
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3]), sys.argv[4], sys.argv[5:]))
