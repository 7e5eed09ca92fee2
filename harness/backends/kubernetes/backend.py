"""The Kubernetes backend: a node is a pod of an Indexed Job (or JobSet, PyTorchJob, TrainJob), and Kubernetes does all
scheduling.

The Job brings back a pod that was evicted or has died. If an injected fault ended the old pod, the new pod starts the
job's command only when the harness calls `replace`; otherwise the new pod starts the command at once. If the server has
no Indexed Jobs, nodes are single pods, and the harness creates their replacements.

Each pod sends its events, answers and logs at once to the harness, over the connection to its init process. The control
host is a pod of its own, which a disruption budget protects from eviction. `docs/kubernetes.md` has all settings
(`CHAOS_KUBE_…`).
"""

import contextlib
import math
import pathlib
import secrets
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace as replaced
from typing import Any

from harness.backends import clock_offset, delivery, run_folder
from harness.backends.cluster_base import ControlledCluster, EngineBackend
from harness.backends.contract import Change, Exit, Launch, Node, Verb, fill_placeholders
from harness.backends.kubernetes import manifests, trouble
from harness.backends.kubernetes.api import Api, Refused, chosen_cluster
from harness.backends.kubernetes.capability import LACKS, missing_verbs
from harness.backends.kubernetes.manifests import ClusterRun, Object
from harness.backends.kubernetes.mesh import Mesh
from harness.backends.kubernetes.mirror import Mirror
from harness.backends.kubernetes.pod import KubeNode, Pod
from harness.backends.kubernetes.reclaim import way_of
from harness.backends.kubernetes.settings import KINDS, VARIABLES, read_settings
from harness.backends.run_folder import CONTROL
from harness.errors import BackendError, CannotRunError, ChaosError, NodeGone, UsageError
from harness.node import metadata, pod_init
from harness.node.emitter import clock_id
from harness.node.node_paths import NODE_LABEL, POD_RUN_DIR

LOOK_S = 0.25
BEAT_S = 5.0
KILL_S_MAX = 20.0
SILENT_S_MAX = 60.0
PARALLEL = 8
_KILLED = -int(signal.SIGKILL)


