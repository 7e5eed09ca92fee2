"""An S3-compatible object store behind our proxy, and a command that runs beside it.

    object_store HOST PORT FOLDER BUCKET COMMAND…

The proxy listens at HOST and PORT, and asks for the run's key; only it reaches the store. The store keeps everything in
memory; it is there when COMMAND starts. The three live and die together. What the proxy is to do is in FOLDER (see
`harness.node.s3_proxy`).
"""

from __future__ import annotations

import http.client
import importlib.util
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from harness.node import boot

# At a socket file, which only this user can open; the port means nothing there.
SERVER = "from moto.server import main; import sys; main(['-H', 'unix://' + sys.argv[1], '-p', '1'])"
START_S_MAX = 60.0
POLL_S = 0.1


def main(host: str, port: int, folder: pathlib.Path, bucket: str, command: Sequence[str]) -> int:
    """Returns the exit code of the first of the three to end; a missing or silent store is 1."""
    if importlib.util.find_spec("moto") is None:
        print("object store: moto is not installed: pip install 'chaos-harness[s3]'", file=sys.stderr)
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    private = tempfile.mkdtemp(prefix="chaos-")
    behind = os.path.join(private, "store")
    running = [subprocess.Popen([sys.executable, "-c", SERVER, behind], stderr=subprocess.DEVNULL)]
    try:
        _create_bucket(behind, bucket, running[0])
        arguments = [host, str(port), behind, str(folder)]
        proxy = boot.command(sys.executable, boot.place(), "harness.node.s3_proxy", arguments)
        running += [subprocess.Popen(proxy), subprocess.Popen(command)]
        while True:
            for process in running:
                if process.poll() is not None:
                    return process.returncode
            time.sleep(POLL_S)
    finally:
        for process in running:
            process.kill()
        try:
            shutil.rmtree(private)
        except OSError as error:
            print(f"object store: {private}: cannot be removed: {error}", file=sys.stderr)


class _Connection(http.client.HTTPConnection):
    """To a socket file."""

    def __init__(self, path: str):
        super().__init__("store", timeout=5)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def _create_bucket(behind: str, bucket: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S_MAX
    while server.poll() is None and time.monotonic() < deadline:
        connection = _Connection(behind)
        try:
            connection.request("PUT", f"/{bucket}")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(POLL_S)  # it does not listen yet
        finally:
            connection.close()
    sys.exit(f"object store: it did not come up within {START_S_MAX:g} s")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3]), sys.argv[4], sys.argv[5:]))
