"""Starts a helper process on a node of the job by `srun --overlap`, and calls its functions over a socket."""

import pathlib
import socket
import sys
from collections.abc import Sequence

from harness.backends.slurm.engine import Slurm
from harness.errors import BackendError
from harness.node import boot, rpc

READY_S_MAX = 20.0
END_S_MAX = 5.0


class StepLine(rpc.Line):
    """A connection to a helper process of the harness on a Slurm node. When this connection ends, for whatever reason,
    the helper process ends, too."""

    def __init__(
        self,
        slurm: Slurm,
        where: Sequence[str],
        source: str,
        module: str,
        arguments: Sequence[str],
        errors: pathlib.Path,
    ):
        """Starts a helper process of the harness on a Slurm node. `where` holds srun's options that select the job and
        the node; `source` is the path of the harness's code on the node. Raises `BackendError` if the process does not
        start."""
        ours, theirs = socket.socketpair()
        options = ("--overlap", "--ntasks=1", "--mem=0", "--export=NONE", "--mpi=none", "--chdir=/", "--unbuffered")
        program = boot.command(sys.executable, source, module, arguments)
        with theirs, errors.open("ab") as log:
            process = slurm.begin("srun", *where, *options, *program, link=theirs, errors=log)
        super().__init__(rpc.ChildStream(ours, process, END_S_MAX))
        if not self.wait_ready(READY_S_MAX):
            self.close()
            text = errors.read_text(errors="replace").strip()
            raise BackendError(f"srun: {text.splitlines()[-1][:300] if text else 'no answer'}")
