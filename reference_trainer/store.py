"""Runs the rendezvous store in a process of its own, which outlives every node of the job.

python -m reference_trainer.store --host 0.0.0.0 --port 29400
"""

from __future__ import annotations

import argparse
import signal
import socket

from torch.distributed import TCPStore


def main(arguments: list[str] | None = None) -> None:
    """Serves the rendezvous store until SIGTERM or SIGINT. Prints address and port once the store listens."""
    parser = argparse.ArgumentParser(prog="python -m reference_trainer.store", description=__doc__)
    parser.add_argument("--host", default="0.0.0.0", help="address to listen at")
    parser.add_argument("--port", type=int, default=29400, help="port to listen at; 0 takes a free one")
    options = parser.parse_args(arguments)
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    listener = socket.create_server((options.host, options.port))  # torch by itself would listen at every address
    port = listener.getsockname()[1]
    store = TCPStore(options.host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    print(f"rendezvous store at {options.host}:{store.port}", flush=True)
    signal.sigwait(signals)


if __name__ == "__main__":
    main()
