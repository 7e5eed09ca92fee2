"""Runs the rendezvous store of a job under torchrun or accelerate, in a process that outlives the nodes.

python -m harness.node.torch_store ADDRESS PORT
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
import sys
from typing import Any


def main(address: str, port: int) -> None:
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        distributed = importlib.import_module("torch.distributed")  # the harness itself never loads torch
    except ImportError as error:
        raise SystemExit(f"Error: the rendezvous store needs torch, which {sys.executable} lacks: {error}") from error
    listener = socket.create_server((address, port))  # torch by itself would listen at every address
    how: dict[str, Any] = {"is_master": True, "wait_for_workers": False}
    try:
        store = distributed.TCPStore(address, port, master_listen_fd=os.dup(listener.fileno()), **how)
    except NotImplementedError:  # before torch 2.8 only the store's older backend can take over a listening socket
        store = distributed.TCPStore(address, port, master_listen_fd=listener.detach(), use_libuv=False, **how)
    print(f"rendezvous store at {address}:{store.port}", flush=True)
    signal.sigwait(signals)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
