"""`chaos gameday --attach kubernetes:…` on a job that knows nothing of us. The cluster is stood in for: `others_stand_in`."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from backends.attached_days import chaos, told
from backends.kubernetes.others_stand_in import LAUNCHER, OthersStandIn
from waiting import until

from harness.attach.kubernetes import attached
from harness.errors import BackendError, UsageError
from harness.gameday.attach.strikes_file import AttachedDay
from harness.gameday.attach.striking import check
from harness.log.journal import JOURNAL
from harness.run.undo import undo_open

JOB = "kubernetes:job=llama"


@pytest.fixture
def cluster(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OthersStandIn]:
    folder = tmp_path / "server"
    folder.mkdir()
    there = OthersStandIn(folder)
    monkeypatch.setenv("CHAOS_KUBECONFIG", str(there.kubeconfig))
    yield there
    there.close()


def start(there: OthersStandIn, allow: str | None = "kill", nodes: int = 2, command: str = LAUNCHER) -> None:
    there.start_job(nodes, {"job": "llama"} | ({"chaos.allow": allow} if allow else {}), command)
    until(lambda: all("step" in pod.log.read_text() for pod in there.others.values()), "a step in each pod")


Attach = Callable[[], attached.KubernetesJob]


@pytest.fixture
def attach(cluster: OthersStandIn) -> Iterator[Attach]:
    with contextlib.ExitStack() as open_ones:
        yield lambda: open_ones.enter_context(contextlib.closing(attached.attach("job=llama")))


@pytest.fixture
def job(cluster: OthersStandIn, attach: Attach) -> attached.KubernetesJob:
    """Attached to a started job of two pods whose owner allows every strike."""
    start(cluster)
    return attach()


def states(there: OthersStandIn) -> list[str]:
    """Of every process in the pods but the first ones, as the kernel calls them."""
    found = []
    for pid in [each.pid for each in there.others.values() if each.process.poll() is None]:
        for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                inside = (
                    path.with_name("ns").joinpath("pid").readlink() == pathlib.Path(f"/proc/{pid}/ns/pid").readlink()
                )
                if inside and path.parent.name != str(pid):
                    found.append(path.read_text().rpartition(")")[2].split()[0])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["stop", "kill", "evict", "delete"])
def test_a_struck_pod_comes_back_and_the_job_goes_on(verb: str, cluster: OthersStandIn, tmp_path: pathlib.Path) -> None:
    start(cluster)
    before = set(cluster.others)
    done = subprocess.run(chaos(JOB, tmp_path, verb, "1s"), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    records = {each["what"]: each for each in told(tmp_path)["records"]}
    (node,) = records["struck"]["acted"]
    assert records["struck"]["acted"][node] and records["after"]["now"] > records["after"]["highest"]
    replaced = records["after"]["seen"][node]["told"]["pod"] != node
    assert replaced is (verb in ("evict", "delete"))
    assert len([name for name in before if ("pods", name) in cluster.objects]) == (1 if replaced else 2)
    assert cluster.objects["jobs", "llama"] is cluster.job and len(cluster.others) == (3 if replaced else 2)
    changed = [line for line in cluster.asked if not line.startswith("GET")]
    assert changed == {"evict": [f"POST pods/{node}/eviction"], "delete": [f"DELETE pods/{node}/"]}.get(verb, [])
    assert "T" not in states(cluster)


@pytest.mark.slow
def test_a_killed_harness_leaves_nothing_stopped(cluster: OthersStandIn, tmp_path: pathlib.Path) -> None:
    start(cluster, "true")
    going = subprocess.Popen(chaos(JOB, tmp_path, "stop", "60s"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with contextlib.ExitStack() as ending:
        ending.callback(going.wait)
        ending.callback(going.kill)
        until(lambda: "T" in states(cluster), "a stopped process")
        going.send_signal(signal.SIGKILL)
    until(lambda: "T" not in states(cluster), "all processes to go on")
    assert len(cluster.others) == 2


@pytest.mark.parametrize(
    ("rows", "stopped"),
    [
        ({"12/1": "T"}, True),
        ({"12/1": "D", "15/2": "T"}, True),  # forked since then, and stopped between vfork and exec
        ({"12/1": "D"}, False),
        ({"12/1": "S", "15/2": "T"}, False),
        ({"15/2": "T"}, False),
    ],
)
def test_a_child_that_was_forked_meanwhile_keeps_its_parent_stopped(rows: dict[str, str], stopped: bool) -> None:
    assert attached._run_no_more({"12/1"} & rows.keys(), rows) is stopped


def test_heal_lets_the_processes_go_on_and_only_of_that_pod(
    cluster: OthersStandIn, attach: Attach, tmp_path: pathlib.Path
) -> None:
    start(cluster, "true")
    job = attach()
    undo = job.undo_of("stop", job.nodes[0])
    job.act("stop", job.nodes[0])
    until(lambda: job.acted("stop", job.nodes[0], job.look()[job.nodes[0]]), "the stop to act")
    assert job.look()[job.nodes[1]].state == "running"
    record = {"undo": undo.action, "arguments": undo.arguments}
    (tmp_path / "run").mkdir()
    other = record | {"arguments": undo.arguments | {"uid": "of another pod"}}
    journal(tmp_path / "run", other)
    undo_open(tmp_path / "run")
    assert "T" in states(cluster)
    journal(tmp_path / "run", record)
    for _ in range(2):
        undo_open(tmp_path / "run")
    until(lambda: "T" not in states(cluster), "all processes to go on")


def journal(run_dir: pathlib.Path, record: dict[str, Any]) -> None:
    (run_dir / JOURNAL).write_text(json.dumps(record) + "\n")
    os.chmod(run_dir / JOURNAL, 0o600)


@pytest.mark.slow
def test_a_budget_that_forbids_it_is_told_and_not_forced(cluster: OthersStandIn, tmp_path: pathlib.Path) -> None:
    cluster.budget = True
    start(cluster)
    done = subprocess.run(chaos(JOB, tmp_path, "evict", "1s"), capture_output=True, text=True)
    assert done.returncode == 3, done.stdout + done.stderr
    report = told(tmp_path)
    assert report["verdict"] == "inconclusive" and "PodDisruptionBudget forbids it" in report["reasons"][0]
    assert len(cluster.others) == 2 and not [line for line in cluster.asked if line.startswith("DELETE")]


def test_a_container_that_a_kill_took_is_not_called_running(
    cluster: OthersStandIn, job: attached.KubernetesJob
) -> None:
    """The API server hears of it later than the one who asks inside."""
    node = job.nodes[0]
    assert job.undo_of("kill", node).arguments["verb"] == "kill"
    job.act("kill", node)
    cluster.shell = False
    seen = job.look()[node]
    assert seen.state == "unreachable" and not job.acted("kill", node, seen) and not job.healed("stop", seen)
    cluster.objects["pods", node]["status"]["containerStatuses"][0]["restartCount"] = 1
    seen = job.look()[node]
    assert seen.state == "running" and job.acted("kill", node, seen)


@pytest.mark.parametrize("allow", [None, "yes"])
def test_every_pod_needs_the_opt_in_of_its_owner(allow: str | None, cluster: OthersStandIn) -> None:
    start(cluster, "true")
    list(cluster.objects.values())[-1]["metadata"]["labels"]["chaos.allow"] = allow
    with pytest.raises(UsageError, match="its owner must allow this first"):
        attached.attach("job=llama")


def test_an_owner_may_allow_by_an_annotation_and_take_it_back(cluster: OthersStandIn, attach: Attach) -> None:
    cluster.start_job(2, {"job": "llama"}, **{"chaos.allow": "kill"})
    job = attach()
    assert job.allows_kill
    cluster.objects["pods", job.nodes[0]]["metadata"]["annotations"] = {"chaos.allow": "true"}
    with pytest.raises(UsageError, match=r"no chaos.allow=kill any more"):
        job.act("delete", job.nodes[0])
    cluster.objects["pods", job.nodes[1]]["metadata"]["annotations"] = {}
    with pytest.raises(UsageError, match="its owner must allow this first"):
        job.act("stop", job.nodes[1])
    assert not [line for line in cluster.asked if not line.startswith("GET") or "exec" in line]


def test_pods_of_a_harness_and_a_selector_of_no_pod_are_refused(cluster: OthersStandIn) -> None:
    cluster.start_job(0, {})
    with pytest.raises(UsageError, match="no pod in namespace team-a"):
        attached.attach("job=llama")
    cluster.start_job(1, {"job": "llama", "chaos.allow": "kill", "chaos.run_id": "r7"})
    with pytest.raises(UsageError, match="belongs to run r7 of a harness"):
        attached.attach("job=llama")


@pytest.mark.parametrize(("verb", "said"), [("pause", "stop is the nearest"), ("disconnect", "cannot be measured")])
def test_what_cannot_be_done_to_pods_is_told_with_its_reason(verb: str, said: str, job: attached.KubernetesJob) -> None:
    day = {"version": 1, "name": "a", "title": "A", "entries": [{"strike": verb}]}
    with pytest.raises(UsageError, match=f"{said}.*allowed: stop, kill, evict, delete"):
        check(AttachedDay.model_validate(day), job)


ALONE = "i=0; while :; do i=$((i + 1)); [ $((i % 100000)) -eq 1 ] && echo step $i; done"
NO_SHELL = r"no shell \(sh\) can be run in its container main.*chaos.allow-ephemeral=true.*allowed: evict, delete"


@pytest.mark.parametrize(
    ("shell", "host", "command", "said"),
    [
        (False, False, LAUNCHER, NO_SHELL),
        (True, True, LAUNCHER, "hostPID"),
        (True, False, ALONE, "has its process 1 alone"),
    ],
    ids=["no shell", "it would see its machine's processes", "process 1"],
)
def test_a_pod_whose_processes_cannot_be_signalled_from_inside_can_only_be_taken(
    shell: bool, host: bool, command: str, said: str, cluster: OthersStandIn, attach: Attach
) -> None:
    cluster.shell = shell
    start(cluster, command=command)
    job = attach()
    cluster.objects["pods", job.nodes[0]]["spec"]["hostPID"] = host
    with pytest.raises(UsageError, match=said):
        job.undo_of("stop", job.nodes[0])
    assert job.undo_of("evict", job.nodes[0]).action == "attached.kubernetes"


def test_a_shell_is_put_beside_it_where_the_owner_allows_that_and_ended_by_the_undo(
    cluster: OthersStandIn, attach: Attach
) -> None:
    cluster.shell = False
    cluster.start_job(2, {"job": "llama", "chaos.allow": "true", "chaos.allow-ephemeral": "true"})
    until(lambda: all("step" in pod.log.read_text() for pod in cluster.others.values()), "a step in each pod")
    job = attach()
    node = job.nodes[0]
    pod = cluster.objects["pods", node]
    undo = job.undo_of("stop", node)
    attached.UNDO(**undo.arguments)
    assert "ephemeralContainers" not in pod["spec"], "what was never done is not undone"
    job.act("stop", node)
    until(lambda: job.acted("stop", node, job.look()[node]), "the stop to act")
    for _ in range(2):
        attached.UNDO(**undo.arguments)
    assert job.look()[node].state == "running" and "T" not in states(cluster)
    [shell] = pod["status"]["ephemeralContainerStatuses"]
    assert shell["state"] == {"terminated": {"exitCode": 143}}

    undo = job.undo_of("stop", node)
    job.act("stop", node)
    pod["status"]["ephemeralContainerStatuses"][-1]["state"] = {"terminated": {"exitCode": 137}}
    with pytest.raises(BackendError, match="chaos-shell-2 was ended, so processes may still be stopped"):
        attached.UNDO(**undo.arguments)
    assert [each["name"] for each in pod["spec"]["ephemeralContainers"]] == ["chaos-shell-1", "chaos-shell-2"]


def test_what_nobody_would_bring_back_is_refused(cluster: OthersStandIn, attach: Attach) -> None:
    cluster.controlled = False
    start(cluster)
    job = attach()
    for verb in ("evict", "delete", "kill"):
        with pytest.raises(UsageError, match="bare pod: no controller would bring it back"):
            job.undo_of(verb, job.nodes[0])
        with pytest.raises(UsageError, match="nothing was done"):
            job.act(verb, job.nodes[0])
    assert job.undo_of("stop", job.nodes[0]).arguments["verb"] == "stop"


def test_a_pod_of_the_same_name_that_came_later_is_left_alone(
    cluster: OthersStandIn, job: attached.KubernetesJob
) -> None:
    cluster.objects["pods", job.nodes[0]]["metadata"]["uid"] = "another"
    with pytest.raises(UsageError, match="no longer there"):
        job.act("delete", job.nodes[0])
    with pytest.raises(BackendError, match="precondition"):
        job.api.delete("v1", "pods", job.nodes[0], uid="uid-1")


def test_the_role_allows_every_strike_and_nothing_that_creates() -> None:
    path = pathlib.Path(attached.__file__).with_name("rbac-attach.yaml")
    role = next(each for each in yaml.safe_load_all(path.read_text()) if each["kind"] == "Role")
    rights = {f"{verb} {name}" for rule in role["rules"] for verb in rule["verbs"] for name in rule["resources"]}
    assert set(attached.RIGHTS.values()) | {"get pods", "list pods", "get pods/log", "get jobs"} <= rights
    changing = {right for right in rights if not right.startswith(("get ", "list "))}
    assert changing == {*attached.RIGHTS.values(), "patch pods/ephemeralcontainers"}
