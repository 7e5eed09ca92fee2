"""Finds the Kubernetes API server, sends requests to it, and removes a run's objects by their label.

Kubernetes objects are plain dictionaries, in requests and in answers.
"""

import functools
import json
import os
import pathlib
import threading
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

from harness.backends.contract import Launch
from harness.backends.kubernetes import manifests
from harness.backends.kubernetes.manifests import ClusterRun, Dialect, Object
from harness.backends.kubernetes.settings import Settings
from harness.backends.kubernetes.stream import PodStream, run_to_end
from harness.errors import BackendError, CannotRunError, each
from harness.extras import how_to_install

CALL_S_MAX = 30.0
AGAIN = ("GET", "DELETE")  # asking twice does what asking once does
AGAIN_STATUS = (429, 500, 502, 503, 504)
AGAIN_TIMES, AGAIN_S_MAX = 12, 15.0  # about two minutes in all: an API server that restarts is back by then
CONNECT_S_MAX = 5.0
GONE_S_MAX = 60.0
SERVICE_ACCOUNT = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount")

PLURALS = {
    "ConfigMap": "configmaps",
    "Service": "services",
    "Pod": "pods",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "PodGroup": "podgroups",
    "Job": "jobs",
    "JobSet": "jobsets",
    "PyTorchJob": "pytorchjobs",
    "TrainJob": "trainjobs",
    "TrainingRuntime": "trainingruntimes",
    "NetworkChaos": "networkchaos",
}
CHAOS_MESH = "chaos-mesh.org/v1alpha1"


