"""Reads the user's settings for pods from the variables `CHAOS_KUBE_…`, and checks every value before its use."""

import contextlib
import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from harness.errors import UsageError

KINDS = ("job", "jobset", "pytorchjob", "trainjob", "pods")
PULL_POLICIES = ("Always", "IfNotPresent", "Never")
EVICTIONS = ("evict", "delete", "drain", "taint", "priority:CLASS", "command:PROGRAM")
IMAGE = "chaos-node"

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")  # RFC 1123
_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_QUANTITY = re.compile(r"\d+(\.\d+)?(m|k|[KMGTP]i?)?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}")
_HOST_PATH = re.compile(r"(/[A-Za-z0-9._-]+)+")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")

Read = Callable[[str, str], object]  # of a variable's name, without its prefix, and its text


def _refuse(name: str, value: str, allowed: str) -> UsageError:
    return UsageError(f"CHAOS_KUBE_{name}={value!r}: allowed is {allowed}")


def _one_of(*allowed: str) -> Read:
    def read(name: str, value: str) -> str:
        if value not in allowed:
            raise _refuse(name, value, ", ".join(allowed))
        return value

    return read


def _match(pattern: re.Pattern[str], allowed: str) -> Read:
    def read(name: str, value: str) -> str:
        if not pattern.fullmatch(value):
            raise _refuse(name, value, allowed)
        return value

    return read


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _pairs(value: re.Pattern[str], allowed: str) -> Read:
    def read(name: str, text: str) -> dict[str, str]:
        found = dict[str, str]()
        for word in _words(text):
            key, equals, content = word.partition("=")
            if not equals or not _KEY.fullmatch(key) or not value.fullmatch(content):
                raise _refuse(name, text, f"key=value, separated by commas, with {allowed}")
            found[key] = content
        return found

    return read


def _evict(name: str, text: str) -> object:
    how, _, by = text.partition(":")
    if how == "priority" and re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", by):
        return text
    with contextlib.suppress(ValueError):  # an open quote
        if how == "command" and shlex.split(by):
            return text
    return _one_of(*EVICTIONS)(name, text)


@dataclass(frozen=True)
class Toleration:
    """A toleration of the pods, which lets them run on machines with a matching taint. An empty `value` stands for any
    value of the taint, an empty `effect` for any effect."""

    key: str
    value: str = ""
    effect: str = ""


def _tolerations(name: str, text: str) -> tuple[Toleration, ...]:
    found = list[Toleration]()
    for word in _words(text):
        rest, _, effect = word.partition(":")
        key, _, value = rest.partition("=")
        if not _KEY.fullmatch(key) or not _VALUE.fullmatch(value) or effect not in ("", *_EFFECTS):
            raise _refuse(name, word, f"key[=value][:effect], with an effect of {', '.join(_EFFECTS)}")
        found.append(Toleration(key, value, effect))
    return tuple(found)


def _gpu(name: str, text: str) -> object:
    read = _match(_KEY, "0, 1, or the name of a resource like amd.com/gpu")
    return "" if text == "0" else read(name, "nvidia.com/gpu" if text == "1" else text)


def _gang(name: str, text: str) -> str:
    scheduler, _, queue = text.partition(":")
    if scheduler != "volcano" or not _LABEL.fullmatch(queue or "default"):
        raise _refuse(name, text, "volcano or volcano:QUEUE")
    return queue or "default"


def _volume(name: str, text: str) -> str:
    how, _, what = text.partition(":")
    if (how == "pvc" and _LABEL.fullmatch(what)) or (how == "host" and _HOST_PATH.fullmatch(what) and ".." not in what):
        return text
    raise _refuse(name, text, "pvc:CLAIM or host:/absolute/path")


def _seconds(name: str, text: str) -> float:
    with contextlib.suppress(ValueError):
        if 1 <= float(text) <= 86400:
            return float(text)
    raise _refuse(name, text, "1 to 86400 seconds")


