"""An API server that is busy, restarts, or refuses one kind of object only."""

from __future__ import annotations

import http.server
import json
import pathlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness.backends.kubernetes import api as apis
from harness.backends.kubernetes.api import Api, Refused
from harness.backends.kubernetes.manifests import ClusterRun
from harness.backends.kubernetes.settings import Settings
from harness.errors import BackendError

Answer = Callable[[str, str, int], tuple[int, dict[str, Any]]]  # of a method and a path, asked for the n-th time


@pytest.fixture
def serve(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Answer], tuple[Api, list[str]]]]:
    """Starts a server that gives these answers; returns its client and the list of what it is asked."""
    servers = []
    monkeypatch.setattr(apis, "AGAIN_S_MAX", 0.01)

    def start(answer: Answer) -> tuple[Api, list[str]]:
        asked: list[str] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                line = f"{self.command} {self.path.partition('?')[0]}"
                asked.append(line)
                status, body = answer(self.command, self.path.partition("?")[0], asked.count(line))
                content = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_DELETE = do_POST = do

            def log_message(self, *_: Any) -> None: ...

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
            "users": [{"name": "u", "user": {}}],
        }
        (tmp_path / "config").write_text(json.dumps(config))
        monkeypatch.setenv("CHAOS_KUBECONFIG", str(tmp_path / "config"))
        return Api(Settings()), asked

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("status", apis.AGAIN_STATUS)
def test_a_busy_server_is_asked_again(serve: Callable[[Answer], tuple[Api, list[str]]], status: int) -> None:
    api, asked = serve(
        lambda method, path, time: (200, {"items": []}) if time > 2 else (status, {}) if "pods" in path else (200, {})
    )
    assert api.list("v1", "pods", "a=b") == []
    assert len([line for line in asked if "pods" in line]) == 3
    api.close()


def test_what_is_not_safe_to_repeat_is_asked_once(serve: Callable[[Answer], tuple[Api, list[str]]]) -> None:
    """429 is also the answer of the Eviction API to a budget that forbids it."""
    api, asked = serve(lambda method, path, time: (429, {"message": "busy"}) if method == "POST" else (200, {}))
    with pytest.raises(Refused, match="busy"):
        api.ask("POST", "/api/v1/namespaces/team/pods", {})
    assert len([line for line in asked if line.startswith("POST")]) == 1
    api.close()


def test_a_refusal_is_not_asked_again(serve: Callable[[Answer], tuple[Api, list[str]]]) -> None:
    api, asked = serve(lambda method, path, time: (403, {"message": "no"}) if "pods" in path else (200, {}))
    with pytest.raises(Refused, match="no"):
        api.list("v1", "pods", "a=b")
    assert len([line for line in asked if "pods" in line]) == 1
    api.close()


def test_one_kind_that_cannot_be_removed_keeps_no_other(serve: Callable[[Answer], tuple[Api, list[str]]]) -> None:
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
    api.close()


def test_where_the_cluster_is_found_again(
    serve: Callable[[Answer], tuple[Api, list[str]]], tmp_path: pathlib.Path
) -> None:
    api, _ = serve(lambda method, path, time: (200, {}))
    api.close()
    found = apis.chosen_cluster(Settings())
    assert found == {
        "CHAOS_KUBECONFIG": str(tmp_path / "config"),
        "CHAOS_KUBE_CONTEXT": "c",
        "CHAOS_KUBE_NAMESPACE": "team",
    }
