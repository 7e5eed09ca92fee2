"""An API server that is busy, restarts, or refuses one kind of object only."""

import contextlib
import json
import pathlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from backends.kubernetes.clusters import kubeconfig
from http_servers import Asked, serving

from harness.backends.kubernetes import api as apis
from harness.backends.kubernetes.api import Api, Refused
from harness.backends.kubernetes.backend import BACKEND, KubeCluster
from harness.backends.kubernetes.manifests import ClusterRun
from harness.backends.kubernetes.settings import Settings
from harness.errors import BackendError, CannotRunError

ZONE = "topology.kubernetes.io/zone"
Answer = Callable[[str, str, int], tuple[int, dict[str, Any]]]  # of a method and a path, asked for the n-th time


Serve = Callable[[Answer], tuple[Api, list[str]]]


@pytest.fixture
def serve(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Starts a server that gives these answers; returns its client and the list of what it is asked."""
    monkeypatch.setattr(apis, "AGAIN_S_MAX", 0.01)
    with contextlib.ExitStack() as held:

        def start(answer: Answer) -> tuple[Api, list[str]]:
            lines: list[str] = []

            def told(asked: Asked) -> tuple[int, dict[str, Any]]:
                path = asked.path.partition("?")[0]
                lines.append(f"{asked.method} {path}")
                return answer(asked.method, path, lines.count(lines[-1]))

            (tmp_path / "config").write_text(json.dumps(kubeconfig(held.enter_context(serving(told)))))
            monkeypatch.setenv("CHAOS_KUBECONFIG", str(tmp_path / "config"))
            api = Api(Settings())
            held.callback(api.close)
            return api, lines

        yield start


@pytest.mark.parametrize("status", apis.AGAIN_STATUS)
def test_a_busy_server_is_asked_again(serve: Serve, status: int) -> None:
    api, asked = serve(
        lambda method, path, time: (200, {"items": []}) if time > 2 else (status, {}) if "pods" in path else (200, {})
    )
    assert api.list("v1", "pods", "a=b") == []
    assert len([line for line in asked if "pods" in line]) == 3


@pytest.mark.parametrize(("method", "status"), [("POST", 429), ("GET", 403)])
def test_a_refusal_and_what_is_not_safe_to_repeat_are_asked_once(serve: Serve, method: str, status: int) -> None:
    """429 is also the answer of the Eviction API to a budget that forbids it."""
    api, asked = serve(lambda given, path, time: (status, {"message": "no"}) if "pods" in path else (200, {}))
    with pytest.raises(Refused, match="no"):
        api.ask(method, "/api/v1/namespaces/team-a/pods", {})
    assert len([line for line in asked if "pods" in line]) == 1


def test_one_kind_that_cannot_be_removed_keeps_no_other(serve: Serve) -> None:
    deleted: set[str] = set()

    def answer(method: str, path: str, time: int) -> tuple[int, dict[str, Any]]:
        name = path.rpartition("/")[2]
        if method == "DELETE":
            deleted.add(name)
            return 200, {}
        if path in ("/api/v1", "/apis/batch/v1"):
            return 200, {"resources": [{"name": kind} for kind in ("jobs", "pods", "services")]}
        if name == "jobs":
            return 500, {"message": "etcd is away"}
        items = (
            [{"metadata": {"name": f"a-{name}"}}] if name in ("pods", "services") and f"a-{name}" not in deleted else []
        )
        return (200, {"items": items}) if "namespaces" in path or path == "/version" else (404, {})

    api, _ = serve(answer)
    with pytest.raises(BackendError, match="etcd is away"):
        api.remove_run(ClusterRun("a-run", Settings()))
    assert deleted == {"a-pods", "a-services"}


def test_where_the_cluster_is_found_again(serve: Serve, tmp_path: pathlib.Path) -> None:
    serve(lambda method, path, time: (200, {}))
    found = apis.chosen_cluster(Settings())
    assert found == {
        "CHAOS_KUBECONFIG": str(tmp_path / "config"),
        "CHAOS_KUBE_CONTEXT": "c",
        "CHAOS_KUBE_NAMESPACE": "team-a",
    }


def test_kubernetes_tells_the_labels_of_the_machines_of_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = {"m1": {ZONE: "a"}, "m2": {"nvidia.com/gpu.clique": "f3.1", ZONE: "b"}, "m3": {}}
    told = {f"/api/v1/nodes/{name}": {"metadata": {"labels": each}} for name, each in labels.items()}
    api = object.__new__(Api)
    monkeypatch.setattr(Api, "get", lambda self, path: told[path])
    pods = [SimpleNamespace(pod=SimpleNamespace(machine=name)) for name in ("m2", "m1", "m3")]
    cluster = cast(KubeCluster, SimpleNamespace(_api=api, _nodes=[*pods, SimpleNamespace(pod=None)]))
    assert BACKEND.labels and KubeCluster.node_labels(cluster, ZONE) == ["b", "a", "", ""]
    assert KubeCluster.node_labels(cluster, "nvidia.com/gpu.clique") == ["f3.1", "", "", ""]

    def refuse(self: Api, path: str) -> Any:
        raise Refused(403, "nodes is forbidden")

    monkeypatch.setattr(Api, "get", refuse)
    with pytest.raises(CannotRunError, match=r"rbac-machines\.yaml has the right"):
        KubeCluster.node_labels(cluster, ZONE)
