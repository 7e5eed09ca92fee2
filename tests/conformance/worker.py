"""What runs on a node under test: steps, a child, saves where there is a folder for them, an eye on notices.

It is handed to a node as text (`python -c`), so it needs nothing there but the harness's own package.
"""

import contextlib
import hashlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

from harness.node.emitter import Emitter

WORK = bytes(1 << 20)
ROUNDS = 3  # about 3 ms of a free CPU
PAUSE_S = 0.004
FOR_EVER = 10**9
PORT = 4722


def save(folder: pathlib.Path, step: int) -> None:
    path = folder / f"{os.environ['CHAOS_NODE']}.tmp"
    with path.open("wb") as file:
        file.write(WORK[:65536])
    path.rename(path.with_suffix(f".{step}"))
    path.with_suffix(f".{step}").unlink()


def answer() -> None:
    """What stands in a file beside the events is written into another one."""
    answers = pathlib.Path(os.environ["CHAOS_ANSWERS"])
    run_dir = answers.parents[1]
    with contextlib.suppress(OSError):
        (answers / "answer").write_text((run_dir / "question").read_text())


def ask(path: str, method: str = "GET", **headers: str) -> str:
    url = os.environ["CHAOS_METADATA"] + path
    request = urllib.request.Request(url, method=method, headers={k.replace("_", "-"): v for k, v in headers.items()})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return str(answer.read().decode())


def watch(emit: Emitter) -> None:
    """Asks the metadata endpoint the way of EC2 until a notice is there."""
    while True:
        try:
            token = ask("/latest/api/token", "PUT", X_aws_ec2_metadata_token_ttl_seconds="60")
            ask("/latest/meta-data/spot/instance-action", X_aws_ec2_metadata_token=token)
            emit("notice", source="ec2")
            return
        except urllib.error.HTTPError:
            time.sleep(0.1)
        except OSError:
            return  # this process is being taken down


def stay_connected(head: str) -> None:
    """Node 0 listens. The others keep a connection to it, and make a new one when it breaks."""
    if os.environ["CHAOS_NODE"] == "node0":
        with contextlib.suppress(OSError), socket.create_server(("", PORT)) as server:
            kept = [server.accept() for _ in range(100)]
            kept.clear()
    while os.environ["CHAOS_NODE"] != "node0":
        with contextlib.suppress(OSError), socket.create_connection((head, PORT)) as link:
            link.recv(1)
        time.sleep(0.1)


def main(steps: int, code: int, store: str, head: str = "") -> int:
    rank = int(os.environ["CHAOS_NODE"].removeprefix("node"))
    emit = Emitter.open("trainer", rank=rank, local_rank=0, world_size=1)
    signal.signal(signal.SIGTERM, lambda *_: emit("notice", source="signal"))
    child = subprocess.Popen(["sleep", "900"])
    emit("started")
    if "CHAOS_METADATA" in os.environ:
        threading.Thread(target=watch, args=(emit,), daemon=True).start()
    if head and not head.startswith("127."):  # nodes without a network of their own would listen on this machine
        threading.Thread(target=stay_connected, args=(head,), daemon=True).start()
    begin_ns = time.monotonic_ns()
    for step in range(1, (steps or FOR_EVER) + 1):
        for _ in range(ROUNDS):
            hashlib.sha256(WORK).digest()
        time.sleep(PAUSE_S)
        begin_ns = emit("step", step=step, begin_ns=begin_ns, loss=1.0 / step)
        answer()
        if step % 5 == 0 and store:
            try:
                save(pathlib.Path(store), step)
                emit("checkpoint.committed", step=step, kind="periodic", path="", bytes=65536, duration_ns=0)
            except OSError as error:
                emit("checkpoint.failed", step=step, kind="periodic", error=os.strerror(error.errno or 0))
    child.kill()
    child.wait()
    print(f"rank {rank} says goodbye", flush=True)
    emit("exiting", code=code, reason="completed", step=steps)
    return code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]) * int(os.environ["CHAOS_NODE"][-1]), *sys.argv[3:]))