class Refused(BackendError):
    """Raised if the Kubernetes API server refuses a request. `status` is the HTTP status of the answer."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


class Api:
    """A client of the Kubernetes API server that serves one cluster. Several threads may use the client at the same
    time. Methods raise `BackendError` if a request fails."""

    def __init__(self, settings: Settings):
        """Connects to the API server. Raises `CannotRunError` with advice if the Python package kubernetes or a
        kubeconfig is missing, or if the server does not answer."""
        try:
            import kubernetes
        except ImportError as error:
            how = how_to_install("kubernetes")
            raise CannotRunError(f"the Python package kubernetes is not installed: {how}") from error
        self._configuration, self.namespace = _configure(kubernetes, settings)
        self._http = kubernetes.client.ApiClient(self._configuration).rest_client.pool_manager
        if not self._configuration.verify_ssl:  # as the kubeconfig wants it: no need to be told at every call
            import urllib3

            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        self._cache: dict[str, Any] = {}
        self._lock = threading.Lock()
        try:
            self.version: Mapping[str, str] = self.ask("GET", "/version", limit_s=CONNECT_S_MAX, patient=False)
        except BackendError as error:
            host = self._configuration.host
            raise CannotRunError(f"no Kubernetes API server answers at {host}: {error}") from error

    @property
    def label(self) -> str:
        return f"Kubernetes {self.version.get('gitVersion', '?')}, namespace {self.namespace}"

    # Asking

    def ask(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        query: Mapping[str, str] | None = None,
        limit_s: float = CALL_S_MAX,
        patient: bool = True,
        as_text: bool = False,
    ) -> Any:
        """Sends a request to the API server. Returns the answer as text with `as_text`, or else parsed if it is JSON.

        Raises `Refused` for an HTTP error status, and `BackendError` if no answer comes. With `patient`, a GET or
        DELETE request is repeated for about two minutes while the server is busy, restarting or out of reach.
        """
        import urllib3

        url = self._configuration.host + path + (f"?{urllib.parse.urlencode(query)}" if query else "")
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Accept": "application/json", "Content-Type": kind, **self._authorization()}
        try:
            answer = self._http.request(
                method,
                url,
                body=None if body is None else json.dumps(body),
                headers=headers,
                timeout=urllib3.Timeout(connect=CONNECT_S_MAX, read=limit_s),
                retries=self._again(method, patient),
            )
        except urllib3.exceptions.HTTPError as error:
            raise BackendError(f"{method} {path}: {error}") from error
        text = answer.data.decode(errors="replace")
        if answer.status >= 400:
            try:
                reason = str(json.loads(text).get("message", ""))
            except (ValueError, AttributeError):
                reason = text.strip()[:200]
            raise Refused(answer.status, f"{method} {path}: {reason or f'HTTP {answer.status}'}")
        return json.loads(text) if text.startswith(("{", "[")) and not as_text else text

    @staticmethod
    def _again(method: str, patient: bool) -> Any:
        import urllib3

        if method not in AGAIN or not patient:
            return False
        return urllib3.Retry(
            AGAIN_TIMES,
            status_forcelist=AGAIN_STATUS,
            allowed_methods=None,
            backoff_factor=0.5,
            backoff_max=AGAIN_S_MAX,
            raise_on_status=False,
        )

    def get(self, path: str, query: Mapping[str, str] | None = None, limit_s: float = CALL_S_MAX) -> Any:
        return self.ask("GET", path, query=query, limit_s=limit_s)

    def _authorization(self) -> dict[str, str]:
        with self._lock:  # a token may be fetched anew here, by a program the kubeconfig names
            found = self._configuration.auth_settings()
        return {entry["key"]: entry["value"] for entry in found.values() if entry["in"] == "header" and entry["value"]}

    # What there is

    @functools.cached_property
    def dialect(self) -> Dialect:
        probe = manifests.ClusterRun("dialect", Settings(), Dialect())
        workload = Launch(("true",), 1, 1)
        job = manifests.RENDERERS["job"](workload, probe)[0]
        job["metadata"]["name"] = "chaos-probe"
        kept = self.create(job, dry_run=True)["spec"]
        return Dialect("completionMode" in kept, "podFailurePolicy" in kept, self.policy)

    @property
    def policy(self) -> str:
        """Returns the API version (`policy/…`) in which this server has disruption budgets and evictions."""
        return "policy/v1" if self.serves("policy/v1", "poddisruptionbudgets") else "policy/v1beta1"

    def serves(self, version: str, plural: str) -> bool:
        if version not in self._cache:
            try:
                found = self.get(f"/{_root(version)}")
            except Refused as error:
                if error.status not in (403, 404):
                    raise
                found = {"resources": []}
            self._cache[version] = {entry["name"] for entry in found["resources"]}
        return plural in self._cache[version]

    def may(self, verb: str, resource: str, group: str = "", namespaced: bool = True) -> bool:
        """Returns True if the server allows this user the act `verb`, such as `create`, on a kind of resource.
        `resource` may include a subresource, as in `pods/exec`."""
        name, _, subresource = resource.partition("/")
        wanted = {"verb": verb, "resource": name, "subresource": subresource, "group": group}
        if namespaced:
            wanted["namespace"] = self.namespace
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": wanted},
        }
        answer = self.ask("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
        return bool(answer["status"].get("allowed"))

    # Objects of our namespace

    def path(self, version: str, plural: str, name: str = "") -> str:
        return f"/{_root(version)}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    def create(self, wanted: Object, dry_run: bool = False) -> Any:
        query = {"dryRun": "All"} if dry_run else {}
        return self.ask("POST", self.path(wanted["apiVersion"], PLURALS[wanted["kind"]]), wanted, query)

    def list(self, version: str, plural: str, selector: str) -> Sequence[Object]:
        found: Sequence[Object] = self.get(self.path(version, plural), {"labelSelector": selector})["items"]
        return found

    def pods(self, place: ClusterRun) -> Sequence[Object]:
        return self.list("v1", "pods", place.selector)

    def pod(self, name: str) -> Object | None:
        try:
            found: Object = self.get(self.path("v1", "pods", name))
        except Refused as error:
            if error.status != 404:
                raise
            return None
        return found

    def log_tail(self, pod: str, container: str, lines: int, bytes_max: int) -> str:
        """Returns the newest lines of this container's log. Raises `Refused` if the container has no log yet."""
        query = {"container": container, "tailLines": str(lines), "limitBytes": str(bytes_max)}
        text: str = self.ask("GET", self.path("v1", "pods", f"{pod}/log"), query=query, patient=False, as_text=True)
        return text

    def delete(self, version: str, plural: str, name: str, grace_s: int | None = None, uid: str = "") -> bool:
        """Deletes an object of the Kubernetes cluster. Returns False if the object was gone already. With `uid`, a
        newer object of the same name is not deleted."""
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            self.ask("DELETE", self.path(version, plural, name), options)
        except Refused as error:
            if error.status != 404:
                raise
            return False
        return True

    def evict(self, pod: str, grace_s: int | None = None, uid: str = "") -> None:
        """Evicts a pod by the server's Eviction API. Without `grace_s`, the grace period of the pod itself applies.

        Raises `Refused` with status 429 if a disruption budget forbids the eviction.
        """
        options: Object = {} if grace_s is None else {"gracePeriodSeconds": grace_s}
        if uid:
            options["preconditions"] = {"uid": uid}
        body = {
            "apiVersion": self.policy,
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": self.namespace},
            "deleteOptions": options,
        }
        self.ask("POST", self.path("v1", "pods", f"{pod}/eviction"), body)

    def attach(self, pod: str, container: str, errors: pathlib.Path) -> PodStream:
        """Opens the connection to process 1 of a pod's container. The standard error of the process goes to the file
        `errors`."""
        query = [("container", container), ("stdin", "true"), ("stdout", "true"), ("stderr", "true"), ("tty", "false")]
        return PodStream(self._link(pod, "attach", query), errors.open("ab"))

    def execute(self, pod: str, container: str, command: Sequence[str], limit_s: float = CALL_S_MAX) -> str:
        """Runs a command in a pod's container, and returns the output. Raises `BackendError` unless the command exits
        with code 0 within `limit_s` seconds."""
        query = [("container", container), ("stdout", "true"), ("stderr", "true")]
        query += [("command", word) for word in command]
        return run_to_end(self._link(pod, "exec", query), f"{command[0]} in pod {pod}", limit_s)

    def _link(self, pod: str, what: str, query: Sequence[tuple[str, str]]) -> Any:
        from kubernetes.stream.ws_client import create_websocket
        from websocket import WebSocketException, setdefaulttimeout

        setdefaulttimeout(CALL_S_MAX)  # the client gives no other way to bound the connecting
        path = self.path("v1", "pods", f"{pod}/{what}")
        url = f"{self._configuration.host}{path}?{urllib.parse.urlencode(query)}".replace("http", "ws", 1)
        headers = self._authorization() | {"sec-websocket-protocol": "v4.channel.k8s.io"}
        try:
            return create_websocket(self._configuration, url, headers)
        except (WebSocketException, OSError) as error:
            raise BackendError(f"{what} of pod {pod}: {error}") from error

    # Machines

    def patch_machine(self, name: str, patch: Object) -> None:
        self.ask("PATCH", f"/api/v1/nodes/{name}", patch)

    def machine_labels(self, name: str) -> Mapping[str, str]:
        """Returns the labels of the machine (Kubernetes node) with this name. Raises `CannotRunError` if this user has
        no right to read nodes."""
        try:
            found: Mapping[str, str] = self.get(f"/api/v1/nodes/{name}")["metadata"].get("labels", {})
            return found
        except Refused as error:
            role = "harness/backends/kubernetes/rbac-machines.yaml has the right"
            raise CannotRunError(f"labels of node {name} cannot be read: {error}; {role}") from error

    def machines(self, selector: str = "") -> Sequence[Object]:
        query = {"labelSelector": selector} if selector else {}
        found: Sequence[Object] = self.get("/api/v1/nodes", query)["items"]
        return found

    # The end

    def remove_run(self, place: ClusterRun) -> int:
        """Removes all Kubernetes objects with this run's label from the namespace, and waits until the pods are gone.
        Repeated calls are safe. Raises `BackendError` if an object could not be removed, after an attempt to remove
        every object."""
        # What disturbs comes first, owners before pods.
        owners = [owner for found in manifests.OWNERS.values() for owner in found]
        kinds = [
            (CHAOS_MESH, "networkchaos"),
            *((f"{group}/{version}", plural) for group, version, plural in owners),
            ("scheduling.volcano.sh/v1beta1", "podgroups"),
            *(("policy/v1", "poddisruptionbudgets"), ("policy/v1beta1", "poddisruptionbudgets")),
            *(("v1", plural) for plural in ("pods", "services", "configmaps")),
        ]
        removed = list[int]()
        each(lambda kind: removed.append(self._remove_kind(*kind, place)), kinds)
        deadline = time.monotonic() + GONE_S_MAX
        while left := [pod["metadata"]["name"] for pod in self.pods(place)]:
            if time.monotonic() > deadline:
                raise BackendError(f"pods of run {place.run_id} do not end within {GONE_S_MAX:g} s: {', '.join(left)}")
            for name in left:  # those an owner made meanwhile, too
                self.delete("v1", "pods", name, grace_s=0)
            time.sleep(0.2)
        return sum(removed)

    def _remove_kind(self, version: str, plural: str, place: ClusterRun) -> int:
        if not self.serves(version, plural):
            return 0
        try:
            names = [entry["metadata"]["name"] for entry in self.list(version, plural, place.selector)]
        except Refused as error:
            if error.status in (403, 404):  # what we may not even see, we have not made
                return 0
            raise
        return sum(self.delete(version, plural, name, 0 if plural == "pods" else None) for name in names)

    def close(self) -> None:
        self._http.clear()


