"""The init of a node: the one process of ours on it. Runs the node's command, signals and lists its processes.

In namespaces it is process 1 of the node, and its death is the node's death. Without namespaces it is the
subreaper of everything started on the node. It is single-threaded and talks to labd over one socket.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from harness.backends.agent import kernel, own_view, processes, rpc, sockets, spawn, throttle
from harness.backends.agent.net import links as net
from harness.emitter import groups
from harness.errors import UsageError

GROUPS = "/sys/fs/cgroup"
NOTHING_SPECIAL = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
FREEZE_ROUNDS_MAX = 50
FREEZE_S_MAX = 5.0
LOOK_FOR_NEW_S = 0.5
TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Setup:
    """What labd tells a new init about its node."""

    name: str
    address: str
    control: str
    hosts: str  # the text of the node's /etc/hosts
    metadata: tuple[str, int]  # where its metadata endpoint listens
    namespaces: bool
    run_dir: str  # empty: none
    writable: tuple[str, ...]  # what of it the node may write


@contextlib.contextmanager
def stage(name: str) -> Iterator[None]:
    """Names the step in which the kernel refused something."""
    try:
        yield
    except OSError as error:
        raise rpc.StageError(name, error.errno or 0, str(error)) from error


def main(link: socket.socket) -> None:
    """Sets the node up as told in the first message, answers with its sockets, serves until the end."""
    link.settimeout(30.0)
    message = rpc.receive(link)
    setup = Setup(**message["setup"] | {"metadata": tuple(message["setup"]["metadata"])})
    kernel.set_name(f"init-{setup.name}")
    try:
        if setup.namespaces:
            _build(setup)
        else:
            kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
            os.setsid()
        with stage("metadata endpoint"), _listen(setup.metadata) as endpoint, sockets.open_diagnosis() as diagnosis:
            descriptors = [endpoint.fileno(), *([diagnosis.fileno()] if setup.namespaces else [])]
            socket.send_fds(link, [rpc.pack({"result": endpoint.getsockname()})], descriptors)
    except (OSError, rpc.StageError) as error:
        rpc.send(link, {"error": rpc.error_to_message(error)})
        return
    Init(link, setup.namespaces).serve()


def _build(setup: Setup) -> None:
    with stage("node mounts"):
        kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
        kernel.mount("proc", "/proc", "proc", NOTHING_SPECIAL)
        _mount_names(setup.hosts)
        _mount_sysfs()
        if setup.run_dir:
            own_view.restrict(setup.run_dir, setup.writable)
    with stage("node network"):
        socket.sethostname(setup.name)
        net.quiet_stack("eth0")
        net.set_up("lo")
        net.add_address("lo", setup.metadata[0])
        net.add_address("eth0", setup.address)
        net.set_up("eth0")
        net.add_route("eth0", setup.control)
        net.add_route("eth0", None, gateway=setup.control)


def _mount_names(hosts: str) -> None:
    """Name resolution of the node's own, without a file left anywhere: it lives in a filesystem only it refers to."""
    kernel.mount("tmpfs", "/sys", "tmpfs", options="size=1m,mode=755")  # room for the names of 4096 nodes, twice
    # There is no name server: nothing listens here, so that a lookup of an unknown name fails at once.
    for name, text in (("hosts", hosts), ("resolv.conf", "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")):
        pathlib.Path(f"/sys/{name}").write_text(text)
        if pathlib.Path(f"/etc/{name}").exists():
            kernel.mount(f"/sys/{name}", f"/etc/{name}", flags=kernel.MS_BIND)
    kernel.unmount("/sys")


def _name(name: str, address: str) -> None:
    """The name leads to this address from now on. The file stays the one that is mounted: it is written in place."""
    with open("/etc/hosts", "r+", encoding="utf-8") as file:
        others = [line for line in file if line.split()[1:] != [name]]
        file.seek(0)
        file.write("".join([*others, f"{address} {name}\n"]))
        file.truncate()


def _mount_sysfs() -> None:
    """Some containers do not let a user mount /sys: the node then sees the devices of the outside there."""
    outside = os.open(GROUPS, os.O_PATH | os.O_CLOEXEC) if os.path.isdir(GROUPS) else None
    try:
        kernel.mount("sysfs", "/sys", "sysfs", NOTHING_SPECIAL)
        if outside is not None:
            _show_groups(outside)
    except PermissionError as error:
        print(f"the node goes without a /sys of its own: {error}", file=sys.stderr, flush=True)
    finally:
        if outside is not None:
            os.close(outside)


def _show_groups(outside: int) -> None:
    """A process may read the limits of its control group, as in a container; nobody on the node may write them."""
    try:
        kernel.mount(f"/proc/self/fd/{outside}", GROUPS, flags=kernel.MS_BIND | kernel.MS_REC)
    except OSError as error:
        print(f"the node does not see its control groups: {error}", file=sys.stderr, flush=True)
        return
    points = {GROUPS, *(str(mount.point) for mount in groups.mounts(pathlib.Path("/proc/self/mountinfo")))}
    for point in sorted(each for each in points if each == GROUPS or each.startswith(f"{GROUPS}/")):
        with contextlib.suppress(OSError):  # hidden by another one, or not ours to change
            read_only = kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_RDONLY
            kernel.mount("none", point, flags=read_only | NOTHING_SPECIAL)


def _listen(address: tuple[str, int]) -> socket.socket:
    endpoint = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    endpoint.bind(address)
    endpoint.listen(64)
    return endpoint


