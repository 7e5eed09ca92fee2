"""Attaches to a job of pods that somebody else started, and finds the pods by a label selector.

Every pod of the job must have the label or annotation `chaos.allow`, by which its owner allows faults. The harness runs
only a few lines of shell in the job's pods, by the exec API of Kubernetes. A pod is evicted, deleted or killed only if
the job's own controller (or the kubelet) brings the pod back.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from harness.attach.kubernetes import ephemeral, others
from harness.attach.kubernetes.comes_back import Returns
from harness.backends.attached import NEEDS_KILL, OPT_IN, RUNNING, AttachedJob, Seen, Undo, all_stopped, refuse_unasked
from harness.backends.kubernetes.api import Api, Refused
from harness.backends.kubernetes.backend import BACKEND
from harness.backends.kubernetes.manifests import Object
from harness.backends.kubernetes.settings import read_settings
from harness.errors import BackendError, UsageError
from harness.node.node_paths import RUN_LABEL

LINES, LINE_MAX = 200, 1000  # of each pod's log
LOG_BYTES_MAX = 2**20
UNREACHABLE = "unreachable"  # no shell answers there, and the API server says yet that all is well
INSIDE = {"stop", "kill"}  # by signals, from a shell in the container
RIGHTS = {
    "stop": "create pods/exec",
    "kill": "create pods/exec",
    "evict": "create pods/eviction",
    "delete": "delete pods",
}
# Signals every process of the container but its first, which hears neither SIGSTOP nor SIGKILL from inside, this
# shell, and what keeps the shell's own container. Prints /proc/PID/stat of each. Needs no program but the shell.
SCRIPT = rf"""
own=0
[ -r {ephemeral.OWN} ] && read -r own <{ephemeral.OWN}
for folder in /proc/[0-9]*; do
    pid=${{folder#/proc/}}
    case $pid in 1 | $$ | $own) continue ;; esac
    [ "$1" = LOOK ] || kill -s "$1" "$pid"
    read -r line <"$folder/stat" && echo "$line"
done 2>/dev/null
true
"""
_WHOLE_LABEL = re.compile(r"[^=!\s]+={1,2}[^=!\s]+")

LACKS = {
    "pause": "nothing freezes a pod from outside; stop is the nearest",
    "disconnect": "Chaos Mesh could, but whether it acted cannot be measured in pods that are not ours",
}


class KubernetesJob(AttachedJob):
    verbs = ("stop", "kill", "evict", "delete")
    lacks = LACKS

    def __init__(self, api: Api, selector: str, pods: Sequence[Object], allows_kill: bool):
        self.api, self.selector, self.allows_kill = api, selector, allows_kill
        self.name = f"kubernetes {selector} in namespace {api.namespace}"
        self._pods = {others.name_of(pod): pod for pod in pods}  # by node, as last seen
        self.nodes = sorted(self._pods)
        self._returns = Returns(api)
        self._shells: dict[str, str] = {}  # the container of a node in which signals are sent
        self._struck: dict[str, str] = {}  # the life of a node when it was struck last
        self._signalled: dict[str, set[str]] = {}  # its processes then
        self._left: dict[str, set[str]] = {}  # those of them that lived when it was looked at last

    def look(self) -> Mapping[str, Seen]:
        now = others.matched(self._pods, self._all())
        found = {node: self._seen(now[node], self._pods[node], node) for node in self.nodes}
        self._pods |= {node: pod for node, pod in now.items() if pod is not None}
        return found

    def log_tails(self) -> Mapping[str, Sequence[str]]:
        tails: dict[str, Sequence[str]] = {}
        for node, pod in self._pods.items():
            try:
                text = self.api.log_tail(others.name_of(pod), others.container_of(pod), LINES, LOG_BYTES_MAX)
            except Refused:
                text = ""  # it has not started, or is gone
            tails[node] = [line[:LINE_MAX] for line in text.splitlines()[-LINES:]]
        return tails

    def undo_of(self, verb: str, node: str) -> Undo:
        pod = self._allowed_still(node)
        right, resource = RIGHTS[verb].split()
        if not self.api.may(right, resource):
            where = "harness/attach/kubernetes/rbac-attach.yaml has what is needed"
            raise UsageError(f"{verb}: no right to {right} {resource} in namespace {self.api.namespace}; {where}")
        if verb in NEEDS_KILL and (why := self._returns.why_not(verb, pod, self._all())):
            raise UsageError(f"{verb} of pod {others.name_of(pod)}: {why}; strike it with stop instead")
        shell = self._shells[node] = _shell_for(self.api, pod, verb) if verb in INSIDE else ""
        arguments = {
            "pod": others.name_of(pod),
            "uid": others.uid_of(pod),
            "shell": shell,
            "ephemeral_shell": shell not in ("", others.container_of(pod)),
            "verb": verb,
            "environment": BACKEND.whereabouts(),
        }
        return Undo("attached.kubernetes", arguments)

    def act(self, verb: str, node: str) -> None:
        pod = self._allowed_still(node)
        name, uid = others.name_of(pod), others.uid_of(pod)
        if verb in NEEDS_KILL and (why := self._returns.why_not(verb, pod, self._all())):
            raise UsageError(f"{verb} of pod {name}: {why}; nothing was done to it")
        self._struck[node] = others.seen(pod, pod).life
        if verb in NEEDS_KILL:
            self._returns.note(pod)
        if verb in INSIDE:
            shell = self._shells[node]
            if shell != others.container_of(pod):
                ephemeral.add(self.api, pod, others.container_of(pod), shell, read_settings())
            rows = _signal(self.api, name, shell, "LOOK")
            self._signalled[node] = self._left[node] = set(rows)
            try:
                _signal(self.api, name, shell, verb.upper())
            except BackendError:
                # A kill may take the container, and this shell with it, before the shell has answered.
                if verb != "kill":
                    raise
            return
        self._signalled.pop(node, None)
        if verb == "evict":
            _evict(self.api, name, uid)
        else:
            self.api.delete("v1", "pods", name, uid=uid)

    def acted(self, verb: str, node: str, seen: Seen) -> bool:
        """Returns True if the last act on a node's pod took effect. An eviction, a deletion or a kill changes the
        node's `life` (pod and restart count), even if the pod is back already."""
        if verb == "stop":
            return seen.state == "stopped"
        another = seen.life != self._struck[node]
        return another or (not self._left[node] if verb == "kill" else seen.state == others.ENDING)

    def healed(self, verb: str, seen: Seen) -> bool:
        """Returns True unless the pod is stopped or cannot be reached: only stopped processes need an undo. The pod's
        controller, not the harness, replaces an evicted, deleted or killed pod."""
        return seen.state not in ("stopped", UNREACHABLE)

    def close(self) -> None:
        self.api.close()

    def _all(self) -> Sequence[Object]:
        return self.api.list("v1", "pods", self.selector)

    def _seen(self, pod: Object | None, last: Object, node: str) -> Seen:
        found = others.seen(pod, last)
        if pod is None or found.state != RUNNING or found.life != self._struck.get(node) or node not in self._signalled:
            return found
        shell = self._shells[node]
        if shell != others.container_of(pod) and not ephemeral.runs(pod, shell):
            return found  # ended by the undo
        try:
            rows = _signal(self.api, others.name_of(pod), shell, "LOOK")
        except BackendError:
            after = others.seen(self.api.pod(others.name_of(pod)), pod)  # it may have ended meanwhile
            return after if after != found else replace(found, state=UNREACHABLE)
        left = self._left[node] = {each for each in self._signalled[node] if each in rows}
        stopped = _run_no_more(left, rows)
        return Seen("stopped", found.life, told=found.told) if stopped else found

    def _allowed_still(self, node: str) -> Object:
        last = self._pods[node]
        pod = self.api.pod(others.name_of(last))
        if pod is None or others.uid_of(pod) != others.uid_of(last) or not others.lives(pod):
            raise UsageError(f"pod {others.name_of(last)} is no longer there or is ending; nothing was done to it")
        kills = _refuse_foreign(pod)
        if self.allows_kill and not kills:
            raise UsageError(f"pod {others.name_of(pod)} has no {OPT_IN}=kill any more; nothing was done to it")
        return pod


def attach(selection: str) -> KubernetesJob:
    """Returns the job whose pods match the label selector `selection`. Raises `UsageError` unless every live pod of the
    job has the owner's opt-in `chaos.allow`."""
    if not any(_WHOLE_LABEL.fullmatch(part) for part in selection.split(",")):
        whole = "write a label selector with at least one whole label, KEY=VALUE: a key may fit several jobs"
        raise UsageError(f"--attach kubernetes:{selection}: {whole}")
    api = Api(read_settings())
    try:
        try:
            found = api.list("v1", "pods", selection)
        except Refused as error:
            raise UsageError(f"--attach kubernetes:{selection}: {error}") from error
        pods = [pod for pod in found if others.lives(pod)]
        if not pods:
            why = f"no pod in namespace {api.namespace} runs with these labels"
            raise UsageError(f"--attach kubernetes:{selection}: {why}")
        return KubernetesJob(api, selection, pods, all([_refuse_foreign(pod) for pod in pods]))
    except BaseException:
        api.close()
        raise


def _refuse_foreign(pod: Object) -> bool:
    name, labels = others.name_of(pod), pod["metadata"].get("labels") or {}
    if RUN_LABEL in labels:
        raise UsageError(f"pod {name} belongs to run {labels[RUN_LABEL]} of a harness; nothing was touched")
    how = f"with the label or annotation {OPT_IN}=true on the pod, best in the template of its controller"
    return refuse_unasked(f"pod {name}", others.told_by_owner(pod), how)


def _shell_for(api: Api, pod: Object, verb: str) -> str:
    """Returns the name of a pod's container from which signals will be sent: the job's own, or a new ephemeral one.

    Raises `UsageError` if signals from inside the pod would not reach the job's processes, or would also reach
    processes outside the pod.
    """
    name, container = others.name_of(pod), others.container_of(pod)
    instead = f"allowed: evict, delete, with {OPT_IN}=kill"
    if pod["spec"].get("hostPID"):
        raise UsageError(f"{verb} of pod {name}: it sees the processes of its machine (hostPID); {instead}")
    try:
        rows = _signal(api, name, container, "LOOK")
    except BackendError as error:
        if ephemeral.allowed(pod) and api.may("patch", "pods/ephemeralcontainers"):
            return ephemeral.next_name(pod)
        why = f"no shell (sh) can be run in its container {container}: {error}"
        more = f"{ephemeral.ALLOW}=true on the pod, and the right to patch pods/ephemeralcontainers, would allow one"
        raise UsageError(f"{verb} of pod {name}: {why}; {more}; {instead}") from error
    if not rows:
        why = f"container {container} has its process 1 alone, and no signal from inside stops or kills that one"
        more = "start the job through an init or a shell, or set shareProcessNamespace: true"
        raise UsageError(f"{verb} of pod {name}: {why}; {more}; {instead}")
    return container


def _run_no_more(left: Collection[str], rows: Mapping[str, str]) -> bool:
    """Returns True if all processes of a pod that got a stop signal are stopped. A parent process that waits in the
    kernel for its stopped child counts as stopped."""
    beside = {"T", "t"} & set(rows.values())
    return bool(left) and all_stopped([*(rows[each] for each in left), *beside])


def _signal(api: Api, pod: str, container: str, what: str) -> dict[str, str]:
    """Sends the signal `what` to the processes of a pod, or no signal if `what` is `LOOK`. Returns the state of each
    process, such as `T` for stopped, by process id and start time."""
    text = api.execute(pod, container, ("sh", "-c", SCRIPT, "sh", what))
    found = {}
    for line in text.splitlines():  # of /proc/PID/stat: after the name in brackets the state; the start is field 22
        rest = line.rpartition(")")[2].split()
        if len(rest) > 19 and rest[0] not in "ZX":
            found[f"{line.split()[0]}/{rest[19]}"] = rest[0]
    return found


def _evict(api: Api, pod: str, uid: str) -> None:
    try:
        api.evict(pod, uid=uid)
    except Refused as error:
        if error.status != 429:
            raise
        why = "a PodDisruptionBudget forbids it now, and the harness does not force it"
        raise BackendError(f"pod {pod} was not evicted: {why}: {error}") from error


def _undo(pod: str, uid: str, shell: str, ephemeral_shell: bool, verb: str, environment: dict[str, str]) -> None:
    """Undoes one act on a pod. Evicted, deleted and killed pods need no undo: their controller replaces them."""
    if verb != "stop" and not ephemeral_shell:
        return
    with BACKEND.as_recorded(environment):
        api = Api(read_settings())
    with contextlib.closing(api):
        found = api.pod(pod)
        if found is None or others.uid_of(found) != uid or others.seen(found, found).state != RUNNING:
            return
        if ephemeral_shell:
            _undo_beside(api, found, shell)
        else:
            _signal(api, pod, shell, "CONT")


def _undo_beside(api: Api, pod: Object, shell: str) -> None:
    """Lets the stopped processes of a pod continue, and ends the ephemeral container that sent the stop signal. Raises
    `BackendError` if somebody else has ended the ephemeral container, so that processes may still be stopped."""
    if not ephemeral.still_owes(pod, shell):
        return
    name = others.name_of(pod)
    if not ephemeral.runs(pod, shell):
        why = f"{shell} was ended, so processes may still be stopped"
        raise BackendError(f"pod {name}: {why}: send them SIGCONT, or delete the pod where its controller replaces it")
    _signal(api, name, shell, "CONT")
    ephemeral.end(api, name, shell)


UNDO = _undo
HOW = "kubernetes:SELECTOR, labels that all pods of the job have and no others, such as job-name=llama"
