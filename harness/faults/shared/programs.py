"""Programs that a fault starts beside the nodes.

No verb starts any program that you like on a node. `Node.crowd` (CPU, memory bandwidth, GPU) and `Node.fill_memory`
start processes there, which end with the node. `started` runs any other program on the host of the harness, as its
user; it is killed with the harness. Where `Verb.FILES` is, the job sees the same files below `context.run_dir`: such a
program loads or fills the job's storage. The limits and the network of a node do not hold it: only verbs act there.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence

# The kernel ends it with the thread that started it, so that nothing outlives the harness, however that ends.
_DIE_WITH_US = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
    "os.getppid() == int(sys.argv[1]) or sys.exit(1); os.execvp(sys.argv[2], sys.argv[2:])"
)


@contextlib.contextmanager
def started(words: Sequence[str], env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """Runs a program until the `with` block ends. SIGKILL of the harness ends it, too; its own children it must end
    itself. Its standard output is a pipe of text; its working directory is that of the harness."""
    command = [sys.executable, "-c", _DIE_WITH_US, str(os.getpid()), *words]
    env, quiet = {**os.environ, **(env or {})}, subprocess.DEVNULL
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=quiet, text=True) as process:
        try:
            yield process
        finally:
            process.kill()
