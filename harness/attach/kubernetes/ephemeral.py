"""Adds an ephemeral container with a shell to a pod whose own container has no shell, if the owner allows it.

The ephemeral container sleeps for a day, unless the harness ends it earlier, and runs commands by the exec API of
Kubernetes. The name of the container stays in the pod, because Kubernetes cannot remove a container from a pod. The
ephemeral container sees the processes of the job's container beside it, and has the same user.
"""

from __future__ import annotations

import contextlib
import time

from harness.backends.kubernetes.api import Api
from harness.backends.kubernetes.manifests import Object
from harness.backends.kubernetes.settings import Settings
from harness.errors import BackendError

ALLOW = "chaos.allow-ephemeral"  # a label or annotation, `true`
SLEEPS_S = 86400  # far longer than a strike may last: `chaos heal` may come late
START_S_MAX = 60.0
OWN = "/tmp/chaos-shell.pid"  # in the ephemeral container: its first process, which no strike may hit
COMMAND = ("sh", "-c", f"echo $$$$ >{OWN}; exec sleep {SLEEPS_S}")  # Kubernetes reads $$ as one $
ANSWERS = ("sh", "-c", f"[ -s {OWN} ]")
END = ("sh", "-c", f"read -r own <{OWN} && kill -s TERM $own")
ENDED_BY_US = 143  # how a sleep ends that was told to
END_S_MAX = 10.0


def allowed(pod: Object) -> bool:
    metadata = pod["metadata"]
    return any((metadata.get(kind) or {}).get(ALLOW) == "true" for kind in ("labels", "annotations"))


def next_name(pod: Object) -> str:
    return f"chaos-shell-{len(pod['spec'].get('ephemeralContainers') or []) + 1}"


def add(api: Api, pod: Object, target: str, name: str, settings: Settings) -> None:
    """Adds an ephemeral container to a pod, and returns once a command can run in it. Raises `BackendError` if the
    container does not become usable in time."""
    pod_name, metadata = pod["metadata"]["name"], pod["metadata"]
    beside = next(each for each in pod["spec"]["containers"] if each["name"] == target)
    wanted: Object = {"name": name, "image": settings.image, "imagePullPolicy": settings.pull, "command": list(COMMAND)}
    wanted |= {"targetContainerName": target, "securityContext": beside.get("securityContext") or {}}
    there = pod["spec"].get("ephemeralContainers") or []
    patch = {
        "metadata": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]},
        "spec": {"ephemeralContainers": [*there, wanted]},
    }
    api.ask("PATCH", api.path("v1", "pods", f"{pod_name}/ephemeralcontainers"), patch)
    deadline = time.monotonic() + START_S_MAX
    while not _answers(api, pod_name, name):
        if time.monotonic() > deadline:
            where = f"ephemeral container {name} of pod {pod_name}"
            raise BackendError(f"{where} cannot be entered within {START_S_MAX:g} s")
        time.sleep(0.2)


def _answers(api: Api, pod: str, name: str) -> bool:
    """Returns True if a command can run in this ephemeral container. For a moment, the kubelet may not know a container
    whose state is already `running`."""
    if not runs(api.pod(pod), name):
        return False
    try:
        api.execute(pod, name, ANSWERS)
    except BackendError:
        return False
    return True


def state_of(pod: Object | None, name: str) -> Object:
    """Returns the state of a pod's ephemeral container (`running`, `waiting` or `terminated`). Returns an empty dict if
    the pod has no container `name`."""
    statuses = pod["status"].get("ephemeralContainerStatuses") or [] if pod else []
    found: Object = next((each.get("state") or {} for each in statuses if each["name"] == name), {})
    return found


def runs(pod: Object | None, name: str) -> bool:
    return "running" in state_of(pod, name)


def still_owes(pod: Object, name: str) -> bool:
    """Returns True if signals from this ephemeral container may have left processes stopped."""
    state = state_of(pod, name)
    return "running" in state or ("terminated" in state and state["terminated"].get("exitCode") != ENDED_BY_US)


def end(api: Api, pod: str, name: str) -> None:
    """Ends an ephemeral container, and returns when it has ended. The end of the container breaks the connection to it,
    so connection errors are ignored."""
    with contextlib.suppress(BackendError):
        api.execute(pod, name, END)
    deadline = time.monotonic() + END_S_MAX
    while runs(api.pod(pod), name):
        if time.monotonic() > deadline:
            raise BackendError(f"ephemeral container {name} of pod {pod} does not end within {END_S_MAX:g} s")
        time.sleep(0.2)
