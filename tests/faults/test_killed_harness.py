"""The harness of a shipped scenario is SIGKILLed while the fault acts: nothing of the run is left once it is healed."""

import os
import pathlib
import signal
import struct
import subprocess
import sys
import textwrap

import machine
import pytest
from conformance.places import fuse_mounts_below
from waiting import until

from harness.log.journal import is_closed
from harness.node import cgroups, compiling, gpu_health, leftovers
from harness.run.undo import heal

ROOT = pathlib.Path(__file__).resolve().parents[2]
HARNESS = textwrap.dedent("""
    import pathlib, sys
    from harness.backends.local.backend import BACKEND
    from harness.plan.making import make_plan
    from harness.run.job import execute
    from harness.spec.scenario import load_scenario
    scenario = load_scenario(pathlib.Path("scenarios", sys.argv[1] + ".yaml"))
    smaller = (*scenario.workload.args, "--layers", "1", "--width", "32", "--compute-s", "0")  # soon at the fault
    workload = scenario.workload.model_copy(update={"args": smaller})
    plan = make_plan(scenario.model_copy(update={"workload": workload}), 1, "local", sys.argv[3])
    execute(plan, pathlib.Path(sys.argv[2]), BACKEND)
""")
ECC_XID = 48
SCENARIOS = (
    *("gpu-ecc", "cuda-error", "storage-hang", "connection-reset", "no-false-alarm", "stuck-collective", "stuck-save"),
    "object-store-throttle",
)


@pytest.mark.slow
@pytest.mark.skipif(compiling.why_not() is not None, reason=str(compiling.why_not()))
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_nothing_is_left_when_the_fault_was_at_work(
    scenario: str, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    machine.use_mode(monkeypatch, "user")
    run_dir, run_id = tmp_path / "run", f"killed-{os.getpid()}-{scenario}"
    command = [sys.executable, "-c", HARNESS, scenario, str(run_dir), run_id]
    log = run_dir / "events" / "harness.jsonl"
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True) as victim:
        injected = lambda: log.exists() and b'"fault.injected"' in log.read_bytes()  # noqa: E731
        until(lambda: injected() or victim.poll() is not None, "the fault")
        assert victim.poll() is None, log.read_text()[-2000:] if log.exists() else "no log"
        victim.send_signal(signal.SIGKILL)
    until(lambda: heal(tmp_path) and is_closed(run_dir), "the reverter, or heal")
    until(lambda: not leftovers.leftovers(run_id) and not cgroups.leftovers(run_id), "the end of the lab")
    assert is_closed(run_dir) and fuse_mounts_below(run_dir) == []
    for state in (run_dir / gpu_health.FOLDER).glob("node*"):
        fields = struct.unpack(f"={gpu_health.DEVICES_MAX * len(gpu_health.FIELDS)}q", state.read_bytes()[8:])
        told = set(fields) - {gpu_health.UNCHANGED}
        assert told <= {0, 1, ECC_XID}, "only the errors that were told are remembered"
