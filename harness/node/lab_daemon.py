"""Runs labd, the daemon that holds a run's virtual nodes, and the keeper, a process that cleans up after labd.

    harness ──socket──► labd (init of the nodes' namespaces) ──socket──► init of each node
       └─────► keeper ────┘

If one of the harness, labd and the keeper dies, the other two end all virtual nodes of the run. When labd ends, the
kernel ends labd's namespaces, with every process, network device and mount in them. Without namespaces, labd kills its
process tree, and the keeper kills the processes that labd has missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import json
import os
import select
import signal
import socket

from harness.errors import ChaosError
from harness.node import cgroups, control, kernel, lab_nodes, leftovers, processes, rpc, server, spawn
from harness.node.fuse import fuse_verbs
from harness.node.lab import Call, Lab
from harness.node.lab_init import stage
from harness.node.net import disturbances, net_links

CONTROL_ADDRESS = "10.77.0.254"
PLAIN_CLEANUP_S_MAX = 6.0
PLAIN_LABS_MAX = 200

# The calls of every module. A new verb is a module with a `CALLS` of its own, named here.
CALLS: dict[str, Call] = {
    **lab_nodes.CALLS,
    **control.CALLS,
    **disturbances.CALLS,
    **fuse_verbs.CALLS,
}


@dataclasses.dataclass(frozen=True)
class Spec:
    """The options of labd, the daemon that holds virtual nodes. `mode` is root, user or plain (no namespaces). `link`
    and `harness` are file descriptors."""

    mode: str
    run_id: str
    link: int
    harness: int  # a pidfd

    @property
    def namespaces(self) -> bool:
        return self.mode != "plain"


def main(text: str) -> None:
    spec = Spec(**json.loads(text))
    link = socket.socket(fileno=spec.link)
    kernel.set_name("lab-keeper")
    try:
        pid = _fork_labd(spec, link)
    except (OSError, rpc.StageError) as error:
        rpc.send(link, {"event": "failed", "error": rpc.error_to_message(error)})
        return
    link.close()  # the harness must see the end of the stream when labd dies
    _keep(spec, pid)


def _fork_labd(spec: Spec, link: socket.socket) -> int:
    keeper = os.pidfd_open(os.getpid())
    if spec.mode == "user":
        uid, gid = os.geteuid(), os.getegid()
        with stage("user namespace"):
            kernel.unshare(kernel.CLONE_NEWUSER)
        with stage("uid map"):
            kernel.map_user_namespace(uid, gid)
    if spec.namespaces:
        with stage("namespaces"):
            kernel.unshare(kernel.CLONE_NEWPID)
    else:
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    keep = (spec.link, spec.harness, keeper)
    return spawn.fork(lambda: _labd(spec, link, keeper), keep)


def _keep(spec: Spec, labd_pid: int) -> None:
    labd = os.pidfd_open(labd_pid)
    poll = select.poll()
    poll.register(labd, select.POLLIN)
    poll.register(spec.harness, select.POLLIN)
    poll.poll()
    if not spec.namespaces:
        select.select([labd], [], [], PLAIN_CLEANUP_S_MAX)  # labd saw it, too, and cleans up
    with contextlib.suppress(ProcessLookupError):  # it may be the one that ended
        os.kill(labd_pid, signal.SIGKILL)
    os.waitpid(labd_pid, 0)
    if spec.mode == "root":
        cgroups.sweep(spec.run_id)
    if not spec.namespaces:
        processes.kill_until_gone(lambda: processes.descendants(os.getpid()), PLAIN_CLEANUP_S_MAX)
        leftovers.sweep(spec.run_id)


def _labd(spec: Spec, link: socket.socket, keeper: int) -> None:
    kernel.set_name("labd")
    try:
        lab = _build(spec, keeper)
    except (OSError, ChaosError) as error:
        rpc.send(link, {"event": "failed", "error": rpc.error_to_message(error)})
        return
    lab.kernel_limits = spec.mode == "root"
    asyncio.run(_serve(lab, link, (spec.harness, keeper)))
    if not spec.namespaces:
        processes.kill_until_gone(functools.partial(processes.descendants, os.getpid()), PLAIN_CLEANUP_S_MAX)
        # A process may have left the tree only by the death of an init; the mark in its environment stays.
        leftovers.sweep(spec.run_id, exempt=(os.getppid(),))


def _build(spec: Spec, keeper: int) -> Lab:
    if not spec.namespaces:
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        block = _claim_block()
        addresses = (f"127.77.{block}.{number}" for number in range(1, 251))
        return Lab(spec.run_id, False, f"127.77.{block}.254", addresses)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if select.select([keeper], [], [], 0)[0]:
        raise ProcessLookupError("the keeper died while labd started")
    with stage("namespaces"):
        kernel.unshare(kernel.CLONE_NEWNET | kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS)
    with stage("mounts"):
        kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
        kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    # As root this capability would reach the clock of the whole machine.
    kernel.prctl(kernel.PR_CAPBSET_DROP, kernel.CAP_SYS_TIME)
    with stage("lab network"):
        net_links.quiet_stack("default")
        net_links.set_sysctl("ipv4/ip_forward", 1)
        net_links.set_up("lo")
        net_links.add_address("lo", CONTROL_ADDRESS)
    return Lab(spec.run_id, True, CONTROL_ADDRESS, net_links.addresses())


_claims: list[socket.socket] = []


def _claim_block() -> int:
    """Reserves the addresses 127.77.N.x for the virtual nodes of this run, and returns N. The reservation ends with
    this process."""
    for block in range(PLAIN_LABS_MAX):
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0chaos-lab-127.77.{block}")
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        return block
    raise ChaosError(f"all {PLAIN_LABS_MAX} blocks of loopback addresses are taken by other labs")


async def _serve(lab: Lab, link: socket.socket, guards: tuple[int, ...]) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for guard in guards:
        loop.add_reader(guard, ended.set)
    loop.add_signal_handler(signal.SIGCHLD, lab.reap)
    reader, lab.writer = await asyncio.open_connection(sock=link)
    lab.tell("ready", control=lab.control_address, namespaces=lab.namespaces)
    calls = {name: functools.partial(call, lab) for name, call in CALLS.items()}
    answering = asyncio.create_task(server.answer_all(calls, reader, lab.send, lab.note))
    answering.add_done_callback(lambda _: ended.set())  # the harness closed the lab
    await ended.wait()
    answering.cancel()
