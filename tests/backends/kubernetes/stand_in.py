"""As much of an API server, a job controller and a kubelet as the backend speaks to, in one process.

Pods are real: the real init in namespaces of its own, with real signals, real deaths and the real protocol of attach.
What Kubernetes itself does is only stood in for; `tests/backends/kubernetes/test_kubernetes.py` asks a real one.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import itertools
import json
import os
import pathlib
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import urllib.parse
from typing import Any

from backends.kubernetes.clusters import kubeconfig
from websocket import ABNF

RUN_DIR, SCRATCH = "/srv/run", "/srv/scratch"  # on a file system of the pod's own
PROGRAM = f"""
import asyncio, pathlib, sys
sys.path.insert(0, sys.argv[2])
from harness.node import pod_init
pod_init.SCRATCH = {SCRATCH!r}
asyncio.run(pod_init.PodInit(sys.argv[1], pathlib.Path({RUN_DIR!r})).serve())
"""
NAMESPACES = ("unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
MACHINE, INDEX = "m1", "batch.kubernetes.io/job-completion-index"
Object = dict[str, Any]
FORBIDDEN = "Cannot evict pod as it would violate the pod's disruption budget."


def _apart(one: Object, other: Object) -> bool:
    """Whether the first pod must not be where the other one is."""
    affinity = one["spec"].get("affinity", {}).get("podAntiAffinity", {})
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", [])
    labels = other["metadata"]["labels"].items()
    return any(term["labelSelector"]["matchLabels"].items() <= labels for term in terms)


class RunningPod:
    """The process of a pod. Its input and output are pipes, as a container runtime has them."""

    def __init__(self, wanted: Object, delivered: pathlib.Path, log: pathlib.Path):
        self.object = wanted
        if not wanted["spec"]["containers"][0]["stdin"]:  # no init of ours
            self.process = subprocess.Popen(wanted["spec"]["containers"][0]["command"])
            return
        role = wanted["spec"]["containers"][0]["command"][-1]
        env = {each["name"]: each["value"] for each in wanted["spec"]["containers"][0]["env"] if "value" in each}
        shell = f'mount -t tmpfs pod /srv && exec {sys.executable} -I -S -c "$1" {role} {delivered}'
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [*NAMESPACES, "sh", "-c", shell, "sh", PROGRAM],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, bufsize=0,
                env={"PATH": "/usr/bin:/bin", "POD_IP": "127.0.0.1", **env},
            )  # fmt: skip

    def terminate(self, grace_s: float) -> None:
        """As a kubelet: SIGTERM to process 1, SIGKILL to everything once the grace is over. Returns when all is gone."""
        try:
            init = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            init = []
        if grace_s and init:
            os.kill(int(init[0]), signal.SIGTERM)
        try:
            self.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.process.wait()


class StandIn:
    """`indexed`: whether it knows Indexed Jobs, whose controller it then is."""

    handler: type[Handler]

    def __init__(self, folder: pathlib.Path, indexed: bool = True):
        self.objects: dict[tuple[str, str], Object] = {}  # (plural, name)
        self.pods: dict[str, RunningPod] = {}
        self.folder, self.indexed = folder, indexed
        self.lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._stopped = threading.Event()
        own = type("Own", (self.handler,), {"server_is": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), own)
        self._server.daemon_threads = True
        self._links: list[socket.socket] = []  # of lines to pods
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(json.dumps(kubeconfig(f"http://127.0.0.1:{self._server.server_address[1]}")))
        for work in (self._server.serve_forever, self._control_jobs):
            threading.Thread(target=work, daemon=True).start()

    def close(self) -> None:
        self._stopped.set()
        for pod in [*self.pods.values()]:
            pod.terminate(0)
            for pipe in (pod.process.stdin, pod.process.stdout):
                if pipe is not None:
                    pipe.close()
        self._server.shutdown()
        self._server.server_close()

    def restart(self) -> None:
        """As an API server does: every line to a pod ends, and the container runtime closes the pod's input."""
        for link in self._links:
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
        for pod in self.pods.values():
            assert pod.process.stdin is not None
            pod.process.stdin.close()

    def admit(self, wanted: Object) -> None:
        """What admission fills in, on a dry run as well."""

    def create(self, plural: str, wanted: Object) -> Object:
        with self.lock:
            wanted["metadata"] |= {"uid": str(next(self._numbers)), "creationTimestamp": "2026-01-01T00:00:00Z"}
            self.objects[plural, wanted["metadata"]["name"]] = wanted
            if plural == "pods":
                wanted["status"] = {"phase": "Pending"}
                self._schedule(wanted)
        return wanted

    def _schedule(self, wanted: Object) -> None:
        """On the only machine, if no pod there keeps it away. One of a higher priority has such pods deleted first."""
        name = wanted["metadata"]["name"]
        there = [each for (plural, _), each in self.objects.items() if plural == "pods" and each is not wanted]
        there = [each for each in there if each["status"]["phase"] == "Running"]
        in_the_way = [each for each in there if _apart(wanted, each) or _apart(each, wanted)]
        if not in_the_way:
            wanted["spec"]["nodeName"] = MACHINE
            wanted["status"] = {"phase": "Running"}
            self.pods[name] = RunningPod(wanted, self._volume(wanted), self.folder / f"{name}.log")
        for each in in_the_way:
            if "priorityClassName" in wanted["spec"] and "deletionTimestamp" not in each["metadata"]:
                grace_s = each["spec"]["terminationGracePeriodSeconds"]
                self.delete("pods", each["metadata"]["name"], grace_s)

    def _volume(self, pod: Object) -> pathlib.Path:
        """The one file of the pod's config map, as a kubelet shows it to the pod."""
        name = next((each["configMap"]["name"] for each in pod["spec"]["volumes"] if "configMap" in each), "")
        if not name:
            return self.folder
        [(file, content)] = self.objects["configmaps", name]["binaryData"].items()
        path = self.folder / file
        if not path.exists():  # another pod may be reading it
            path.with_suffix(".new").write_bytes(base64.b64decode(content))
            path.with_suffix(".new").replace(path)
        return path

    def delete(self, plural: str, name: str, grace_s: float) -> bool:
        with self.lock:
            found = self.objects.get((plural, name))
            if found is None:
                return False
            if plural != "pods":
                del self.objects[plural, name]
                return True
            found["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:01Z"
            if not grace_s:  # the object goes at once; the processes get their grace all the same
                del self.objects[plural, name]
                grace_s = found["spec"]["terminationGracePeriodSeconds"]

        def end() -> None:
            if name in self.pods:  # else it was never scheduled
                self.pods[name].terminate(grace_s)
            with self.lock:
                self.objects.pop((plural, name), None)

        threading.Thread(target=end, daemon=True).start()
        return True

    def _control_jobs(self) -> None:
        while not self._stopped.wait(0.05):
            with self.lock:
                for (plural, name), found in list(self.objects.items()):
                    if plural == "jobs":
                        self._control_job(name, found)
                    elif plural == "pods" and found["status"]["phase"] == "Pending":
                        self._schedule(found)

    def _control_job(self, name: str, job: Object) -> None:
        """One pod for each index that lives or ended well."""
        for (plural, pod), found in list(self.objects.items()):
            if plural == "pods" and pod in self.pods and (code := self.pods[pod].process.poll()) is not None:
                found["status"]["phase"] = "Failed" if code else "Succeeded"
        for index in range(job["spec"]["completions"]):
            mine = [key for key in self.objects if key[0] == "pods" and key[1].startswith(f"{name}-{index}-")]
            if all(self.objects[key]["status"]["phase"] == "Failed" for key in mine):
                template = json.loads(json.dumps(job["spec"]["template"]))
                template["metadata"]["name"] = f"{name}-{index}-{next(self._numbers)}"
                template["metadata"]["labels"][INDEX] = str(index)
                template["spec"]["containers"][0]["env"].append({"name": "JOB_COMPLETION_INDEX", "value": str(index)})
                self.create("pods", template)


class Handler(http.server.BaseHTTPRequestHandler):
    server_is: StandIn
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        self.query = urllib.parse.parse_qsl(url.query)
        query = dict(self.query)
        length = int(self.headers.get("Content-Length", 0))
        body = json.loads(self.rfile.read(length)) if length else {}
        assert self.headers["Authorization"] == "Bearer t"
        match = re.fullmatch(r"/apis?/.*namespaces/team-a/(\w+)(?:/([\w.-]+))?(?:/(\w+))?", url.path)
        if match is None:
            self._discover(url.path)
        elif match[3] == "attach":
            self._attach(self.server_is.pods[match[2]])
        else:
            self._act(self.command, match[1], match[2], match[3], query, body)

    def _discover(self, path: str) -> None:
        known: dict[str, Object] = {
            "/version": {"gitVersion": "stand-in"},
            "/api/v1": {"resources": [{"name": "pods"}, {"name": "services"}, {"name": "configmaps"}]},
            "/apis/policy/v1": {"resources": [{"name": "poddisruptionbudgets"}]},
            "/apis/batch/v1": {"resources": [{"name": "jobs"}]},
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews": {"status": {"allowed": True}},
        }
        self._reply(200 if path in known else 404, known.get(path, {"message": "not here"}))

    def _act(self, method: str, plural: str, name: str | None, sub: str | None, query: Object, body: Object) -> None:
        there = self.server_is
        if method == "GET" and name is None:
            key, _, value = query["labelSelector"].partition("=")
            with there.lock:
                found = [each for (kind, _), each in there.objects.items() if kind == plural]
                return self._reply(200, {"items": [o for o in found if o["metadata"]["labels"].get(key) == value]})
        if method == "POST" and sub == "eviction":
            if str(name).endswith("-control"):
                return self._reply(429, {"message": FORBIDDEN})
            there.delete("pods", str(name), body["deleteOptions"]["gracePeriodSeconds"])
            return self._reply(201, {})
        if method == "POST":
            if not there.indexed:
                body.get("spec", {}).pop("completionMode", None)
            there.admit(body)
            return self._reply(201, body if "dryRun" in query else there.create(plural, body))
        if method == "DELETE":
            deleted = there.delete(plural, str(name), body.get("gracePeriodSeconds", 30))
            return self._reply(200 if deleted else 404, {"message": "gone"})
        asked_for = there.objects.get((plural, str(name)))
        self._reply(200 if asked_for else 404, asked_for or {"message": "gone"})

    def _attach(self, pod: RunningPod) -> None:
        """A WebSocket (RFC 6455) between the caller and the pipes of the pod's process."""
        self._upgrade()
        self.server_is._links.append(self.connection)
        threading.Thread(target=self._copy_output, args=(pod,), daemon=True).start()
        while (data := self._frame()) is not None:
            try:
                assert pod.process.stdin is not None
                pod.process.stdin.write(data[1:])
            except OSError:
                return

    def _upgrade(self) -> None:
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Protocol", "v4.channel.k8s.io")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        self.close_connection = True

    def _copy_output(self, pod: RunningPod) -> None:
        assert pod.process.stdout is not None
        while data := pod.process.stdout.read(30000):
            try:
                self._send_frame(1, data)
            except OSError:
                return
        try:
            self.connection.sendall(b"\x88\x00")
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def _send_frame(self, channel: int, data: bytes) -> None:
        self.connection.sendall(ABNF.create_frame(bytes([channel]) + data, ABNF.OPCODE_BINARY).format())

    def _frame(self) -> bytes | None:
        """The caller's next message; `None` at the end."""
        head = self.rfile.read(2)
        if len(head) < 2 or head[0] & 0x0F == 8:
            return None
        length = head[1] & 0x7F
        if length == 126:
            length = struct.unpack(">H", self.rfile.read(2))[0]
        elif length == 127:
            length = struct.unpack(">Q", self.rfile.read(8))[0]
        mask, data = self.rfile.read(4), self.rfile.read(length)
        repeated = (mask * (length // 4 + 1))[:length]
        return (int.from_bytes(data, "big") ^ int.from_bytes(repeated, "big")).to_bytes(length, "big")

    def _reply(self, status: int, body: Object | str) -> None:
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if isinstance(body, str) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_DELETE = do_PATCH = _answer

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


StandIn.handler = Handler
