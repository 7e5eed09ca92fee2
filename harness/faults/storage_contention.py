"""Other users put load on the same storage: they read and write as fast as the storage answers."""

import json
import os
import pathlib
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from harness.backends.contract import Verb
from harness.errors import FaultError
from harness.faults.contract import Context, Fault, Folder, Targets
from harness.faults.shared.programs import started
from harness.log import untrusted_files
from harness.log.truth import Decision, Kind, Place, Truth
from harness.units import Duration, Size

_LOAD = pathlib.Path(__file__).resolve().parent / "load"
_PYTHON = {"PYTHONPATH": str(_LOAD.parents[2])}
START_S_MAX = 30.0
GONE_FOR_S = 0.5
FAILED_SHARE_MAX = 0.01


class StorageContention(Fault):
    """Users simulated by Locust read and write files in a folder beside the checkpoints, on the same disk, through a
    small file server."""

    users: int = Field(8, ge=1, le=10_000, description="How many at once.")
    spawn_rate: float = Field(8, gt=0, description="How many come each second.")
    reads: int = Field(50, ge=0, le=100, description="Percent of the requests that read; the others write and fsync.")
    block: Size = Field(Size("256KiB"), description="Bytes a request.")
    directory: Folder = Field("checkpoints", description="The folder whose disk they use, below the run's.")
    duration: Duration = Field(Duration("10s"), description="How long they stay.")

    runbook = "F8"
    needs = frozenset({Verb.FILES})
    packages: ClassVar = {"locust": "load"}
    truth = Truth((Kind.NONE, Kind.STORAGE), Place.JOB, (Decision.IGNORE,))  # others may use a disk

    def describe(self, targets: Targets) -> str:
        mix = f"{self.reads} % reads of {self.block}"
        return f"{self.users} users hammer the disk of {self.directory}/ for {self.duration}, {mix}"

    def inject(self, targets: Targets, context: Context) -> None:
        # Nodes may move this folder away or put a link in its place: it is reached by what was opened here alone.
        untrusted_files.make_folder(context.run_dir, self._name(context), mode=0o700)
        with untrusted_files.opened_folder(context.run_dir, self._name(context)) as descriptor:
            text = self._load(pathlib.Path(f"/proc/{os.getpid()}/fd/{descriptor}"), context)
        self._judge(text, context)

    def _load(self, folder: pathlib.Path, context: Context) -> str:
        with started([sys.executable, "-m", "harness.faults.load.file_server", str(folder)], _PYTHON) as server:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            mix = {"LOAD_BYTES": str(self.block.bytes), "LOAD_READS_PERCENT": str(self.reads)}
            with started([sys.executable, *self._users(folder, port)], mix | _PYTHON) as users:
                context.injected()
                context.wait(self.duration.s + START_S_MAX, until=lambda: users.poll() is not None)
                users.kill()
                return users.communicate()[0]

    def heal(self, targets: Targets, context: Context) -> None:
        untrusted_files.remove_tree(context.run_dir, self._name(context))

    def see_end(self, targets: Targets, context: Context) -> None:
        context.wait(GONE_FOR_S)
        left = int(untrusted_files.status_of(context.run_dir, self._name(context)) is not None)
        context.ended(left, 0, "folders of strangers", ok=not left)

    def _name(self, context: Context) -> str:
        return f"{self.directory}/.load-{context.seed:016x}"

    def _users(self, folder: pathlib.Path, port: int) -> list[str]:
        file = folder / "locustfile.py"
        shutil.copyfile(_LOAD / "users.locust", file)
        seconds = max(1, round(self.duration.s))
        crowd = ["--users", str(self.users), "--spawn-rate", str(self.spawn_rate), "--run-time", f"{seconds}s"]
        host = f"http://127.0.0.1:{port}"
        return ["-m", "locust", "-f", str(file), "--headless", "--json", "--skip-log", "--host", host, *crowd]

    def _judge(self, text: str, context: Context) -> None:
        start = text.find("[")
        if start < 0:
            raise FaultError(f"locust left no figures: {text[-300:] or 'no output'}")
        requests, failed, rate, p95_ms = summarize(json.loads(text[start:]))
        ok = requests >= self.users and failed <= FAILED_SHARE_MAX * requests
        detail = f"{requests} requests, {failed} failed, p95 {p95_ms:g} ms, {self.users} users"
        context.effect(rate, self.users, "requests/s", ok=ok, detail=detail)


def summarize(entries: Sequence[Mapping[str, Any]]) -> tuple[int, int, float, float]:
    """Returns the numbers of requests and of failures, requests per second, and the 95th percentile of response times
    in ms. `entries` is Locust's JSON."""
    requests = sum(entry["num_requests"] for entry in entries)
    failed = sum(entry["num_failures"] for entry in entries)
    if not requests:
        return 0, failed, 0.0, 0.0
    begin = min(entry["start_time"] for entry in entries)
    end = max(entry["last_request_timestamp"] or begin for entry in entries)
    times = sorted((float(ms), count) for entry in entries for ms, count in entry["response_times"].items())
    seen, p95_ms = 0, times[-1][0]
    for ms, count in times:
        seen += count
        if seen >= 0.95 * requests:
            p95_ms = ms
            break
    return requests, failed, requests / max(end - begin, 1e-3), p95_ms


FAULT = StorageContention
