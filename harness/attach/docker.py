"""Attaches to a job of containers that somebody else started, and finds the containers by a label.

Every container of the job must have the label `chaos.allow`, by which its owner allows faults.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from harness.backends.attached import ENDED, NEEDS_KILL, OPT_IN, RUNNING, AttachedJob, Seen, Undo, refuse_unasked
from harness.backends.docker.backend import BACKEND
from harness.backends.docker.engine import Engine, speaking
from harness.errors import BackendError, UsageError
from harness.node.node_paths import RUN_LABEL

LINES = 200  # of each container's log
LINE_MAX = 1000
KILLED = 137  # how a container ends that was killed
OWN_NETWORK = {"host", "none"}  # modes in which a container has no network that it could lose


class DockerJob(AttachedJob):
    verbs = ("pause", "stop", "disconnect", "kill")

    def __init__(self, engine: Engine, label: str, containers: Mapping[str, str], allows_kill: bool):
        """`containers` maps the name of each container of the job to its id."""
        self.engine, self.name, self.allows_kill = engine, f"docker {label}", allows_kill
        self._ids = dict(containers)
        self.nodes = sorted(containers)

    def look(self) -> Mapping[str, Seen]:
        return {name: _seen(self.engine, self._ids[name]) for name in self.nodes}

    def log_tails(self) -> Mapping[str, Sequence[str]]:
        tails = {}
        for name, identity in self._ids.items():
            with speaking("reading a container's log"):
                text = self.engine.api.logs(identity, tail=LINES).decode(errors="replace")
            tails[name] = [line[:LINE_MAX] for line in text.splitlines()]
        return tails

    def undo_of(self, verb: str, node: str) -> Undo:
        found = self.engine.inspect(self._ids[node])
        host = found["HostConfig"]
        if verb == "kill" and host.get("AutoRemove"):
            raise UsageError(f"container {node} is removed when it ends (--rm), so it could not be started again")
        if verb == "stop" and host.get("PidMode") not in ("", None, "private"):
            raise UsageError(f"container {node} sees other processes than its own (PidMode {host['PidMode']})")
        if verb == "disconnect" and (host.get("NetworkMode") in OWN_NETWORK or not _networks(found)):
            raise UsageError(f"container {node} has no network of its own that it could lose")
        arguments = {
            "container": self._ids[node],
            "verb": verb,
            "life": found["State"]["StartedAt"],
            "networks": _networks(found),
            "environment": BACKEND.whereabouts(),
        }
        return Undo("attached.docker", arguments)

    def act(self, verb: str, node: str) -> None:
        identity, api = self._ids[node], self.engine.api
        with speaking(f"{verb} of container {node}"):
            if verb == "pause":
                api.pause(identity)
            elif verb == "stop":
                _signal_all(self.engine, identity, "STOP")
            elif verb == "disconnect":
                for network in _networks(self.engine.inspect(identity)):
                    api.disconnect_container_from_network(identity, network)
            else:
                api.kill(identity, "SIGKILL")

    def close(self) -> None:
        self.engine.close()


def attach(selection: str) -> DockerJob:
    """Returns the job whose containers have the label `selection`. Raises `UsageError` unless every container of the
    job has the opt-in label `chaos.allow`."""
    if "=" not in selection:
        raise UsageError(f"--attach docker:{selection}: write the whole label, KEY=VALUE: a key may fit several jobs")
    engine = Engine()
    try:
        with speaking("listing containers"):
            entries = engine.api.containers(filters={"label": selection, "status": "running"})
        return DockerJob(engine, selection, *_allowed(entries, selection))
    except BaseException:
        engine.close()
        raise


def _allowed(entries: Sequence[Mapping[str, Any]], selection: str) -> tuple[dict[str, str], bool]:
    if not entries:
        raise UsageError(f"--attach docker:{selection}: no running container has this label")
    kills, found = [], {}
    for entry in entries:
        name, labels = entry["Names"][0].removeprefix("/"), entry["Labels"] or {}
        if RUN_LABEL in labels:
            raise UsageError(f"container {name} belongs to run {labels[RUN_LABEL]} of a harness; nothing was touched")
        how = f"with the label {OPT_IN}=true when the container is made"
        kills.append(refuse_unasked(f"container {name}", labels.get(OPT_IN), how))
        found[name] = str(entry["Id"])
    return found, all(kills)


def _networks(found: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    joined = found["NetworkSettings"]["Networks"] or {}
    return {
        name: {"aliases": list(each.get("Aliases") or ()), "address": str(each.get("IPAddress") or "")}
        for name, each in joined.items()
    }


def _seen(engine: Engine, identity: str) -> Seen:
    found = engine.inspect(identity)
    state = found["State"]
    if not state["Running"]:
        return Seen(ENDED, state["StartedAt"], int(state["ExitCode"]))
    with speaking("measuring a container"):
        stats = engine.api.stats(identity, stream=False, one_shot=True)
        rows = [] if state["Paused"] else engine.api.top(identity, "-eo pid,stat")["Processes"] or []
    used_s = float(stats.get("cpu_stats", {}).get("cpu_usage", {}).get("total_usage", 0)) / 1e9
    living = [row[1] for row in rows if not row[1].startswith("Z")]
    name = RUNNING
    if state["Paused"]:
        name = "paused"
    elif living and all(status.startswith("T") for status in living):
        name = "stopped"
    elif found["HostConfig"].get("NetworkMode") not in OWN_NETWORK and not _networks(found):
        name = "disconnected"
    return Seen(name, state["StartedAt"], None, used_s)


def _signal_all(engine: Engine, identity: str, signal: str) -> None:
    """Signals all processes in a container: process 1 by Docker's API, as signals from inside do not reach it."""
    made = engine.api.exec_create(identity, ["sh", "-c", f"kill -{signal} -1"])
    engine.api.exec_start(made["Id"])
    engine.api.kill(identity, f"SIG{signal}")


