"""Pods of somebody else's job: which node each is, how it is, and whether it would come back. No server, no process."""

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.attach.kubernetes import others
from harness.attach.kubernetes.comes_back import Returns
from harness.backends.kubernetes.api import Api, Refused

Object = dict[str, Any]
GONE = "2026-01-01T00:00:00Z"


def pod(
    name: str = "a-0", owner: tuple[str, str] | None = ("Job", "a"), index: int | None = 0, uid: str = "", **status: Any
) -> Object:
    found: Object = {
        "metadata": {"name": name, "uid": uid or name, "labels": {}, "annotations": {}},
        "spec": {"containers": [{"name": "main"}, {"name": "proxy"}], "restartPolicy": "Never"},
        "status": {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]} | status,
    }
    if owner:
        reference = {"kind": owner[0], "name": owner[1], "uid": f"{owner[1]}-uid", "controller": True}
        found["metadata"]["ownerReferences"] = [reference]
    if index is not None:
        found["metadata"]["labels"][others.INDEX] = str(index)
    return found


def ended(code: int) -> list[Object]:
    return [{"name": "main", "restartCount": 2, "state": {"terminated": {"exitCode": code}}}]


@pytest.mark.parametrize(
    ("found", "state", "code"),
    [
        (pod(), "running", None),
        (pod(phase="Succeeded", containerStatuses=ended(0)), "ended", 0),
        (pod(phase="Failed", containerStatuses=ended(137)), "failed with 137", None),
        (pod(owner=None, phase="Failed", containerStatuses=ended(137)), "ended", 137),
        (pod(owner=None, phase="Failed", containerStatuses=[]), "ended", 1),
        (pod(containerStatuses=ended(3)), "failed with 3", None),
        (pod(phase="Pending", containerStatuses=[]), "pending", None),
        (
            pod(containerStatuses=[{"name": "main", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]),
            "waiting (CrashLoopBackOff)",
            None,
        ),
    ],
)
def test_how_a_pod_is(found: Object, state: str, code: int | None) -> None:
    seen = others.seen(found, found)
    assert (seen.state, seen.code) == (state, code)
    found["metadata"]["deletionTimestamp"] = GONE
    assert others.seen(found, found).state == "ending"


def test_a_container_that_is_started_again_is_another_life_and_which_one_is_the_pods_default() -> None:
    first, later = pod(), pod(containerStatuses=ended(1))
    later["spec"]["restartPolicy"] = "OnFailure"
    assert others.seen(later, later).state == "restarting after 1"
    assert others.seen(first, first).life != others.seen(later, later).life
    assert others.seen(later, later).told["restarts"] == 2
    assert others.container_of(first) == "main"
    for written, container in (("proxy", "proxy"), ("of another pod", "main")):
        first["metadata"]["annotations"][others.CONTAINER] = written
        assert others.container_of(first) == container


@pytest.mark.parametrize(
    ("old", "new", "takes"),
    [
        (pod("a-0-x"), pod("a-0-y"), True),
        (pod("a-0-x"), pod("a-1-y", index=1), False),
        (pod("a-0-x"), pod("b-0-y", owner=("Job", "b")), False),
        (pod("a-0-x"), pod("a-0-y", phase="Failed"), False),
        (pod("s-0", ("StatefulSet", "s"), None), pod("s-0", ("StatefulSet", "s"), None, uid="2"), True),
        (pod("s-0", ("StatefulSet", "s"), None), pod("s-1", ("StatefulSet", "s"), None), False),
        (pod("d-x", ("ReplicaSet", "d"), None), pod("d-y", ("ReplicaSet", "d"), None), True),
        (pod("p", None, None), pod("q", None, None), False),
    ],
)
def test_who_takes_a_place(old: Object, new: Object, takes: bool) -> None:
    assert others.matched({"n": old}, [new]) == {"n": new if takes else None}
    assert others.matched({"n": old}, [old, new]) == {"n": old}, "nobody takes the place of a living pod"


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["Running", "Pending", "Failed"])), max_size=8), st.data())
def test_no_pod_is_two_nodes_and_no_node_moves(shape: list[tuple[int, str]], data: st.DataObject) -> None:
    last = {f"n{number}": pod(f"n{number}", index=number % 3) for number in range(4)}
    kept = data.draw(st.sets(st.sampled_from(sorted(last))))
    now = [last[name] for name in sorted(kept)]
    now += [pod(f"new{number}", index=index, phase=phase) for number, (index, phase) in enumerate(shape)]
    found = others.matched(last, now)
    uids = [others.uid_of(each) for each in found.values() if each is not None]
    assert len(set(uids)) == len(uids) and found.keys() == last.keys()
    for node, each in found.items():
        assert each is None or others.place_of(each) == others.place_of(last[node])
        assert node not in kept or each is last[node]