class KubeCluster(ControlledCluster):
    tells_changes = True

    def __init__(self, api: Api, workload: Launch, run_dir: pathlib.Path, place: ClusterRun):
        super().__init__(workload)
        self._api, self._workload, self._place = api, workload, place
        self.run_dir = run_dir
        self.mesh = Mesh(api, place)
        self._way = way_of(api, place)
        self._token = secrets.token_urlsafe(32)
        self._lock = threading.RLock()
        self._nodes = [KubeNode(self, index, 0, None) for index in range(workload.nodes)]
        self._control: Pod | None = None
        self._vault = ""
        self._arrived: dict[int, Pod] = {}  # greeted, not yet a node
        self._known: list[Pod] = []  # all there ever were
        self._greeting: dict[str, Future[None]] = {}  # by uid; also those that are done
        self._held: set[int] = set()  # places whose node was taken by us and is not back yet
        self._given_up: set[int] = set()
        self._started = self._closed = False
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(PARALLEL, thread_name_prefix="pods")
        self._mirror = Mirror(run_dir, self._mirrored)
        self._watcher = threading.Thread(target=self._watch, name="kubernetes", daemon=True)
        run_folder.prepare(run_dir, workload, [CONTROL, *(node.name for node in self._nodes)])
        try:
            self._create()
        except BaseException:
            self.close()
            raise

    # What the harness asks for

    @property
    def nodes(self) -> list[Node]:
        with self._lock:
            return list(self._nodes)

    @property
    def waiting(self) -> bool:
        """Returns True if Kubernetes will bring back a pod by itself, because the pod was lost without an injected
        fault. Kubernetes never brings back single pods, which belong to no Job."""
        with self._lock:
            lost = [each.index for each in self._nodes if not each.alive]
            return self._place.kind != "pods" and any(index not in self._held | self._given_up for index in lost)

    def node_labels(self, key: str) -> list[str]:
        pods = [node.pod for node in self._nodes]
        return ["" if pod is None else self._api.machine_labels(pod.machine).get(key, "") for pod in pods]

    def start(self) -> None:
        if self._workload.control is not None:
            self.restart_control()
        with self._lock:
            self._started = True
            for node in self._nodes:
                self._start_node(node)
        self._mirror.start()

    def change_command(self, command: tuple[str, ...], env: Mapping[str, str]) -> None:
        self._workload = self._workload.changed(command, env)

    def replace(self, node: Node) -> Node:
        """Lets a replacement pod take the place of a lost node, and waits until this pod has become the new node."""
        self.refuse_replacement(node)
        self._way.give_back(node.index)
        if self._place.kind == "pods":
            wanted = manifests.node_pod(self._workload, self._place, node.index, node.incarnation + 1)
            self._api.create(wanted)
        with self._lock:
            self._held.discard(node.index)
            self._settle(node.index)
        self._wait(lambda: self._nodes[node.index] is not node, f"no pod for {node.name} came back")
        return self._nodes[node.index]

    def give_up(self, node: Node) -> None:
        with self._lock:
            self._given_up.add(node.index)

    @property
    def control_host(self) -> Pod | None:
        return self._control

    def start_control(self, start: int, command: tuple[str, ...]) -> None:
        assert self._control is not None, "the job was not opened without its control host"
        filled = fill_placeholders(command, self._values(self._control))
        self._control.run(start, filled, self._environment(self._control, CONTROL, start), CONTROL)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._stop.set()
        self._mirror.close()
        if self._watcher.is_alive():
            self._watcher.join(30.0)
        try:
            self._collect_last_words()
        finally:
            # A kubelet gives the processes their grace even where the pod is deleted without any. With any other code
            # their job would bring them back.
            wait([self._pool.submit(pod.die, 0) for pod in self._known])
            self._pool.shutdown(wait=True, cancel_futures=True)
            for pod in self._known:
                pod.running = 0
                pod.close()
            end_run(self._api, self._place)
            self._api.close()

    # What nodes ask for

    def kill(self, node: KubeNode) -> None:
        """Kills all processes of a node by SIGKILL from the pod's init, because a kubelet would send SIGTERM first.
        After the kill, deletes the pod without a grace period, so that Kubernetes knows of the loss at once."""
        pod = self._take(node, "node lost")
        try:
            pod.die()
        finally:
            self._api.delete("v1", "pods", pod.name, grace_s=0)
        if not pod.wait_ended(KILL_S_MAX):
            raise BackendError(f"{node.key} is still there {KILL_S_MAX:g} s after it was killed")

    def evict(self, node: KubeNode, grace_s: float) -> None:
        self._refuse_machine(node)
        pod = self._take(node, "evicted")
        self._way.take(pod, node.index, math.ceil(grace_s))

    def _refuse_machine(self, node: KubeNode) -> None:
        """Raises `CannotRunError` if the removal of this node's machine would also remove other nodes or the control
        host of the job."""
        if not self._way.takes_machine or node.pod is None or self._control is None:
            return
        machine, how = node.pod.machine, f"CHAOS_KUBE_EVICT={self._place.settings.evict}"
        if machine == self._control.machine:
            raise CannotRunError(
                f"{how} would take machine {machine}, where the control pod {self._control.name} runs: "
                "name other machines for it by CHAOS_KUBE_CONTROL_SELECTOR, or use CHAOS_KUBE_EVICT=evict"
            )
        others = [(each.name, each.pod) for each in self._nodes if each is not node and each.alive]
        beside = [name for name, pod in others if pod is not None and pod.machine == machine]
        if self._way.takes_all_there and beside:
            raise CannotRunError(
                f"{how} would take machine {machine} with {node.name} and {', '.join(beside)}: "
                "each node needs a machine of its own (see CHAOS_KUBE_RESOURCES), or use CHAOS_KUBE_EVICT=evict"
            )

    def pod_of(self, peer: Node | None) -> Pod:
        pod = self._control if peer is None else self._nodes[peer.index].pod
        if pod is None or pod.ended:
            raise NodeGone(f"{'the control host' if peer is None else peer.name} is gone")
        return pod

    def others(self, node: KubeNode) -> list[Pod]:
        with self._lock:
            return [each.pod for each in self._nodes if each is not node and each.pod is not None and each.alive]

    def _take(self, node: KubeNode, reason: str) -> Pod:
        """Marks a node as taken away by a fault: a replacement pod then waits until the harness calls `replace`."""
        with self._lock:
            if node.pod is None or not node.alive:
                raise NodeGone(f"{node.key} is gone")
            self._held.add(node.index)
            node.end_reason = reason
            return node.pod

    # Pods that come and go

    def _create(self) -> None:
        for wanted in (manifests.delivered(self._place), *manifests.render(self._workload, self._place)):
            try:
                self._api.create(wanted)
            except Refused as error:
                what = f"{wanted['kind']} {wanted['metadata']['name']}"
                raise CannotRunError(f"Kubernetes refuses {what}: {error}") from error
        self._watcher.start()
        self._wait(lambda: self._control is not None, "the control host's pod did not start")
        self._wait(lambda: all(each.incarnation for each in self._nodes), "not all pods started")
        for node in self._nodes:
            self._refuse_machine(node)
        self.comings_and_goings.take()  # these nodes are told by whoever opened this

    def _wait(self, until: Callable[[], bool], problem: str) -> None:
        deadline = time.monotonic() + self._place.settings.wait_s
        while not until():
            if self.broken:
                raise self.broken
            if time.monotonic() > deadline or self._stop.is_set():
                reasons = [f"{pod['metadata']['name']}: {trouble.describe(pod)}" for pod in self._api.pods(self._place)]
                why = "; ".join(reasons) or "there is no pod; look at the events of the job (kubectl describe)"
                raise CannotRunError(f"{problem} within {self._place.settings.wait_s:g} s: {why}")
            time.sleep(0.01)

    def _watch(self) -> None:
        answered = beaten = time.monotonic()
        while not self._stop.wait(LOOK_S):
            try:
                self._look()
                answered = time.monotonic()
            except (BackendError, CannotRunError) as error:
                if isinstance(error, CannotRunError) or time.monotonic() - answered > SILENT_S_MAX:
                    self.broken = error
                    return
            if time.monotonic() - beaten > BEAT_S:
                beaten = time.monotonic()
                self._beat()

    def _look(self) -> None:
        for pod in self._api.pods(self._place):
            uid, phase = pod["metadata"]["uid"], pod["status"].get("phase")
            preempts = pod["metadata"]["labels"].get(NODE_LABEL) == manifests.PREEMPTOR
            if preempts or uid in self._greeting or "deletionTimestamp" in pod["metadata"]:
                continue
            if phase == "Running":
                self._greeting[uid] = self._pool.submit(self._greet, pod)
            elif phase == "Pending":
                trouble.refuse_hopeless(pod)

    def _beat(self) -> None:
        with self._lock:
            pods = [*self._pods(), *self._arrived.values()]
        for pod in pods:
            pod.beat(pod_init.SILENT_S_MAX + BEAT_S)

    def _greet(self, wanted: Object) -> None:
        try:
            self._greet_or_raise(wanted)
        except Exception as error:  # any error: no other code would see it
            name = wanted["metadata"]["name"]
            if not self._stop.is_set() and any(pod["metadata"]["name"] == name for pod in self._api.pods(self._place)):
                words = str(error) if isinstance(error, ChaosError) else repr(error)
                self.broken = error if isinstance(error, CannotRunError) else BackendError(words)

    def _greet_or_raise(self, wanted: Object) -> None:
        errors = self.run_dir / "logs" / f"{wanted['metadata']['name']}.init.log"
        pod = Pod(self._api, wanted, errors, self._on_event, self._on_end)
        self._known.append(pod)
        self._refuse_other_source(pod)
        if pod.hello["role"] == CONTROL:
            self._vault = pod.call("open_vault", token=self._token)
            self._note_clock(pod)
            self._control = pod
            return
        while self._control is None:
            if self._stop.wait(0.02):
                return
        self._mirror.greet(pod)
        shared = self._place.name if self._place.settings.checkpoints else ""
        pod.call("configure", 120.0, url=self._vault, token=self._token, shared=shared)
        self._note_clock(pod)
        with self._lock:
            index = int(pod.hello["index"])
            if not 0 <= index < len(self._nodes):
                raise BackendError(f"pod {pod.name} has no place in the job: its index is {index}")
            self._arrived[index] = pod
            self._settle(index)

    def _refuse_other_source(self, pod: Pod) -> None:
        if pod.hello["digest"] != delivery.digest():
            reason = "runs other code than what was delivered to it"
        elif delivery.runs_reference_trainer(self._workload) and pod.hello["trainer"] != delivery.trainer_digest():
            image = self._place.settings.image
            reason = f"has another version of the reference trainer: build image {image!r} again"
        else:
            return
        pod.close()
        raise CannotRunError(f"pod {pod.name} {reason}")

    def _settle(self, index: int) -> None:
        """Makes a new pod the job's node with this index, unless the old node is alive or must not be replaced now."""
        with self._lock:
            before = self._nodes[index]
            pod = self._arrived.get(index)
            if pod is None or before.alive or index in self._held | self._given_up:
                return
            del self._arrived[index]
            if pod.ended:
                return
            node = KubeNode(self, index, before.incarnation + 1, pod)
            self._nodes[index] = node
            self.comings_and_goings.append(Change(node.name, node.incarnation, allocated=True))
            if self._started:
                self._start_node(node)

    def _on_event(self, pod: Pod, event: dict[str, Any]) -> None:
        try:
            if not pod.node:  # nothing runs there yet, and it has nothing to tell
                return
            if not self._mirror.take(pod.node, event) and event["event"] == "exit":
                self._note_exit(pod, int(event["code"]))
        except (ChaosError, OSError, ValueError, TypeError, KeyError) as error:
            self.broken = BackendError(f"what a pod wrote cannot be kept: {error}")

    def _on_end(self, pod: Pod) -> None:
        if not pod.node or self._closed:
            return
        with self._lock:
            self._note_exit(pod, _KILLED)
            if pod is self._control:
                self.broken = BackendError("the control host is lost: the line to its pod has ended")
            for index in [index for index, each in self._arrived.items() if each is pod]:
                del self._arrived[index]
            for node in self._nodes:
                if node.pod is pod:
                    reason = node.end_reason
                    self.comings_and_goings.append(Change(node.name, node.incarnation, allocated=False, reason=reason))
                    self._settle(node.index)

    def _note_exit(self, pod: Pod, code: int) -> None:
        with self._lock:
            start, pod.running = pod.running, 0
            if start:
                self.ends.append(Exit(pod.node, start, code))

    def _note_clock(self, pod: Pod) -> None:
        if pod.hello["clock"] == clock_id():
            return
        host = pod.hello["host"]
        self.readings.append(clock_offset.compare(host, lambda: int(pod.call("clock")["wall_ns"])))
        ahead = clock_offset.compare(host, lambda: int(pod.call("clock")["mono_ns"]), now_ns=time.monotonic_ns)
        pod.mono_offset_ns = ahead.offset_ns

    # What runs

    def _start_node(self, node: KubeNode) -> None:
        assert node.pod is not None, "a node that starts has a pod"
        values = {"index": node.index, "incarnation": node.incarnation} | self._values(node.pod)
        command = fill_placeholders(self._workload.command, values)
        try:
            node.pod.run(node.incarnation, command, self._environment(node.pod, node.name, node.incarnation), node.key)
        except NodeGone:
            return  # told by the end of its line

    def _values(self, pod: Pod) -> dict[str, object]:
        control = self._control.address if self._control is not None else ""
        first = self._nodes[0].pod
        head = first.address if first is not None else ""
        return {"address": pod.address, "control": control, "head": head, "run_dir": POD_RUN_DIR, "python": "python3"}

    def _environment(self, pod: Pod, name: str, start: int) -> dict[str, str]:
        device = pod.hello["device"]
        devices = {f"{library}_SOCKET_IFNAME": device for library in ("GLOO", "TP", "NCCL")} if device else {}
        marks = run_folder.environment(POD_RUN_DIR, name) | run_folder.key_of(self.run_dir)
        marks |= {"CHAOS_NODE": name, "CHAOS_INCARNATION": str(start), "CHAOS_RUN_ID": self._place.run_id}
        here = str(self.run_dir)
        given = {key: value.replace(here, POD_RUN_DIR) for key, value in self._workload.env.items()}
        return {**devices, **metadata.environment(pod.hello["metadata"]), **given, **marks}

    def _pods(self) -> list[Pod]:
        found = [node.pod for node in self._nodes if node.pod is not None and node.alive]
        return [*found, *([self._control] if self._control is not None and not self._control.ended else [])]

    def _mirrored(self) -> list[Pod]:
        with self._lock:
            return [pod for pod in [*self._pods(), *self._arrived.values()] if pod is not self._control]

    def _collect_last_words(self) -> None:
        with self._lock:
            pods = self._pods()
        for pod in pods:
            try:
                pod.call("flush", 10.0)
            except BackendError:
                continue  # it is ending; what it told has come
        if self._control is not None and not self._control.ended and self._place.settings.checkpoints:
            self._control.call("remove_shared", 60.0, shared=self._place.name)


