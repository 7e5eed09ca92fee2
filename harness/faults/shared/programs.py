"""Programs that a fault starts on the harness's host, beside the job's nodes.

No verb (method of `Node`) can start an arbitrary program on a node. `Node.crowd` (load on CPU, memory bandwidth or GPU)
and `Node.fill_memory` start processes on a node, which end with the node. The function `started` runs any other program
on the host of the harness, as the harness's user. This program is killed when the harness is killed. If the backend has
`Verb.FILES`, the job sees the same files below `context.run_dir`, so a program on the host can load or fill the job's
storage. The limits and the network of a node do not apply to a program on the host: only verbs act on a node.
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
    """Runs a program until the `with` block ends. A SIGKILL of the harness ends the program, too, but not the program's
    own children. The program's standard output is a text pipe, and the program has the same working directory as the
    harness."""
    command = [sys.executable, "-c", _DIE_WITH_US, str(os.getpid()), *words]
    env, quiet = {**os.environ, **(env or {})}, subprocess.DEVNULL
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=quiet, text=True) as process:
        try:
            yield process
        finally:
            process.kill()