def _undo(
    container: str, verb: str, life: str, networks: dict[str, dict[str, Any]], environment: dict[str, str]
) -> None:
    """Undoes a stop, pause, disconnection or kill of a container. Does nothing if nothing is left to undo, or if the
    container no longer exists."""
    import docker.errors

    with BACKEND.as_recorded(environment):
        engine = Engine()
    with contextlib.closing(engine), speaking(f"undoing {verb} of container {container[:12]}"):
        try:
            found = engine.api.inspect_container(container)
        except docker.errors.NotFound:
            return
        _take_back(engine, container, verb, life, networks, found)


def _take_back(
    engine: Engine, container: str, verb: str, life: str, networks: dict[str, dict[str, Any]], found: Mapping[str, Any]
) -> None:
    state = found["State"]
    if verb in NEEDS_KILL:  # only that same life, and only where a kill ended it: never a job that is over
        if not state["Running"] and state["StartedAt"] == life and int(state["ExitCode"]) == KILLED:
            engine.api.start(container)
    elif verb == "disconnect":
        for name in networks.keys() - _networks(found).keys():
            _join(engine, container, name, networks[name])
    elif verb == "pause" and state["Paused"]:
        engine.api.unpause(container)
    elif verb == "stop" and state["Running"] and not state["Paused"]:
        _signal_all(engine, container, "CONT")


def _join(engine: Engine, container: str, network: str, kept: Mapping[str, Any]) -> None:
    """Connects a container to a network again, if possible with its old address, because other containers know it."""
    import docker.errors

    aliases = [str(each) for each in kept.get("aliases") or ()]
    try:
        engine.api.connect_container_to_network(
            container, network, aliases=aliases, ipv4_address=str(kept.get("address") or "") or None
        )
    except docker.errors.APIError as error:
        if "user configured subnet" not in str(error):
            raise BackendError(f"container {container[:12]} cannot join {network} again: {error}") from error
        engine.api.connect_container_to_network(container, network, aliases=aliases)


UNDO = _undo
HOW = "docker:KEY=VALUE, a label that all containers of the job have and no others (docker inspect shows it)"
