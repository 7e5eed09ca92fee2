"""Forks launchers of the reference trainer from a process that has imported everything: a node in 10 ms.

Reads one JSON object a line from stdin (`arguments`, `environment`, `output`), answers with the pid of the new node,
which leads a process group of its own; later says `{"pid": …, "code": …}` when it has ended. Ends with its stdin.
"""

from reference_trainer import preemption

if __name__ == "__main__":
    preemption.before_torch()

import ctypes
import json
import os
import selectors
import signal
import sys
import traceback

from reference_trainer import launch, options


def node(order: dict[str, object]) -> int:
    """Forks one node; returns its pid. It dies with the nursery."""
    born, child = os.pipe()
    pid = os.fork()
    os.close(child if pid else born)
    if pid:
        os.read(born, 1)  # until it leads its group: a signal to that comes at any moment
        os.close(born)
        return pid
    os.setsid()
    os.close(child)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    output = os.open(str(order["output"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.environ.update(order["environment"])  # type: ignore[call-overload]
    code = 1
    try:
        code = launch.main(order["arguments"])  # type: ignore[arg-type]
    except SystemExit as exit:
        code = exit.code if isinstance(exit.code, int) else 1
    except Exception:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    launch.preload(options.Options())
    print("ready", flush=True)
    selector = selectors.DefaultSelector()
    selector.register(sys.stdin, selectors.EVENT_READ)
    alive: set[int] = set()
    while True:
        if selector.select(0.01):
            line = sys.stdin.readline()
            if not line:
                return
            pid = node(json.loads(line))
            alive.add(pid)
            print(json.dumps({"pid": pid}), flush=True)
        for pid in list(alive):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                alive.remove(pid)
                print(json.dumps({"pid": pid, "code": os.waitstatus_to_exitcode(status)}), flush=True)


if __name__ == "__main__":
    main()
