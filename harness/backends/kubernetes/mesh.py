"""Makes, awaits and deletes Chaos Mesh objects, for faults that only Chaos Mesh can inject into a pod.

Chaos Mesh runs a daemon on every machine, which disturbs the network of pods. The harness itself measures the effect of
each disturbance, as on every other backend.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from collections.abc import Mapping

from harness.backends.contract import Disturbance
from harness.backends.kubernetes.api import CHAOS_MESH, PLURALS, Api
from harness.backends.kubernetes.manifests import ClusterRun, Object, object_of
from harness.errors import BackendError, UsageError
from harness.node.types import Impairment

ACTS_S_MAX = 60.0
DIRECTIONS = {"egress": "to", "ingress": "from", "both": "both"}


@dataclasses.dataclass(frozen=True)
class Way:
    """The network traffic of `pod` that Chaos Mesh disturbs: its direction, and the pods at the other end (`None`: any
    other end)."""

    pod: str
    direction: str = "both"
    peers: tuple[str, ...] | None = None


def bandwidth(place: ClusterRun, name: str, way: Way, rate_bits: int) -> Object:
    limit = max(20_000, rate_bits // 8 // 20)
    rate = {"rate": f"{max(1, rate_bits // 8)}bps", "limit": limit, "buffer": max(1600, rate_bits // 8 // 50)}
    return _network(place, name, way, "bandwidth", {"bandwidth": rate})


def impairment(place: ClusterRun, name: str, way: Way, wanted: Impairment) -> Object:
    what: Object = {}
    if wanted.delay_s or wanted.jitter_s:
        delay_us, jitter_us = round(wanted.delay_s * 1e6), round(wanted.jitter_s * 1e6)
        what["delay"] = {"latency": f"{delay_us}us", "jitter": f"{jitter_us}us"}
        if wanted.reorder_percent:
            what["delay"]["reorder"] = {"reorder": f"{wanted.reorder_percent:g}", "correlation": "0", "gap": 1}
    if wanted.loss_percent:
        correlation_percent = 100 * (1 - 1 / wanted.burst)
        what["loss"] = {"loss": f"{wanted.loss_percent:g}", "correlation": f"{correlation_percent:g}"}
    if wanted.damage_percent:
        what["corrupt"] = {"corrupt": f"{wanted.damage_percent:g}", "correlation": "0"}
    return _network(place, name, way, "netem", what)


def partition(place: ClusterRun, name: str, way: Way) -> Object:
    return _network(place, name, way, "partition", {})


def _network(place: ClusterRun, name: str, way: Way, action: str, what: Object) -> Object:
    namespace = place.settings.namespace or "default"
    spec: Object = {"action": action, "mode": "all", "selector": {"pods": {namespace: [way.pod]}}}
    spec |= {"direction": DIRECTIONS[way.direction]} | what
    if way.peers is not None:
        spec["target"] = {"mode": "all", "selector": {"pods": {namespace: list(way.peers)}}}
    elif way.direction != "egress":
        raise UsageError(f"Chaos Mesh cannot disturb {way.direction} traffic with everything: name the peers")
    return object_of(CHAOS_MESH, "NetworkChaos", name, place, spec)


class Mesh:
    def __init__(self, api: Api, place: ClusterRun):
        self._api = api
        settings = dataclasses.replace(place.settings, namespace=api.namespace)
        self.place = dataclasses.replace(place, settings=settings)
        self._numbers = itertools.count(1)

    def next_name(self) -> str:
        return f"{self.place.name}-{next(self._numbers)}"

    def act(self, wanted: Object) -> MeshDisturbance:
        """Begins a disturbance by creating a Chaos Mesh object. Returns when Chaos Mesh says that the disturbance is
        fully injected, or raises `BackendError`."""
        self._api.create(wanted)
        disturbance = MeshDisturbance(self._api, wanted)
        try:
            disturbance.wait("AllInjected")
        except BaseException:
            disturbance.heal()
            raise
        return disturbance


class MeshDisturbance(Disturbance):
    def __init__(self, api: Api, wanted: Object):
        self._api, self._kind = api, PLURALS[wanted["kind"]]
        self._name: str = wanted["metadata"]["name"]
        self._lock = threading.Lock()

    def wait(self, condition: str) -> None:
        deadline = time.monotonic() + ACTS_S_MAX
        path = self._api.path(CHAOS_MESH, self._kind, self._name)
        while time.monotonic() < deadline:
            conditions = self._api.get(path).get("status", {}).get("conditions", [])
            if any(each["type"] == condition and each["status"] == "True" for each in conditions):
                return
            time.sleep(0.1)
        raise BackendError(f"Chaos Mesh has not injected {self._name} within {ACTS_S_MAX:g} s")

    def heal(self) -> None:
        """Deletes the Chaos Mesh object, and waits until Chaos Mesh has undone the disturbance (by the object's
        finalizer)."""
        with self._lock:
            deadline = time.monotonic() + ACTS_S_MAX
            while self._api.delete(CHAOS_MESH, self._kind, self._name):
                if time.monotonic() > deadline:
                    raise BackendError(f"Chaos Mesh has not recovered {self._name} within {ACTS_S_MAX:g} s")
                time.sleep(0.1)

    def counts(self) -> Mapping[str, int]:
        return {}  # Chaos Mesh counts nothing
