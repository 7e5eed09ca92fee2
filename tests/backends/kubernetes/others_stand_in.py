"""A cluster with a job of somebody else's: real processes in pods that know nothing of us; see `stand_in` for the rest.

A pod is a shell in namespaces of its own; its log, exec, restarts and replacements are as a kubelet and a job
controller make them, as far as the harness asks for them.
"""

import json
import os
import pathlib
import subprocess
import threading
import time
from typing import Any

from backends.kubernetes.stand_in import FORBIDDEN, NAMESPACES, Handler, Object, StandIn
from waiting import until

from harness.attach.kubernetes import ephemeral

OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "llama", "uid": "job-1", "controller": True}
# A worker under a shell that starts it anew, from the step in its file, when it is lost: somebody's elastic launcher.
LAUNCHER = """
while :; do
    sh -c 'step=$(cat {state} 2>/dev/null || echo 0)
           while :; do step=$((step + 1)); echo "$step" >{state}; echo "step $step"; sleep 0.05; done'
    echo "worker lost: $?"
done
"""


class OthersPod:
    """Process 1 and what it starts. `pid`: of process 1, as this machine calls it."""

    def __init__(self, command: list[str], log: pathlib.Path):
        with log.open("ab") as out:
            self.process = subprocess.Popen([*NAMESPACES, *command], stdout=out, stderr=out, stdin=subprocess.DEVNULL)
        self.log = log

    @property
    def pid(self) -> int:
        """Of process 1, as this machine calls it."""
        return until(lambda: _children(self.process.pid), "process 1")[0]

    def execute(self, command: list[str]) -> subprocess.CompletedProcess[bytes]:
        enter = ["nsenter", "--target", str(self.pid), "--user", "--mount", "--pid", "--preserve-credentials"]
        return subprocess.run([*enter, "--", *command], capture_output=True, stdin=subprocess.DEVNULL)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class OthersStandIn(StandIn):
    """`budget`: evictions are refused; `shell`: whether a pod has one; `controlled`: whether a Job owns the pods."""

    budget = False
    shell = True
    controlled = True

    def start_job(self, nodes: int, labels: Object, command: str = LAUNCHER, **annotations: str) -> None:
        self.job: Object = {
            "metadata": {"name": "llama", "uid": "job-1", "labels": {}},
            "spec": {"backoffLimit": 6, "template": {"spec": {"restartPolicy": "Never"}}},
            "status": {"failed": 0},
        }
        self._labels, self._annotations, self._command = labels, annotations, command
        self.others: dict[str, OthersPod] = {}
        self._takers: list[threading.Thread] = []
        self.asked: list[str] = []
        if self.controlled:
            self.objects["jobs", "llama"] = self.job
        for index in range(nodes):
            self.new_pod(index)

    def new_pod(self, index: int) -> None:
        number = next(self._numbers)
        name, state = f"llama-{index}-{number}", self.folder / f"{index}.step"
        labels = {**self._labels, "batch.kubernetes.io/job-completion-index": str(index)}
        metadata: Object = {"name": name, "uid": f"uid-{number}", "labels": labels, "annotations": self._annotations}
        metadata["resourceVersion"] = str(number)
        metadata["creationTimestamp"] = f"2026-01-01T00:00:{number:02d}Z"
        metadata["ownerReferences"] = [OWNER] if self.controlled else []
        status = {"name": "main", "restartCount": 0, "state": {"running": {}}}
        self.others[name] = OthersPod(["sh", "-c", self._command.format(state=state)], self.folder / f"{name}.out")
        with self.lock:
            self.objects["pods", name] = {
                "metadata": metadata,
                "spec": {"containers": [{"name": "main"}], "restartPolicy": "Never", "nodeName": "m1"},
                "status": {"phase": "Running", "containerStatuses": [status]},
            }

    def take(self, name: str) -> None:
        """Ending for a moment, then gone; the Job brings another one to its place."""
        pod = self.objects["pods", name]
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"

        def end() -> None:
            time.sleep(0.5)
            self.others[name].end()
            with self.lock:
                self.objects.pop(("pods", name), None)
                self.job["status"]["failed"] += 1
            time.sleep(0.5)
            if self.controlled and not self._stopped.is_set():
                self.new_pod(int(pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]))

        self._takers.append(threading.Thread(target=end, daemon=True))
        self._takers[-1].start()

    def _control_job(self, name: str, job: Object) -> None:
        """`take` does it here."""

    def close(self) -> None:
        super().close()
        for taker in self._takers:  # which may be about to start another pod
            taker.join()
        for pod in self.others.values():
            pod.end()


class OthersHandler(Handler):
    server_is: OthersStandIn

    def _act(self, method: str, plural: str, name: str | None, sub: str | None, query: Object, body: Object) -> None:
        there = self.server_is
        there.asked.append(f"{method} {plural}/{name or ''}/{sub or ''}")
        found = there.objects.get((plural, str(name)))
        if name is None or plural != "pods":
            return super()._act(method, plural, name, sub, query, body)
        if found is None:
            return self._reply(404, {"message": f"pods {name} not found"})
        if sub == "log":
            return self._reply(200, there.others[name].log.read_text())
        if sub == "exec":
            return self._exec(there.others[name], found)
        if sub == "ephemeralcontainers":
            return self._add_ephemeral(found, body)
        if method == "GET":
            return self._reply(200, found)
        options = body.get("deleteOptions", body)
        if options["preconditions"]["uid"] != found["metadata"]["uid"]:
            return self._reply(409, {"message": "the UID in the precondition does not match"})
        if sub == "eviction" and there.budget:
            return self._reply(429, {"message": FORBIDDEN})
        there.take(name)
        self._reply(200, {})

    def _add_ephemeral(self, pod: Object, patch: Object) -> None:
        """It runs at once. Its first process is none that exec could meet here."""
        wanted = patch["spec"]["ephemeralContainers"]
        assert patch["metadata"] == {key: pod["metadata"][key] for key in ("uid", "resourceVersion")}
        pod["spec"]["ephemeralContainers"] = wanted
        before = pod["status"].get("ephemeralContainerStatuses", [])
        pod["status"]["ephemeralContainerStatuses"] = [*before, {"name": wanted[-1]["name"], "state": {"running": {}}}]
        self._reply(200, pod)

    def _exec(self, pod: OthersPod, found: Object) -> None:
        command = [value for key, value in self.query if key == "command"]
        container = dict(self.query)["container"]
        beside = [each for each in found["status"].get("ephemeralContainerStatuses", []) if each["name"] == container]
        self._upgrade()
        if command == [*ephemeral.END]:
            beside[0]["state"] = {"terminated": {"exitCode": 143}}
        if command == [*ephemeral.ANSWERS]:
            command = ["true"]  # no process of its own was started here
        if self.server_is.shell or (beside and "running" in beside[0]["state"]):
            done = pod.execute(command)
            status: dict[str, Any] = {"status": "Success"}
            if done.returncode:
                status = {"status": "Failure", "message": f"command terminated with exit code {done.returncode}"}
        else:
            done = subprocess.CompletedProcess(command, 1, b"", b"")
            status = {"status": "Failure", "message": 'exec: "sh": executable file not found in $PATH'}
        for channel, data in ((1, done.stdout), (2, done.stderr), (3, json.dumps(status).encode())):
            if data:
                self._send_frame(channel, data)
        self.connection.sendall(b"\x88\x00")


def _children(pid: int) -> list[int]:
    path = pathlib.Path(f"/proc/{pid}/task/{pid}/children")
    return [int(each) for each in path.read_text().split()] if os.path.exists(path) else []


OthersStandIn.handler = OthersHandler
