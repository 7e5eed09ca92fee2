"""Decides from a pod's controller whether the pod comes back after a kill or an eviction, so that the job continues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from harness.attach.kubernetes.others import controller_of, name_of
from harness.backends.kubernetes.api import Api, Refused
from harness.backends.kubernetes.manifests import Object

ALWAYS = ("StatefulSet", "ReplicaSet", "ReplicationController", "DaemonSet")  # replace every pod, however it went
BACKOFF_LIMIT = 6  # of a Job that names none
FAILURES = "batch.kubernetes.io/job-index-failure-count"
JOB, JOBSET = ("batch/v1", "jobs"), ("jobset.x-k8s.io/v1alpha2", "jobsets")


class Returns:
    """Counts, for each Kubernetes Job, the pods that the harness killed, evicted or deleted. Kubernetes updates its own
    count of failed pods too late."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._failed_first: dict[str, int] = {}  # by the Job's uid
        self._taken = Counter[str]()

    def why_not(self, verb: str, pod: Object, pods: Sequence[Object]) -> str:
        """Returns why killing or evicting this pod could end the job, or an empty text if the pod comes back. `pods`
        are all pods of the job, including this one."""
        owner = controller_of(pod)
        if owner is None:
            if verb == "kill" and pod["spec"].get("restartPolicy", "Always") != "Never":
                return ""  # its kubelet starts the container again
            return "it is a bare pod: no controller would bring it back, so the job would have lost it for good"
        if owner["kind"] in ALWAYS:
            return ""
        if owner["kind"] != "Job":
            known = ", ".join(("Job", "JobSet (through its Jobs)", *ALWAYS))
            controller = f"its controller, {owner['kind']} {owner['name']}"
            return f"whether {controller}, brings it back is not known; known: {known}"
        try:
            return self._of_job(self._read(*JOB, owner["name"]), verb, pod, pods)
        except Refused as error:
            return f"whether its Job brings it back cannot be read: {error}"

    def note(self, pod: Object) -> None:
        owner = controller_of(pod)
        if owner is not None:
            self._taken[owner["uid"]] += 1

    def _of_job(self, job: Object, verb: str, pod: Object, pods: Sequence[Object]) -> str:
        name, spec = name_of(job), job["spec"]
        if spec.get("suspend") or "deletionTimestamp" in job["metadata"]:
            return f"Job {name} is suspended or being deleted, so no pod of it would come back"
        rule = _first_rule(spec, verb)
        if rule == "Ignore":
            return ""
        if rule:
            return f"Job {name} has a podFailurePolicy with {rule}, which could end it"
        full = self._full(job, pod, pods)
        return self._of_jobset(job, full) if full else ""

    def _full(self, job: Object, pod: Object, pods: Sequence[Object]) -> str:
        name, spec, uid = name_of(job), job["spec"], job["metadata"]["uid"]
        if (limit := spec.get("backoffLimitPerIndex")) is not None:
            spent = int((pod["metadata"].get("annotations") or {}).get(FAILURES, 0))
            return "" if spent < limit else f"Job {name}: {spent} of {limit} failures of this index are used up"
        failed, limit = int(job.get("status", {}).get("failed", 0)), int(spec.get("backoffLimit", BACKOFF_LIMIT))
        spent = max(failed, self._failed_first.setdefault(uid, failed) + self._taken[uid])
        if spec["template"]["spec"].get("restartPolicy") == "OnFailure":  # then restarts within pods count as well
            mine = [each for each in pods if (controller_of(each) or {}).get("uid") == uid]
            statuses = [status for each in mine for status in each["status"].get("containerStatuses") or []]
            spent += 1 + sum(int(status.get("restartCount", 0)) for status in statuses)
        return "" if spent < limit else f"Job {name}: one more failure would pass its backoffLimit of {limit}"

    def _of_jobset(self, job: Object, full: str) -> str:
        owner = controller_of(job)
        if owner is None or owner["kind"] != "JobSet":
            return f"{full}, and that would end the job"
        found = self._read(*JOBSET, owner["name"])
        policy: Mapping[str, Any] = found["spec"].get("failurePolicy") or {}
        restarts, limit = int(found.get("status", {}).get("restarts", 0)), int(policy.get("maxRestarts", 0))
        if policy.get("rules"):
            return f"{full}, and the failurePolicy of JobSet {owner['name']} has rules, which could end it"
        return "" if restarts < limit else f"{full}, and JobSet {owner['name']} has used {restarts} of {limit} restarts"

    def _read(self, version: str, plural: str, name: str) -> Object:
        found: Object = self._api.get(self._api.path(version, plural, name))
        return found


def _first_rule(spec: Object, verb: str) -> str:
    for rule in (spec.get("podFailurePolicy") or {}).get("rules", []):
        disruption = any(each.get("type") == "DisruptionTarget" for each in rule.get("onPodConditions") or [])
        if str(rule["action"]).startswith("Fail"):
            return str(rule["action"])
        if disruption and verb == "evict":  # the Eviction API alone sets this condition
            return "Ignore" if rule["action"] == "Ignore" else ""
    return ""