def _setting(name: str, default: object, read: Read, meaning: str) -> Any:
    """Declares a setting that the user can set in the variable CHAOS_KUBE_`name`; `read` parses the value."""
    return field(default_factory=lambda: default, metadata={"name": name, "read": read, "meaning": meaning})


@dataclass(frozen=True)
class Settings:
    kind: str = _setting("AS", "job", _one_of(*KINDS), "what pods are created through: " + ", ".join(KINDS))
    namespace: str = _setting(
        "NAMESPACE", "", _match(_LABEL, "a name of lower-case letters, digits and '-'"), "default the context's"
    )
    context: str = _setting("CONTEXT", "", lambda _, text: text, "context in the kubeconfig; default its current one")
    image: str = _setting("IMAGE", IMAGE, _match(_IMAGE, "the name of an image"), "image of the nodes")
    pull: str = _setting("PULL", "IfNotPresent", _one_of(*PULL_POLICIES), "imagePullPolicy")
    gpu: str = _setting("GPUS", "", _gpu, "1: every rank gets an nvidia.com/gpu; or the name of another resource")
    resources: Mapping[str, str] = _setting(
        "RESOURCES", {}, _pairs(_QUANTITY, "quantities like 8, 500m or 64Gi"), "requests and limits of a node"
    )
    tolerations: tuple[Toleration, ...] = _setting("TOLERATIONS", (), _tolerations, "`key=value:NoSchedule`, `key`, …")
    selector: Mapping[str, str] = _setting(
        "SELECTOR", {}, _pairs(_VALUE, "label values"), "labels that a machine must have: `pool=spot,zone=a`"
    )
    control_selector: Mapping[str, str] = _setting(
        "CONTROL_SELECTOR", {}, _pairs(_VALUE, "label values"), "those of a machine for the control pod; as `selector`"
    )
    gang: str = _setting("GANG", "", _gang, "a Volcano queue: all pods are scheduled together or none")
    checkpoints: str = _setting("CHECKPOINTS", "", _volume, "a volume for all; default: kept in the control pod")
    secret: str = _setting(
        "SECRET", "", _match(_LABEL, "the name of a Secret"), "a Secret whose keys are variables of the nodes"
    )
    service_account: str = _setting(
        "SERVICE_ACCOUNT", "", _match(_LABEL, "the name of a service account"), "of the pods; not mounted"
    )
    evict: str = _setting("EVICT", "evict", _evict, "how a node is reclaimed, as it was given, detail included")
    wait_s: float = _setting("WAIT_S", 300.0, _seconds, "seconds to wait for the pods")

    @property
    def claim(self) -> str:
        return self.checkpoints.removeprefix("pvc:") if self.checkpoints.startswith("pvc:") else ""

    @property
    def host_path(self) -> str:
        return self.checkpoints.removeprefix("host:") if self.checkpoints.startswith("host:") else ""

    @property
    def evict_by(self) -> str:
        """Returns the text after the colon in CHAOS_KUBE_EVICT: a priority class, a command, or an empty text."""
        return self.evict.partition(":")[2]

    @property
    def evict_by_own_grace(self) -> bool:
        """Returns True if the chosen way to evict a pod uses the pod's own grace period as the notice."""
        return self.evict == "taint" or self.evict.startswith("priority:")


# docs/kubernetes.md is checked against these.
VARIABLES = ("CHAOS_KUBECONFIG", *(f"CHAOS_KUBE_{each.metadata['name']}" for each in fields(Settings)))


def read_settings(environ: Mapping[str, str] = os.environ) -> Settings:
    """Reads the user's settings for pods from environment variables. Raises `UsageError` for a value that is not
    allowed, with the variable, the value and the allowed values."""
    found = dict[str, Any]()
    for each in fields(Settings):
        name = each.metadata["name"]
        if text := environ.get(f"CHAOS_KUBE_{name}"):
            found[each.name] = each.metadata["read"](name, text)
    return Settings(**found)
