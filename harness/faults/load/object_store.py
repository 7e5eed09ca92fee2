"""An S3-compatible object store behind our proxy, and a command that runs beside it.

python -m harness.faults.load.object_store PORT FOLDER BUCKET COMMAND…

The store keeps everything in memory; it is there when COMMAND starts. The three live and die together. What the
proxy is to do is in FOLDER (see `harness.faults.load.s3_proxy`).
"""

from __future__ import annotations

import http.client
import importlib.util
import pathlib
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

SERVER = "from moto.server import main; import sys; main(['-H', '127.0.0.1', '-p', sys.argv[1]])"
START_S_MAX = 60.0
POLL_S = 0.1


def main(port: int, folder: pathlib.Path, bucket: str, command: Sequence[str]) -> int:
    """Returns the exit code of the first of the three to end; a missing or silent store is 1."""
    if importlib.util.find_spec("moto") is None:
        print("object store: moto is not installed: pip install 'chaos-harness[s3]'", file=sys.stderr)
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    behind = _free_port()
    running = [subprocess.Popen([sys.executable, "-c", SERVER, str(behind)], stderr=subprocess.DEVNULL)]
    try:
        _create_bucket(behind, bucket, running[0])
        proxy = [sys.executable, "-m", "harness.faults.load.s3_proxy", str(port), f"127.0.0.1:{behind}", str(folder)]
        running += [subprocess.Popen(proxy), subprocess.Popen(command)]
        while True:
            for process in running:
                if process.poll() is not None:
                    return process.returncode
            time.sleep(POLL_S)
    finally:
        for process in running:
            process.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _create_bucket(port: int, bucket: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S_MAX
    while server.poll() is None and time.monotonic() < deadline:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
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
    sys.exit(main(int(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3], sys.argv[4:]))
