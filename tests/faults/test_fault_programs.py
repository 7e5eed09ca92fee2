"""A program that a fault starts ends with its block, and with the harness however that ends."""

import subprocess
import sys

from waiting import until

from harness.faults.shared.programs import started
from harness.node import processes

HARNESS = "from harness.faults.shared.programs import started\nwith started(['sleep', '99']) as it: print(it.pid, flush=True); input()"


def test_a_program_ends_with_its_block_and_with_a_killed_harness() -> None:
    with started(["sh", "-c", "echo $SAID; exec sleep 99"], {"SAID": "yes"}) as program:
        assert program.stdout is not None and program.stdout.readline() == "yes\n" and program.poll() is None
    assert program.returncode == -9
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HARNESS], stdin=pipe, stdout=pipe) as harness:
        assert harness.stdout is not None
        pid = int(harness.stdout.readline())
        assert (found := processes.read(pid)) and found.running
        harness.kill()
    until(lambda: not ((left := processes.read(pid)) and left.running), "the end of the program")