class Owners:
    """An API server that knows these owners only."""

    def __init__(self, **owners: Object) -> None:
        self.owners = owners

    def path(self, version: str, plural: str, name: str) -> str:
        return plural

    def get(self, path: str) -> Object:
        if path not in self.owners:
            raise Refused(403, "jobs is forbidden")
        return self.owners[path]


def job(failed: int = 0, owner: Object | None = None, policy: str = "Never", **spec: Any) -> Object:
    spec |= {"template": {"spec": {"restartPolicy": policy}}}
    metadata = {"name": "a", "uid": "a-uid", "ownerReferences": [owner] if owner else []}
    return {"metadata": metadata, "spec": spec, "status": {"failed": failed}}


SET = {"kind": "JobSet", "name": "s", "controller": True}
IGNORE = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
FAIL = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [137]}}


def jobset(restarts: int, **policy: Any) -> Object:
    return {"spec": {"failurePolicy": policy}, "status": {"restarts": restarts}}


@pytest.mark.parametrize(
    ("owners", "verb", "said"),
    [
        ({"jobs": job()}, "delete", ""),
        ({"jobs": job(5)}, "evict", ""),
        ({"jobs": job(6)}, "evict", "backoffLimit of 6, and that would end the job"),
        ({"jobs": job(backoffLimit=0)}, "delete", "backoffLimit of 0"),
        ({"jobs": job(backoffLimit=1, policy="OnFailure")}, "kill", "backoffLimit of 1"),
        ({"jobs": job(backoffLimit=2, policy="OnFailure")}, "kill", ""),
        ({"jobs": job(suspend=True)}, "delete", "suspended"),
        ({"jobs": job(backoffLimitPerIndex=1)}, "delete", ""),
        ({"jobs": job(backoffLimitPerIndex=0)}, "delete", "0 of 0 failures of this index"),
        ({"jobs": job(9, podFailurePolicy={"rules": [IGNORE]})}, "evict", ""),
        ({"jobs": job(9, podFailurePolicy={"rules": [IGNORE]})}, "delete", "backoffLimit"),
        ({"jobs": job(podFailurePolicy={"rules": [IGNORE, FAIL]})}, "evict", ""),
        ({"jobs": job(podFailurePolicy={"rules": [FAIL, IGNORE]})}, "evict", "FailJob"),
        ({"jobs": job(podFailurePolicy={"rules": [IGNORE, FAIL]})}, "kill", "FailJob"),
        ({"jobs": job(backoffLimit=0, owner=SET), "jobsets": jobset(0, maxRestarts=2)}, "delete", ""),
        ({"jobs": job(backoffLimit=0, owner=SET), "jobsets": jobset(2, maxRestarts=2)}, "delete", "2 of 2 restarts"),
        ({"jobs": job(backoffLimit=0, owner=SET), "jobsets": jobset(0)}, "delete", "0 of 0 restarts"),
        (
            {"jobs": job(backoffLimit=0, owner=SET), "jobsets": jobset(0, maxRestarts=2, rules=[{}])},
            "delete",
            "has rules",
        ),
        ({}, "delete", "cannot be read"),
    ],
)
def test_a_job_says_whether_it_brings_a_pod_back(owners: dict[str, Object], verb: str, said: str) -> None:
    why = Returns(cast(Api, Owners(**owners))).why_not(verb, pod(), [pod()])
    assert said in why and bool(said) == bool(why)


@pytest.mark.parametrize(
    ("found", "policy", "verb", "said"),
    [
        (pod("s-0", ("StatefulSet", "s")), "Never", "evict", ""),
        (pod("d-0", ("ReplicaSet", "d")), "Never", "delete", ""),
        (pod("p", None), "Never", "delete", "bare pod"),
        (pod("p", None), "Never", "kill", "bare pod"),
        (pod("p", None), "Always", "delete", "bare pod"),
        (pod("p", None), "Always", "kill", ""),  # its kubelet starts it again
        (pod("w", ("PyTorchJob", "t")), "Never", "kill", "PyTorchJob t, brings it back is not known"),
    ],
)
def test_other_controllers(found: Object, policy: str, verb: str, said: str) -> None:
    found["spec"]["restartPolicy"] = policy
    why = Returns(cast(Api, Owners())).why_not(verb, found, [found])
    assert said in why and bool(said) == bool(why)


def test_what_was_just_taken_counts_before_the_job_counts_it() -> None:
    owners = Owners(jobs=job(backoffLimit=1))
    returns = Returns(cast(Api, owners))
    assert returns.why_not("delete", pod(), [pod()]) == ""
    returns.note(pod())
    assert "backoffLimit of 1" in returns.why_not("delete", pod(), [pod()])
