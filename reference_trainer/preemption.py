"""Receives notices that this node will go away: by a signal, or from a cloud's metadata endpoint.

This module only *records* a notice. The training loop shares notices with every rank once a step, so that all ranks
save and leave at the same step. A separate thread waits for SIGTERM, which all threads block. A Python signal
handler would be less reliable: it runs only when the main thread runs Python again, which never happens if the main
thread waits for a dead peer in a collective. A launcher that forks its workers blocks SIGTERM before the fork, so that
a worker misses no signal. Before the first step, a notice ends the process at once, because there is nothing to save.

This module does not import torch, because signals must be blocked before the slow import of torch.
"""

from __future__ import annotations

import gc
import http.client
import json
import os
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from harness.events import Emitter

EXIT_DRAINED = 75  # sysexits' EX_TEMPFAIL: to an elastic agent a failure, so that it brings the workers back

EVICT_SIGNAL = signal.SIGTERM
SLOW_SIGNAL = signal.SIGINT  # from a worker to its agent: the node leaves, as it is slow
REGROUP_SIGNAL = signal.SIGUSR1  # from our own launcher: save and stop, the world is about to change
SIGNALS = {EVICT_SIGNAL, REGROUP_SIGNAL}

REQUEST_TIMEOUT_S = 1.0


class Notice(IntEnum):
    NONE = 0
    REGROUP = 1  # nodes come or go: save, stop, meet again
    EVICTED = 2  # this node goes away


def before_torch() -> None:
    """Blocks the notice signals in this thread and in all threads that it starts. Must run before torch is imported.

    The import of torch takes a second, in which a notice can come. Garbage collection is off until `after_torch` runs,
    because imports create no garbage and collection would take a tenth of their time.
    """
    gc.disable()
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # DDP's advice against the fixed bucket order we want


def after_torch() -> None:
    """Excludes all imported objects from garbage collection, so that forked processes neither touch nor copy them."""
    gc.freeze()
    gc.enable()


class Preemption:
    def __init__(self, emit: Emitter):
        self.notice = Notice.NONE
        self._emit = emit
        self._agent_pid = os.getppid()
        self._agent_knows = False
        self._slow = False
        self._training = False
        self._lock = threading.Lock()
        threading.Thread(target=self._collect_signals, name="signals", daemon=True).start()

    def poll(self, provider: str, interval_s: float) -> None:
        endpoints = _ENDPOINTS if provider == "auto" else {provider: _ENDPOINTS[provider]}
        threading.Thread(target=self._poll_metadata, args=(endpoints, interval_s), name="metadata", daemon=True).start()

    def training_begins(self) -> None:
        """Makes later notices lead to a checkpoint of all ranks. Notices before this call only end the process."""
        with self._lock:
            self._training = True

    def give_up(self, why: str) -> None:
        """Makes this node leave as if evicted. `why` is `straggler` for a slow node, or `gpu` for a bad GPU."""
        self._slow = why == "straggler"
        self._record(Notice.EVICTED, why)

    def start_again(self) -> None:
        """Makes all ranks save, and restart through their agents. A process calls `start_again` if it will soon
        fail."""
        self._record(Notice.REGROUP, None)

    def leave(self) -> None:
        """Tells this node's agent that the node goes away, so that the agent does not restart its workers.

        On SIGTERM, an elastic agent leaves the job, and keeps the rendezvous open for other nodes.
        """
        under_agent = "TORCHELASTIC_RUN_ID" in os.environ and os.getppid() == self._agent_pid
        if under_agent and not self._agent_knows:
            os.kill(self._agent_pid, SLOW_SIGNAL if self._slow else EVICT_SIGNAL)

    def _collect_signals(self) -> None:
        while True:
            info = signal.sigwaitinfo(SIGNALS)
            if info.si_signo == REGROUP_SIGNAL:
                self._record(Notice.REGROUP, None)
            else:
                self._agent_knows |= info.si_pid == self._agent_pid
                self._record(Notice.EVICTED, "signal")

    def _poll_metadata(self, endpoints: dict[str, Callable[[], bool]], interval_s: float) -> None:
        pause = threading.Event()
        while True:
            for name, is_evicted in endpoints.items():
                if is_evicted():
                    return self._record(Notice.EVICTED, name)
            pause.wait(interval_s)

    def _record(self, notice: Notice, source: str | None) -> None:
        with self._lock:
            if notice > self.notice:
                self.notice = notice
                if source:
                    self._emit("notice", source=source)
            if not self._training:
                if self.notice is Notice.EVICTED:
                    self.leave()
                self._emit("exiting", code=EXIT_DRAINED, reason="drained", step=0)
                os._exit(EXIT_DRAINED)


# An endpoint that does not answer is no notice: off the cloud nobody listens there at all.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _request(url: str, headers: dict[str, str], method: str = "GET") -> str | None:
    request = urllib.request.Request(url, headers=headers, method=method)
    try:
        with _opener.open(request, timeout=REQUEST_TIMEOUT_S) as response:
            return str(response.read().decode())
    except (OSError, ValueError, http.client.HTTPException):  # 404, an OSError, is EC2's way to say "no notice"
        return None


def _link_local() -> str:
    return os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254").rstrip("/")


def ec2_evicted() -> bool:
    """Returns True if EC2 will take the node away. Asks IMDSv2 for `spot/instance-action`, which exists only if an
    eviction is planned."""
    ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    token = _request(f"{_link_local()}/latest/api/token", ttl, method="PUT")
    if token is None:
        return False
    body = _request(f"{_link_local()}/latest/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": token})
    return body is not None and _json(body).get("action") in ("terminate", "stop", "hibernate")


def gcp_evicted() -> bool:
    """Returns True if GCP has begun to preempt the node: Compute Engine's `instance/preempted` is then `TRUE`."""
    host = os.environ.get("GCE_METADATA_HOST", "169.254.169.254")
    url = f"http://{host}/computeMetadata/v1/instance/preempted"
    return _request(url, {"Metadata-Flavor": "Google"}) == "TRUE"


def azure_evicted() -> bool:
    """Returns True if Azure's scheduled events list a `Preempt` of this node."""
    headers = {"Metadata": "true"}
    body = _request(f"{_link_local()}/metadata/scheduledevents?api-version=2020-07-01", headers)
    events = _json(body or "{}").get("Events") or []
    preempted = [event for event in events if event.get("EventType") == "Preempt"]
    if not preempted:
        return False
    url = f"{_link_local()}/metadata/instance/compute/name?api-version=2021-02-01&format=text"
    name = _request(url, headers)
    return any(name is None or name in event.get("Resources", [name]) for event in preempted)


def _json(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


_ENDPOINTS: dict[str, Callable[[], bool]] = {"ec2": ec2_evicted, "gcp": gcp_evicted, "azure": azure_evicted}
PROVIDERS = ("auto", *_ENDPOINTS, "off")
