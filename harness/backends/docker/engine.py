"""Connects to the Docker Engine, and removes a run's containers, networks and volumes by their label."""

import contextlib
import os
import pathlib
import socket
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, cast

from harness.backends.docker.request import IMAGE, Request
from harness.backends.docker.stream import AttachedStream
from harness.backends.run_folder import Owner
from harness.errors import BackendError, CannotRunError
from harness.extras import how_to_install
from harness.node.node_paths import IMAGE_UID, RUN_LABEL

ENGINES_DIR_ENV = "CHAOS_ENGINES_DIR"
ENGINES_DIR = "/var/lib/chaos-engines"
CALL_S_MAX = 60.0
PARALLEL = 4  # a daemon starts containers no faster with more


def address() -> str:
    """Returns the address of the Docker daemon: DOCKER_HOST, or else the daemon that `make engines` starts, or else the
    default socket."""
    own = pathlib.Path(os.environ.get(ENGINES_DIR_ENV, ENGINES_DIR)) / "docker" / "docker.sock"
    return os.environ.get("DOCKER_HOST") or (f"unix://{own}" if own.exists() else "unix:///var/run/docker.sock")


@contextlib.contextmanager
def speaking(what: str) -> Iterator[None]:
    """Turns errors of the Docker client in the `with` block into `BackendError`s that name the failed call."""
    import docker.errors
    import requests

    try:
        yield
    except docker.errors.APIError as error:
        raise BackendError(f"{what}: {error.explanation or error}") from error
    except (docker.errors.DockerException, requests.RequestException, OSError) as error:
        raise BackendError(f"{what}: {error}") from error


class Engine:
    """A connection to a Docker daemon. Several threads may use the connection at the same time."""

    def __init__(self, limit_s: float = CALL_S_MAX):
        """Connects to the Docker daemon. Raises `CannotRunError` with advice if the Python package docker is missing,
        or if no daemon answers."""
        try:
            import docker
            import docker.utils
        except ImportError as error:
            raise CannotRunError(f"the Python package docker is not installed: {how_to_install('docker')}") from error
        self.address = address()
        options: dict[str, Any] = docker.utils.kwargs_from_env() | {"base_url": self.address}
        try:
            with speaking("connecting"):
                # Where nobody listens at a local socket, the client would leave one of its own open: we knock first.
                if self.address.startswith("unix://"):
                    with socket.socket(socket.AF_UNIX) as knocking:
                        knocking.settimeout(CALL_S_MAX)
                        knocking.connect(self.address.removeprefix("unix://"))
                self.api = docker.APIClient(
                    version="auto", timeout=limit_s, use_ssh_client=self.address.startswith("ssh://"), **options
                )
                self.info: dict[str, Any] = self.api.info()
        except BackendError as error:
            raise CannotRunError(
                f"no Docker daemon answers at {self.address} ({error}): start one with 'make engines', "
                "or name another in DOCKER_HOST"
            ) from error

    @property
    def user(self) -> str:
        """Returns the user and group ids that run containers: those of the caller, or of the image's user if the caller
        is root. With a rootless daemon, the ids 0:0 stand for the caller."""
        if any("rootless" in option for option in self.info.get("SecurityOptions") or ()):
            return "0:0"  # there, the caller is what the container calls root
        if os.geteuid() == 0:
            return f"{IMAGE_UID}:{IMAGE_UID}"
        return f"{os.geteuid()}:{os.getegid()}"

    @property
    def owner(self) -> Owner | None:
        """Returns the user who must own the folders that nodes write, or `None` if the caller must own them."""
        return (IMAGE_UID, IMAGE_UID) if os.geteuid() == 0 and self.user != "0:0" else None

    def image_labels(self, image: str) -> dict[str, str]:
        """Returns the labels of a container image. Raises `CannotRunError` if the image does not exist."""
        import docker.errors

        try:
            with contextlib.suppress(KeyError):
                return self.api.inspect_image(image)["Config"]["Labels"] or {}
        except docker.errors.ImageNotFound as error:
            how = "build it with 'make image'"
            if image != IMAGE:
                how = "CHAOS_DOCKER_IMAGE names it: build it, or pull it"
            raise CannotRunError(f"no image {image!r} at {self.address}; {how}") from error
        return {}

    def image_id(self, image: str) -> str | None:
        import docker.errors

        try:
            return str(self.api.inspect_image(image)["Id"])
        except (docker.errors.APIError, KeyError):
            return None

    def create(self, name: str, request: Request) -> str:
        with speaking(f"creating container {name}"):
            return str(self.api.create_container_from_config(request, name)["Id"])

    def create_network(self, wanted: Request) -> None:
        """Creates a network by the Docker daemon's HTTP API, because the method of the Python client lacks options."""
        import docker.errors
        import requests

        with speaking(f"creating network {wanted['Name']}"):
            url = f"{self.api.base_url}/v{self.api.api_version}/networks/create"
            answer = self.api.post(url, json=wanted, timeout=self.api.timeout)
            try:
                answer.raise_for_status()
            except requests.HTTPError as error:
                docker.errors.create_api_error_from_http_exception(error)  # raises it

    def attach(self, container: str, errors: IO[bytes]) -> AttachedStream:
        parameters = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        with speaking("attaching"):
            raw = self.api.attach_socket(container, params=parameters)
            link = cast(socket.socket, getattr(raw, "_sock", raw))
            link.settimeout(None)
        response = getattr(raw, "_response", None)
        return AttachedStream(link, errors, [raw] if response is None else [response, raw])

    def inspect(self, container: str) -> dict[str, Any]:
        with speaking("inspecting"):
            found: dict[str, Any] = self.api.inspect_container(container)
            return found

    def remove_run(self, run_id: str) -> int:
        """Removes all containers, networks and volumes with this run's label; returns their number. Repeated calls are
        safe."""
        label = {"label": f"{RUN_LABEL}={run_id}"}
        with speaking(f"removing what run {run_id} left"):
            containers = [entry["Id"] for entry in self.api.containers(all=True, filters=label)]
            each(lambda identity: self._remove(self.api.remove_container, identity, v=True, force=True), containers)
            networks = [entry["Id"] for entry in self.api.networks(filters=label)]
            each(lambda identity: self._remove(self.api.remove_network, identity), networks)
            volumes = [entry["Name"] for entry in self.api.volumes(filters=label)["Volumes"] or ()]
            each(lambda name: self._remove(self.api.remove_volume, name, force=True), volumes)
        return len(containers) + len(networks) + len(volumes)

    def run_ids(self) -> set[str]:
        label = {"label": RUN_LABEL}
        with speaking("looking for what runs left"):
            found = [*self.api.containers(all=True, filters=label), *self.api.networks(filters=label)]
            found += self.api.volumes(filters=label)["Volumes"] or ()
        return {str((entry["Labels"] or {}).get(RUN_LABEL, "")) for entry in found}

    def _remove(self, remove: Callable[..., None], what: str, **options: Any) -> None:
        """Removes a container, network or volume. A simultaneous removal by another process, such as `chaos heal`, is
        no error."""
        import docker.errors

        try:
            remove(what, **options)
        except docker.errors.NotFound:
            return
        except docker.errors.APIError as error:
            if "already in progress" not in str(error):
                raise

    def close(self) -> None:
        self.api.close()


def each(act: Callable[[str], object], items: Iterable[str]) -> None:
    """Calls `act` on each item, a few items at a time. Raises the first error after all items were tried."""
    with ThreadPoolExecutor(PARALLEL) as pool:
        results = [pool.submit(act, item) for item in items]
    for result in results:
        result.result()