def end_run(api: Api, place: ClusterRun) -> int:
    """Removes all Kubernetes objects of a run, and puts the machines that the run took away back into service. Repeated
    calls are safe."""
    return api.remove_run(place) + way_of(api, place).heal()


def UNDO(run_id: str, environment: dict[str, str]) -> None:
    """Removes everything that a run made in its Kubernetes cluster. Raises `CannotRunError` if the cluster does not
    answer."""
    with BACKEND.as_recorded(environment):
        settings = read_settings()
        api = Api(settings)
    with contextlib.closing(api):
        end_run(api, ClusterRun(run_id, settings))


class KubernetesBackend(EngineBackend):
    name, kinds, never, labels = "kubernetes", KINDS, LACKS, True
    settings = ("KUBECONFIG", "HOME", *VARIABLES)

    def whereabouts(self) -> dict[str, str]:
        """Returns the kubeconfig, context and namespace in use, so that the same cluster is found even if the current
        context changes."""
        return super().whereabouts() | chosen_cluster(read_settings())

    def try_out(self) -> tuple[str, dict[Verb, str]]:
        settings = read_settings()
        with contextlib.closing(Api(settings)) as api:
            place = ClusterRun("probe", settings, api.dialect)
            return f"{api.label}, pods by {place.kind}, {place.dialect.policy}", missing_verbs(api, place)

    def render(self, workload: Launch) -> list[Object]:
        return manifests.render(workload, ClusterRun())

    def render_as(self, workload: Launch, kind: str, run_id: str) -> list[Object]:
        settings = read_settings()
        if kind and kind not in KINDS:
            raise UsageError(f"--as {kind}: allowed are {', '.join(KINDS)}")
        return manifests.render(workload, ClusterRun(run_id, replaced(settings, kind=kind or settings.kind)))

    def open(self, workload: Launch, run_dir: pathlib.Path, run_id: str) -> KubeCluster:
        if workload.sources:
            text = f"pods do not see {', '.join(workload.sources)}: put the trainer's files into the image"
            raise UsageError(f"{text}, and name them in the scenario by absolute paths")
        settings = read_settings()
        api = Api(settings)
        try:
            return KubeCluster(api, workload, run_dir, ClusterRun(run_id, settings, api.dialect))
        except BaseException:
            api.close()
            raise


BACKEND = KubernetesBackend()
