"""Explains why the kernel refused a call, with a remedy for each reason."""

from __future__ import annotations

import errno
import os

WATCH = "watch of flushes"  # the stage that needs seccomp's user notification
_NO_MOUNT = (
    "mount is refused, or /proc is masked, so that a node cannot have its own: in a container use "
    "`--security-opt systempaths=unconfined --security-opt apparmor=unconfined`"
)
_NO_SPACE = "the limit on namespaces is reached: raise the sysctls user.max_*_namespaces"
_APPARMOR = (
    "namespaces come without rights here (AppArmor restricts them): add an AppArmor profile with `userns,`, "
    "set kernel.apparmor_restrict_unprivileged_userns=0, or run as root"
)
_NO_USER_NAMESPACE = (
    "this user may not create namespaces: set kernel.unprivileged_userns_clone=1 and user.max_user_namespaces "
    "above 0, in a container also `--security-opt seccomp=unconfined`, or run as root"
)
_NO_ADMIN = "root lacks CAP_SYS_ADMIN here: in a container use `--privileged`, or `--cap-add SYS_ADMIN,NET_ADMIN`"
_NO_VETH = "the kernel has no virtual ethernet devices: load the module `veth`"
_NO_WATCH = (
    "calls of sync and syncfs cannot be watched, so no folder can be recorded: use Linux 5.5 or later, and no "
    "container runtime that intercepts system calls itself"
)
_NO_FORK = "no process can be started: the limit on processes is reached (`ulimit -u`, or the container's pids limit)"


def explain(stage: str, number: int, mode: str) -> str:
    """Returns the reason and the remedy for the kernel's error `number` in the step `stage` of building virtual nodes.
    `mode` is root, user or plain (no namespaces)."""
    if stage == WATCH:
        return f"{_NO_WATCH} ({os.strerror(number)})"
    if number in (errno.ENOSPC, errno.EUSERS):
        return _NO_SPACE
    if number in (errno.EAGAIN, errno.ENOMEM):
        return _NO_FORK
    if number in (errno.EPERM, errno.EACCES):
        if stage in ("mounts", "node mounts"):
            return _NO_MOUNT
        if mode == "root":
            return _NO_ADMIN
        return _NO_USER_NAMESPACE if stage == "user namespace" else _APPARMOR
    if stage == "veth" and number in (errno.EOPNOTSUPP, errno.ENODEV, errno.ENOENT):
        return _NO_VETH
    if number in (errno.EINVAL, errno.ENOSYS) and "namespace" in stage:
        return "this kernel is built without the namespaces a node needs: use another kernel, or a virtual machine"
    return f"{stage}: {os.strerror(number)}"