def _configure(kubernetes: Any, settings: Settings) -> tuple[Any, str]:
    configuration = kubernetes.client.Configuration()
    file = _kubeconfig()
    inside = SERVICE_ACCOUNT / "namespace"
    try:
        if file is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            kubernetes.config.load_incluster_config(client_configuration=configuration)
            return configuration, settings.namespace or inside.read_text().strip()
        options = {"config_file": file, "context": settings.context or None}
        kubernetes.config.load_kube_config(**options, client_configuration=configuration)
        contexts, current = kubernetes.config.list_kube_config_contexts(file)
    except (kubernetes.config.ConfigException, OSError) as error:
        raise CannotRunError(
            f"no cluster is known here ({error}): name a kubeconfig in CHAOS_KUBECONFIG or KUBECONFIG"
        ) from error
    chosen = next((one for one in contexts if one["name"] == settings.context), current)
    return configuration, settings.namespace or chosen["context"].get("namespace", "default")


def _kubeconfig() -> str | None:
    return os.environ.get("CHAOS_KUBECONFIG") or os.environ.get("KUBECONFIG") or None


def chosen_cluster(settings: Settings) -> dict[str, str]:
    """Returns the variables `CHAOS_KUBE…` that name the kubeconfig, context and namespace in use.

    Inside a pod, only the namespace is returned, because the pod's service account gives the rest. Raises
    `CannotRunError` if no cluster is configured.
    """
    import kubernetes

    _, namespace = _configure(kubernetes, settings)
    file = _kubeconfig()
    if file is None and "KUBERNETES_SERVICE_HOST" in os.environ:
        return {"CHAOS_KUBE_NAMESPACE": namespace}
    _, current = kubernetes.config.list_kube_config_contexts(file)
    named = {"CHAOS_KUBE_CONTEXT": settings.context or current["name"], "CHAOS_KUBE_NAMESPACE": namespace}
    paths = os.pathsep.join(os.path.abspath(part) for part in (file or "").split(os.pathsep) if part)
    return named | ({"CHAOS_KUBECONFIG": paths} if paths else {})


def _root(version: str) -> str:
    return f"apis/{version}" if "/" in version else f"api/{version}"
