"""The user's settings for pods, from `CHAOS_KUBE_…` variables; every value is checked before it gets near YAML."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.errors import UsageError

KINDS = ("job", "jobset", "pytorchjob", "trainjob", "pods")
PULL_POLICIES = ("Always", "IfNotPresent", "Never")
EVICTIONS = ("evict", "delete", "drain", "taint", "priority:CLASS", "command:PROGRAM")
IMAGE = "chaos-node"

# What each variable holds; docs/kubernetes.md is checked against this table.
VARIABLES = {
    "CHAOS_KUBECONFIG": "kubeconfig file; default KUBECONFIG, then ~/.kube/config",
    "CHAOS_KUBE_CONTEXT": "context in it; default its current one",
    "CHAOS_KUBE_NAMESPACE": "namespace; default the context's, then `default`",
    "CHAOS_KUBE_AS": "what pods are created through: " + ", ".join(KINDS),
    "CHAOS_KUBE_IMAGE": f"image of the nodes; default {IMAGE}",
    "CHAOS_KUBE_PULL": "imagePullPolicy: " + ", ".join(PULL_POLICIES),
    "CHAOS_KUBE_GPUS": "1: every rank gets an nvidia.com/gpu; or the name of another resource",
    "CHAOS_KUBE_RESOURCES": "requests and limits of a node: `cpu=8,memory=64Gi`",
    "CHAOS_KUBE_TOLERATIONS": "`key=value:NoSchedule`, `key:NoExecute`, `key`; separated by commas",
    "CHAOS_KUBE_SELECTOR": "labels that a machine must have: `pool=spot,zone=a`",
    "CHAOS_KUBE_CONTROL_SELECTOR": "labels of a machine for the control pod; default: those of CHAOS_KUBE_SELECTOR",
    "CHAOS_KUBE_GANG": "`volcano` or `volcano:QUEUE`: all pods are scheduled together or none",
    "CHAOS_KUBE_CHECKPOINTS": "`pvc:CLAIM` or `host:/path` that all machines share; default: kept in the control pod",
    "CHAOS_KUBE_SECRET": "a Secret whose keys become environment variables of the nodes",
    "CHAOS_KUBE_SERVICE_ACCOUNT": "service account of the pods; its token is not mounted",
    "CHAOS_KUBE_EVICT": "how a node is reclaimed: " + ", ".join(EVICTIONS),
    "CHAOS_KUBE_WAIT_S": "seconds to wait for the pods; default 300",
}

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")  # RFC 1123
_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_QUANTITY = re.compile(r"\d+(\.\d+)?(m|k|[KMGTP]i?)?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


@dataclass(frozen=True)
class Toleration:
    """A toleration. `value` empty: any value of the taint; `effect` empty: any effect."""

    key: str
    value: str = ""
    effect: str = ""


@dataclass(frozen=True)
class Settings:
    kind: str = "job"
    namespace: str = ""  # empty: the context's
    context: str = ""
    image: str = IMAGE
    pull: str = "IfNotPresent"
    gpu: str = ""  # name of the resource; empty: none
    resources: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    selector: Mapping[str, str] = field(default_factory=dict)
    control_selector: Mapping[str, str] = field(default_factory=dict)  # empty: as `selector`
    gang: str = ""  # a Volcano queue; empty: no gang
    claim: str = ""  # of checkpoints
    host_path: str = ""  # of checkpoints
    secret: str = ""
    service_account: str = ""
    evict: str = "evict"  # as it was given, detail included
    wait_s: float = 300.0

    @property
    def evict_by(self) -> str:
        """Returns the priority class or the command of `evict`; empty if it needs none."""
        return self.evict.partition(":")[2]

    @property
    def evict_by_own_grace(self) -> bool:
        """Tells whether an eviction's notice is the pods' own grace, as nothing else could tell its length."""
        return self.evict == "taint" or self.evict.startswith("priority:")

    @property
    def shares_checkpoints(self) -> bool:
        """Tells whether a volume shows every node the same checkpoints."""
        return bool(self.claim or self.host_path)


def read_settings(environ: Mapping[str, str] = os.environ) -> Settings:
    """Reads the settings. Raises `UsageError` with the variable, its value and the allowed ones."""

    def get(name: str, default: str = "") -> str:
        return environ.get(f"CHAOS_KUBE_{name}", "") or default

    claim, host_path = _volume(get("CHECKPOINTS"))
    return Settings(
        kind=_one_of("AS", get("AS", "job"), KINDS),
        namespace=_match("NAMESPACE", get("NAMESPACE"), _LABEL, "a name of lower-case letters, digits and '-'"),
        context=get("CONTEXT"),
        image=_match("IMAGE", get("IMAGE", IMAGE), _IMAGE, "the name of an image"),
        pull=_one_of("PULL", get("PULL", "IfNotPresent"), PULL_POLICIES),
        gpu=_gpu(get("GPUS")),
        resources=_pairs("RESOURCES", get("RESOURCES"), _QUANTITY, "quantities like 8, 500m or 64Gi"),
        tolerations=tuple(_toleration(word) for word in _words(get("TOLERATIONS"))),
        selector=_pairs("SELECTOR", get("SELECTOR"), _VALUE, "label values"),
        control_selector=_pairs("CONTROL_SELECTOR", get("CONTROL_SELECTOR"), _VALUE, "label values"),
        gang=_gang(get("GANG")),
        claim=claim,
        host_path=host_path,
        secret=_match("SECRET", get("SECRET"), _LABEL, "the name of a Secret"),
        service_account=_match("SERVICE_ACCOUNT", get("SERVICE_ACCOUNT"), _LABEL, "the name of a service account"),
        evict=_evict(get("EVICT", "evict")),
        wait_s=_seconds(get("WAIT_S", "300")),
    )


def _refuse(name: str, value: str, allowed: str) -> UsageError:
    return UsageError(f"CHAOS_KUBE_{name}={value!r}: allowed is {allowed}")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise _refuse(name, value, ", ".join(allowed))
    return value


def _evict(text: str) -> str:
    how, _, by = text.partition(":")
    if how == "priority" and re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", by):
        return text
    with contextlib.suppress(ValueError):  # an open quote
        if how == "command" and shlex.split(by):
            return text
    return _one_of("EVICT", text, EVICTIONS)


def _match(name: str, value: str, pattern: re.Pattern[str], allowed: str) -> str:
    if value and not pattern.fullmatch(value):
        raise _refuse(name, value, allowed)
    return value


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _pairs(name: str, text: str, value: re.Pattern[str], allowed: str) -> dict[str, str]:
    found = dict[str, str]()
    for word in _words(text):
        key, equals, content = word.partition("=")
        if not equals or not _KEY.fullmatch(key) or not value.fullmatch(content):
            raise _refuse(name, text, f"key=value, separated by commas, with {allowed}")
        found[key] = content
    return found


def _toleration(word: str) -> Toleration:
    rest, _, effect = word.partition(":")
    key, _, value = rest.partition("=")
    if not _KEY.fullmatch(key) or not _VALUE.fullmatch(value) or effect not in ("", *_EFFECTS):
        raise _refuse("TOLERATIONS", word, f"key[=value][:effect], with an effect of {', '.join(_EFFECTS)}")
    return Toleration(key, value, effect)


def _gpu(text: str) -> str:
    if text in ("", "0"):
        return ""
    name = "nvidia.com/gpu" if text == "1" else text
    return _match("GPUS", name, _KEY, "0, 1, or the name of a resource like amd.com/gpu")


def _gang(text: str) -> str:
    scheduler, _, queue = text.partition(":")
    if not text:
        return ""
    if scheduler != "volcano" or not _LABEL.fullmatch(queue or "default"):
        raise _refuse("GANG", text, "volcano or volcano:QUEUE")
    return queue or "default"


def _volume(text: str) -> tuple[str, str]:
    """Returns the claim and the host path; at most one of them is not empty."""
    how, _, what = text.partition(":")
    if not text:
        return "", ""
    if how == "pvc" and _LABEL.fullmatch(what):
        return what, ""
    if how == "host" and re.fullmatch(r"(/[A-Za-z0-9._-]+)+", what) and ".." not in what:
        return "", what
    raise _refuse("CHECKPOINTS", text, "pvc:CLAIM or host:/absolute/path")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 86400:
        raise _refuse("WAIT_S", text, "1 to 86400 seconds")
    return seconds
