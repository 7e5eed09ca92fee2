"""Explains why a pod does not run, and recognizes pods that will never run."""

import calendar
import time

from harness.backends.kubernetes.manifests import Object
from harness.errors import CannotRunError

HOPELESS = {"ErrImageNeverPull", "InvalidImageName", "CreateContainerConfigError", "ImageInspectError"}
PULLING = {"ErrImagePull", "ImagePullBackOff"}
PULL_S_MAX = 60.0


def refuse_hopeless(pod: Object) -> None:
    for status in pod["status"].get("containerStatuses", []):
        waiting = status.get("state", {}).get("waiting") or {}
        reason = waiting.get("reason", "")
        hopeless = reason in HOPELESS
        if reason in PULLING:
            made = time.strptime(pod["metadata"]["creationTimestamp"], "%Y-%m-%dT%H:%M:%SZ")
            hopeless = time.time() - calendar.timegm(made) > PULL_S_MAX
        if hopeless:
            name, words = pod["metadata"]["name"], waiting.get("message", "")
            raise CannotRunError(f"pod {name} cannot start: {reason}: {words}")


def describe(pod: Object) -> str:
    status = pod["status"]
    states = [each.get("state", {}) for each in status.get("containerStatuses", [])]
    reasons = [f"{(s.get('waiting') or s.get('terminated') or {}).get('reason', '')}" for s in states]
    conditions = [each.get("message", "") for each in status.get("conditions", []) if each.get("status") == "False"]
    return ", ".join(filter(None, [status.get("phase", ""), *reasons, *conditions])) or "no message"