class Init:
    def __init__(self, link: socket.socket, namespaces: bool):
        self._link = link
        self._namespaces = namespaces
        self._main_pid = 0
        self._duty = throttle.DutyCycle(self._turn)
        self._members: list[processes.ProcEntry] = []
        self._looked = 0.0
        self._frozen: set[int | None] = set()  # stopped on purpose; `None`: all of them
        self._calls: dict[str, Callable[..., object]] = {
            "run": self._run,
            "signal": self._signal,
            "freeze": self._freeze,
            "pids": self._pids,
            "states": self._states,
            "throttle": self._throttle,
            "stopped_ns": self._stopped_ns,
            "doom": self._doom,
            "name": _name,
        }

    def serve(self) -> None:
        """Answers calls and reaps until labd is gone, then takes everything on the node down."""
        wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        poll.register(self._link, select.POLLIN)
        with contextlib.suppress(OSError):  # labd is gone, or silent in the middle of a message
            while True:
                pause_s = self._duty.tick()
                ready = {descriptor for descriptor, _ in poll.poll(None if pause_s is None else pause_s * 1000)}
                if wake in ready:
                    os.read(wake, 4096)
                self._reap()
                if self._link.fileno() in ready:
                    self._answer(rpc.receive(self._link))
        if not self._namespaces:  # else the kernel does it
            processes.kill_until_gone(lambda: processes.descendants(os.getpid()), 5.0)

    def _answer(self, message: rpc.Message) -> None:
        try:
            result = self._calls[message["call"]](**message["params"])
            rpc.send(self._link, {"id": message["id"], "result": result})
        except (OSError, UsageError) as error:
            rpc.send(self._link, {"id": message["id"], "error": rpc.error_to_message(error)})

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):  # no child at all
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._main_pid:
                    self._main_pid = 0
                    rpc.send(self._link, {"event": "exit", "code": os.waitstatus_to_exitcode(status)})

    def _run(self, command: list[str], env: dict[str, str], log: str) -> int:
        prepare = own_view.give_up_mounting if self._namespaces else None
        self._main_pid = spawn.execute(command, env, log, prepare)
        return self._main_pid

    def _others(self) -> list[processes.ProcEntry]:
        if not self._namespaces:
            return processes.descendants(os.getpid())
        return [process for process in processes.every() if process.pid != 1 and process.running]

    def _pids(self) -> list[int]:
        return sorted(process.pid for process in self._others())

    def _signal(self, signum: int, pid: int | None) -> int:
        if signum == signal.SIGSTOP:
            self._frozen.add(pid)
        elif signum == signal.SIGCONT:
            self._frozen = set() if pid is None else self._frozen - {pid}
        return self._send(signum, pid)

    def _send(self, signum: int, pid: int | None) -> int:
        others = self._others()
        if pid is not None:
            return sum(process.signal(signum) for process in others if process.pid == pid)
        if self._namespaces:
            return self._signal_namespace(signum, len(others))
        return self._signal_tree(signum)

    def _turn(self, signum: int) -> None:
        """One turn of the duty cycle; what was frozen on purpose stays so."""
        if signum == signal.SIGCONT and None in self._frozen:
            return
        if self._namespaces:
            self._send(signum, None)
        else:
            for process in self._known():
                process.signal(signum)
        for pid in self._frozen if signum == signal.SIGCONT else ():
            self._send(signal.SIGSTOP, pid)

    def _known(self) -> list[processes.ProcEntry]:
        """The node's processes as of a moment ago: to look at all of the machine's takes longer than a turn may."""
        if time.monotonic() - self._looked > LOOK_FOR_NEW_S:
            self._members, self._looked = self._others(), time.monotonic()
        return self._members

    def _throttle(self, share: float) -> None:
        self._duty.set_share(share)

    def _stopped_ns(self) -> int:
        return self._duty.stopped_ns

    def _states(self) -> list[dict[str, object]]:
        others = sorted(self._others(), key=lambda each: each.pid)
        return [each.in_short(TICK_NS) for each in others]

    def _doom(self, pid: int) -> None:
        if pid not in self._pids():
            raise UsageError(f"unknown process {pid} on this node")
        pathlib.Path(f"/proc/{pid}/oom_score_adj").write_text("1000")

    def _freeze(self) -> None:
        """Everything stands still when this returns: a stop signal acts only when its process is next scheduled."""
        self._signal(signal.SIGSTOP, None)
        deadline = time.monotonic() + FREEZE_S_MAX
        while moving := [each.pid for each in self._others() if each.state in "RS"]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"processes {moving} have not stopped within {FREEZE_S_MAX:g} s")
            time.sleep(0.001)

    def _signal_namespace(self, signum: int, count: int) -> int:
        # Outside a PID namespace of our own, -1 would mean every process of the user.
        assert os.getpid() == 1, "only process 1 of a node may signal everything it sees"
        try:
            os.kill(-1, signum)  # atomic: nothing can be forked in the middle
        except ProcessLookupError:
            return 0
        return count

    def _signal_tree(self, signum: int) -> int:
        """One round for most signals; SIGSTOP and SIGKILL until no process is found that did not get it."""
        told: set[tuple[int, int]] = set()
        rounds = FREEZE_ROUNDS_MAX if signum in (signal.SIGSTOP, signal.SIGKILL) else 1
        for _ in range(rounds):
            new = [each for each in self._others() if (each.pid, each.start) not in told]
            if not new:
                break
            told |= {(each.pid, each.start) for each in new if each.signal(signum)}
            time.sleep(0.001)
        return len(told)
