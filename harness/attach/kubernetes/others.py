"""Finds the present pod of each node of a job that somebody else started, and the state of the pod."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.backends.attached import ENDED, OPT_IN, RUNNING, Seen
from harness.backends.kubernetes.manifests import Object

INDEX = "batch.kubernetes.io/job-completion-index"
CONTAINER = "kubectl.kubernetes.io/default-container"
ENDING, GONE = "ending", "gone"
ANY_NAME = {"Job", "ReplicaSet", "ReplicationController", "DaemonSet"}  # whose new pods have new names

Place = tuple[str, str, str]


def name_of(pod: Object) -> str:
    return str(pod["metadata"]["name"])


def uid_of(pod: Object) -> str:
    return str(pod["metadata"]["uid"])


def told_by_owner(pod: Object) -> str | None:
    """Returns the value of the label or annotation `chaos.allow`, by which a pod's owner allows faults, or `None`."""
    metadata = pod["metadata"]
    found = (metadata.get("labels") or {}).get(OPT_IN) or (metadata.get("annotations") or {}).get(OPT_IN)
    return None if found is None else str(found)


def controller_of(found: Object) -> Mapping[str, Any] | None:
    owners = found["metadata"].get("ownerReferences") or []
    return next((each for each in owners if each.get("controller")), None)


def container_of(pod: Object) -> str:
    """Returns the container in which the job runs: the pod's default container or, without one, the first container."""
    named = (pod["metadata"].get("annotations") or {}).get(CONTAINER)
    names = [str(each["name"]) for each in pod["spec"]["containers"]]
    return str(named) if named in names else names[0]


def lives(pod: Object) -> bool:
    return "deletionTimestamp" not in pod["metadata"] and pod["status"].get("phase") in ("Pending", "Running")


def place_of(pod: Object) -> Place:
    """Returns the identity that a pod shares with its replacement: its controller, and its index or name."""
    owner = controller_of(pod)
    if owner is None:
        return "", "", name_of(pod)
    metadata = pod["metadata"]
    index = (metadata.get("labels") or {}).get(INDEX) or (metadata.get("annotations") or {}).get(INDEX) or ""
    return owner["kind"], owner["name"], str(index) if owner["kind"] in ANY_NAME else name_of(pod)


def matched(last: Mapping[str, Object], pods: Sequence[Object]) -> dict[str, Object | None]:
    """Returns each node's present pod: the last seen pod if it lives, otherwise its replacement or, without one, the
    dead pod. `last` maps each node to its last seen pod."""
    by_uid = {uid_of(pod): pod for pod in pods}
    known = {uid_of(pod) for pod in last.values()}
    made = sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")))
    free = [pod for pod in made if lives(pod) and uid_of(pod) not in known]
    found: dict[str, Object | None] = {}
    for node, pod in last.items():
        now = by_uid.get(uid_of(pod))
        if now is None or not lives(now):
            taker = next((each for each in free if place_of(each) == place_of(pod)), None)
            if taker is not None:
                free.remove(taker)
                now = taker
        found[node] = now
    return found


def seen(pod: Object | None, last: Object) -> Seen:
    """Returns the state of a job's node, as its pod shows it. If the node has no pod now, reports the name of `last`,
    the node's last seen pod."""
    if pod is None:
        return Seen(GONE, uid_of(last), told={"pod": name_of(last)})
    name = container_of(pod)
    statuses: Sequence[Object] = pod["status"].get("containerStatuses") or []
    status: Object = next((each for each in statuses if each["name"] == name), {})
    state, code = _state(pod, status)
    restarts = int(status.get("restartCount", 0))
    before = (status.get("lastState") or {}).get("terminated") or {}
    told = {
        "pod": name_of(pod),
        "machine": str(pod["spec"].get("nodeName", "")),
        "phase": str(pod["status"].get("phase", "")),
        "reason": str(pod["status"].get("reason", "")),
        "restarts": restarts,
        "code_before": before.get("exitCode"),
    }
    return Seen(state, f"{uid_of(pod)}/{restarts}", code, told=told)


def _state(pod: Object, status: Object) -> tuple[str, int | None]:
    phase, now = pod["status"].get("phase", ""), status.get("state") or {}
    ended, policy = now.get("terminated"), pod["spec"].get("restartPolicy", "Always")
    if "deletionTimestamp" in pod["metadata"]:
        return ENDING, None
    stays_ended = policy == "Never" or (policy == "OnFailure" and ended and ended.get("exitCode") == 0)
    if phase == "Succeeded" or (ended and phase == "Running" and ended["exitCode"] == 0 and stays_ended):
        return ENDED, 0
    if phase == "Failed" or (ended and phase == "Running" and stays_ended):
        code = int(ended["exitCode"]) if ended else 1
        return (ENDED, code) if controller_of(pod) is None else (f"failed with {code}", None)
    if ended:
        return f"restarting after {ended['exitCode']}", None
    if phase == "Running" and "running" in now:
        return RUNNING, None
    waiting = (now.get("waiting") or {}).get("reason")
    word = "waiting" if phase == "Running" else str(phase).lower() or "unknown"
    return f"{word} ({waiting})" if waiting else word, None
