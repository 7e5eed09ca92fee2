"""Runs the user's probes (a command, an HTTP request or a PromQL query), each in a thread of its own."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

from harness.gameday.day_file import Http, Probe, PromQL

BYTES_MAX = 2**20
DETAIL_MAX = 500
KEPT_BYTES = 2048  # bytes kept of a command's output
GRACE_S = 0.5


@dataclass(frozen=True)
class Answer:
    probe: str
    moment: str  # before · during · after
    rehearsal: str
    ok: bool
    detail: str

    @property
    def told(self) -> dict[str, Any]:
        return {"name": self.probe, "moment": self.moment, "ok": self.ok, "detail": self.detail}


class Asking:
    def __init__(self, probes: Sequence[Probe]) -> None:
        self._probes, self._answers = probes, deque[Answer]()
        self._lock = threading.Lock()
        self._open: dict[tuple[str, str], int] = {}  # (probe, moment) → open questions
        self._asked_s: dict[str, float] = {}  # probe → time of its last question "during"

    def answers(self) -> Iterator[Answer]:
        while self._answers:
            yield self._answers.popleft()

    def ask_all(self, moment: str, rehearsal: str) -> None:
        for probe in self._probes:
            if moment in probe.when:
                self.ask(probe, moment, rehearsal)

    def ask_due(self, rehearsal: str) -> None:
        now_s = time.monotonic()
        for probe in self._probes:
            due = now_s - self._asked_s.get(probe.name, -math.inf) >= probe.every.s
            if "during" in probe.when and due and not self.is_open("during", probe.name):
                self._asked_s[probe.name] = now_s
                self.ask(probe, "during", rehearsal)

    def ask(self, probe: Probe, moment: str, rehearsal: str) -> None:
        with self._lock:
            self._open[probe.name, moment] = self._open.get((probe.name, moment), 0) + 1
        threading.Thread(target=self._ask, args=(probe, moment, rehearsal), name="probe", daemon=True).start()

    def is_open(self, moment: str, probe: str | None = None) -> bool:
        with self._lock:
            return any(n for (name, when), n in self._open.items() if when == moment and probe in (None, name))

    def _ask(self, probe: Probe, moment: str, rehearsal: str) -> None:
        """Runs a probe with a deadline for its whole answer, because a server could send its answer endlessly."""
        found: list[tuple[bool, str]] = []

        def tried() -> None:
            try:
                found.append(question(probe))
            except Exception as error:  # any error is a "no"
                found.append((False, f"{type(error).__name__}: {error}"))

        asking = threading.Thread(target=tried, name="probe", daemon=True)
        asking.start()
        asking.join(probe.timeout.s + GRACE_S)
        ok, detail = found[0] if found else (False, f"no answer within {probe.timeout.s:g} s")
        self._answers.append(Answer(probe.name, moment, rehearsal, ok, detail[:DETAIL_MAX]))
        with self._lock:
            self._open[probe.name, moment] -= 1


def question(probe: Probe) -> tuple[bool, str]:
    if probe.command is not None:
        return _command(probe.command, probe.timeout.s)
    if probe.http is not None:
        return _http(probe.http, probe.timeout.s)
    assert probe.promql is not None  # the model's check: one of the three is given
    return _promql(probe.promql, probe.timeout.s)


def _command(command: list[str], timeout_s: float) -> tuple[bool, str]:
    try:
        asked = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
    except OSError as error:
        return False, f"{command[0]}: {error.strerror}"
    assert asked.stdout is not None
    said = _Tail(asked.stdout)
    said.start()
    try:
        code = asked.wait(timeout_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(asked.pid, signal.SIGKILL)
        asked.wait()
        return False, f"not finished within {timeout_s:g} s"
    said.join(GRACE_S / 2)  # a child left behind may hold the pipe open
    words = said.kept[-DETAIL_MAX:].decode(errors="replace").strip()
    return code == 0, f"ended with {code}: {words}" if words else f"ended with {code}"


class _Tail(threading.Thread):
    """Reads a command's output to the end, so that a full pipe never blocks the command, and keeps the last bytes."""

    def __init__(self, stream: IO[bytes]):
        super().__init__(name="probe-output", daemon=True)
        self.stream, self.kept = stream, b""

    def run(self) -> None:
        with self.stream:
            while chunk := os.read(self.stream.fileno(), 65536):
                self.kept = (self.kept + chunk)[-KEPT_BYTES:]


def _get(url: str, timeout_s: float) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:  # http or https: the spec's check
            return answer.status, answer.read(BYTES_MAX).decode(errors="replace")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(BYTES_MAX).decode(errors="replace")
    except (urllib.error.URLError, OSError) as error:
        raise ConnectionError(f"{url}: {getattr(error, 'reason', error)}") from error


def _http(wanted: Http, timeout_s: float) -> tuple[bool, str]:
    status, body = _get(wanted.url, timeout_s)
    if status != wanted.status:
        return False, f"HTTP {status}; wanted {wanted.status}"
    if wanted.contains is not None and wanted.contains not in body:
        return False, f"HTTP {status}, but its answer does not contain {wanted.contains!r}"
    return True, f"HTTP {status}"


def _promql(asked: PromQL, timeout_s: float) -> tuple[bool, str]:
    query = urllib.parse.urlencode({"query": asked.query})
    status, body = _get(f"{asked.server.rstrip('/')}/api/v1/query?{query}", timeout_s)
    try:
        answer = json.loads(body)
        if answer["status"] != "success":
            return False, f"HTTP {status}: {answer.get('error', 'no answer')}"
        found = answer["data"]["result"]
    except (ValueError, LookupError, TypeError):
        return False, f"HTTP {status}: not the answer of a Prometheus server"
    if not found:
        return False, "the query returned nothing, so the probe fails"
    return True, f"{len(found)} series" if answer["data"].get("resultType") == "vector" else str(found)[:DETAIL_MAX]
