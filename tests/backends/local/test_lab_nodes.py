"""What a node is, in every mode: its command, its processes, its network, its death and its replacement."""

import concurrent.futures
import os
import pathlib
import signal
import tempfile

import pytest
from backends.local.labs import FAMILY, Opened, OpenLab, script
from waiting import until

from harness.backends.contract import Exit
from harness.backends.local.backend import MODES
from harness.errors import BackendError, NodeGone, UsageError
from harness.node import leftovers, processes
from harness.node.lab_init import SHARED_MEMORY

NAMESPACES = [mode for mode in MODES if mode != "plain"]  # a process tree sees what its user sees
SLEEP = ("sleep", "300")
SERVER = """
import pathlib, socket, sys
index, address, incarnation = sys.argv[1:4]
run_dir = pathlib.Path(sys.argv[4])
listener = socket.create_server((address, 7000))
(run_dir / f"{index}.{incarnation}.tmp").write_text(address)
(run_dir / f"{index}.{incarnation}.tmp").rename(run_dir / f"{index}.{incarnation}")
"""
WHO = ("{index}", "{address}", "{incarnation}", "{run_dir}/shared")


def test_a_command_is_told_its_place(open_lab: OpenLab, mode: str) -> None:
    names = "GLOO_SOCKET_IFNAME CHAOS_NODE CHAOS_INCARNATION CHAOS_RUN_ID CHAOS_EVENTS PLAN"
    code = f"import os, sys; print(*sys.argv[1:], *(os.environ[name] for name in {names.split()}))"
    lab = open_lab((*script(code), *WHO, "{control}", "{head}", "{{head}}"), nodes=2, PLAN="yes")
    lab.wait_exits(2)
    network, device = ("127.77", "lo") if mode == "plain" else ("10.77", "eth0")
    for index, node in enumerate(lab.cluster.nodes):
        assert node.address.startswith(network + ".")
        control = node.address.rsplit(".", 1)[0] + ".254"
        wanted = [str(index), node.address, "1", str(lab.run_dir / "shared"), control]
        wanted += [lab.cluster.nodes[0].address, "{head}", device]
        wanted += [f"node{index}", "1", lab.run_id, str(lab.run_dir / "events" / node.name), "yes"]
        assert lab.log(f"node{index}.1").split() == wanted


def test_how_commands_end_also_those_that_cannot_be_executed(open_lab: OpenLab) -> None:
    lab = open_lab(("/no/such/command", "x"), control=("/etc",))
    assert sorted(lab.wait_exits(2), key=lambda end: end.node) == [Exit("control", 1, 126), Exit("node0", 1, 127)]
    assert lab.log("node0.1") == "/no/such/command: cannot be executed: No such file or directory\n"
    assert lab.log("control") == "/etc: cannot be executed: Permission denied\n"
    lab = open_lab(("sh", "-c", "kill -SEGV $$"), control=("sh", "-c", "echo {run_dir}; exit 5"))
    assert sorted(lab.wait_exits(2), key=lambda end: end.node) == [Exit("control", 1, 5), Exit("node0", 1, -11)]
    assert lab.log("control") == f"{lab.run_dir}\n"
    assert lab.cluster.nodes[0].alive and lab.cluster.exits() == [], "a node outlives its command"


def test_a_kill_takes_everything_on_the_node_and_nothing_else(open_lab: OpenLab) -> None:
    """Whoever asks beside it, and also of a frozen node."""
    lab = open_lab(FAMILY, nodes=2)
    wanted = [lab.wait_family(index) for index in (0, 1)]
    node, other = lab.cluster.nodes
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        looks = threads.map(lambda number: lab.cluster.nodes[number % 2].pids() == wanted[number % 2], range(200))
    assert all(looks)
    node.kill()
    left = [item.node for item in leftovers.leftovers(lab.run_id)]
    assert "node0.1" not in left and left.count("node1.1") == 3
    assert not node.alive and node.pids() == [] and other.alive
    assert lab.cluster.exits() == [Exit("node0", 1, -9)]
    for verb in (node.kill, node.freeze, lambda: node.signal(signal.SIGTERM), lambda: node.notice("ec2", 1)):
        with pytest.raises(NodeGone, match=r"node0\.1"):
            verb()
    other.freeze()
    other.kill()
    assert [item for item in leftovers.leftovers(lab.run_id) if item.node == "node1.1"] == []


def test_peers_see_the_end_of_a_killed_node_and_its_replacement_reaches_them(open_lab: OpenLab) -> None:
    """At another address. Or they see a reset: either way they need not wait for a time-out."""
    code = SERVER + (
        "import time\n"
        "if (index, incarnation) == ('0', '1'):\n"
        "    link = listener.accept()[0]; time.sleep(300)\n"
        "if incarnation == '2':\n"
        "    link = socket.create_connection(((run_dir / '1.1').read_text(), 7000))\n"
        "    print('heard', link.recv(10).decode(), flush=True); time.sleep(300)\n"
        "while not (run_dir / '0.1').exists(): time.sleep(0.01)\n"
        "link = socket.create_connection(((run_dir / '0.1').read_text(), 7000))\n"
        "print('connected', flush=True)\n"
        "try: print('end', link.recv(1) == b'', flush=True)\n"
        "except ConnectionError: print('end reset', flush=True)\n"
        "while True: listener.accept()[0].sendall(f'node{index}'.encode())\n"
    )
    lab = open_lab((*script(code), *WHO), nodes=2)
    old, peer = lab.cluster.nodes
    lab.wait_log("node1.1", "connected")
    old.kill()
    lab.wait_log("node1.1", "end")
    new = lab.cluster.replace(old)
    assert new.address not in (old.address, peer.address)
    lab.wait_log("node0.2", "heard node1")


def test_a_signal_reaches_one_process_or_all(open_lab: OpenLab) -> None:
    lab = open_lab(FAMILY)
    node = lab.cluster.nodes[0]
    first, *others = lab.wait_family(0)
    assert node.signal(signal.SIGTERM, others[0]) == 1
    assert lab.wait_pids(0, 2) == [pid for pid in (first, *others) if pid != others[0]]
    assert node.signal(signal.SIGTERM, others[0]) == 0, "it is gone"
    assert node.signal(signal.SIGTERM) == 2
    assert lab.wait_exits(1) == [Exit("node0", 1, -15)]
    until(lambda: not node.pids(), "the end of every process")
    assert node.signal(signal.SIGTERM) == 0
    for pid in (-1, 0, 1):
        with pytest.raises(UsageError, match="above 1"):
            node.signal(signal.SIGKILL, pid)
    assert node.alive


def test_the_control_process_is_beside_the_nodes(open_lab: OpenLab) -> None:
    server = "import socket; s = socket.create_server(('{control}', 7001))\nwhile 1: s.accept()[0].sendall(b'control')"
    client = (
        "import socket, time\n"
        "while True:\n"
        "    try: print('heard', socket.create_connection(('{control}', 7001)).recv(20).decode()); break\n"
        "    except OSError: time.sleep(0.02)\n"
    )
    lab = open_lab(script(client), nodes=2, control=script(server))
    assert {end.node for end in lab.wait_exits(2)} == {"node0", "node1"}
    lab.cluster.nodes[0].kill()
    lab.cluster.replace(lab.cluster.nodes[0])
    lab.wait_exits(1)
    assert "heard control" in lab.log("node0.2")


def test_orphans_are_reaped(open_lab: OpenLab) -> None:
    code = (
        "import os, pathlib, time\n"
        "for _ in range(40):\n"
        "    if os.fork() == 0:\n"
        "        if os.fork() == 0: os._exit(0)\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
        "def zombies():\n"
        "    texts = []\n"
        "    for path in pathlib.Path('/proc').glob('[0-9]*/stat'):\n"
        "        try: texts.append(path.read_text().rpartition(')')[2].split())\n"
        "        except OSError: pass\n"
        "    return sum(fields[0] == 'Z' and int(fields[1]) == os.getppid() for fields in texts)\n"
        "while zombies(): time.sleep(0.01)\n"
        "print('reaped')\n"
    )
    lab = open_lab(script(code))
    assert lab.wait_exits(1) == [Exit("node0", 1, 0)]


@pytest.mark.parametrize("victim", ["labd", "keeper"])
def test_the_lab_ends_when_one_of_its_holders_is_killed(open_lab: OpenLab, victim: str) -> None:
    lab = open_lab(FAMILY, nodes=2, control=SLEEP)
    lab.wait_family(1)
    (keeper,) = [
        each.pid for each in processes.every() if each.parent == os.getpid() and _name(each.pid) == "lab-keeper"
    ]
    (labd,) = [each.pid for each in processes.every() if each.parent == keeper]
    os.kill(labd if victim == "labd" else keeper, signal.SIGKILL)
    until(lambda: not _nodes_left(lab), "the end of the lab")
    until(lambda: not lab.cluster.nodes[0].alive, "the end of the node")
    with pytest.raises(BackendError, match=r"labd\.log"):
        while True:
            lab.cluster.exits()
    with pytest.raises(BackendError, match="lab"):
        lab.cluster.nodes[0].kill()
    lab.cluster.close()
    lab.cluster.close()


def _name(pid: int) -> str:
    return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()


def _nodes_left(lab: Opened) -> list[leftovers.Leftover]:
    return [item for item in leftovers.leftovers(lab.run_id) if item.node.startswith(("node", "control"))]


@pytest.mark.parametrize("mode", NAMESPACES, indirect=True)
def test_namespaces_hide_the_rest_of_the_machine(open_lab: OpenLab) -> None:
    """A look-up of a name that is not known there does not wait for a server that cannot be reached."""
    code = (
        "import os, pathlib, socket, time\n"
        "print(sorted(p.name for p in pathlib.Path('/proc').glob('[0-9]*')) == ['1', str(os.getpid())])\n"
        "name = socket.gethostname()\n"
        "print(sorted(os.listdir('/sys/class/net')), name, socket.gethostbyname(name))\n"
        "try: time.clock_settime(time.CLOCK_REALTIME, time.time()); print('clock set')\n"
        "except PermissionError: print('clock safe')\n"
        "print(pathlib.Path('/etc/resolv.conf').read_text().split()[1], socket.getnameinfo(('10.77.0.9', 1), 0)[0])"
    )
    lab = open_lab(script(code))
    lab.wait_exits(1)
    wanted = ["True", f"['eth0', 'lo'] node0 {lab.cluster.nodes[0].address}", "clock safe", "127.0.0.1 host-10-77-0-9"]
    assert lab.log("node0.1").splitlines() == wanted


@pytest.mark.parametrize("mode", NAMESPACES, indirect=True)
def test_no_two_nodes_count_their_processes_from_the_same_number(open_lab: OpenLab) -> None:
    """A launcher names its sockets in /tmp, which nodes share, by its process id: ranks of two nodes met in one."""
    lab = open_lab(script("import os, time; print(os.getpid(), flush=True); time.sleep(300)"), nodes=2)
    until(lambda: lab.log("node0.1") and lab.log("node1.1"), "a process of each node")
    lab.cluster.nodes[0].kill()
    lab.cluster.replace(lab.cluster.nodes[0])
    until(lambda: lab.log("node0.2"), "a process of the replacement")
    assert len({lab.log(name) for name in ("node0.1", "node1.1", "node0.2")}) == 3


@pytest.mark.parametrize("mode", NAMESPACES, indirect=True)
@pytest.mark.parametrize("around", [".fault-free/0123", "."], ids=["kept fault-free run", "run of a drill"])
def test_a_node_writes_nothing_of_the_history_it_is_compared_with(
    open_lab: OpenLab, tmp_path: pathlib.Path, around: str
) -> None:
    kept = tmp_path / around / "events" / "node0" / "w.jsonl"
    kept.parent.mkdir(parents=True)
    for ours in (kept, tmp_path / around / "undo.jsonl"):
        ours.write_text("ours")
    code = f"open({str(kept)!r}, 'a').write('forged')"
    lab = open_lab(script(f"open('{{run_dir}}/checkpoints/x', 'w').write('x'); {code}"))
    lab.wait_exits(1)
    assert "Read-only file system" in lab.log("node0.1") and kept.read_text() == "ours"
    assert (lab.run_dir / "checkpoints" / "x").read_text() == "x"


@pytest.mark.parametrize("mode", NAMESPACES, indirect=True)
def test_what_is_in_shared_memory_is_gone_with_the_node(open_lab: OpenLab) -> None:
    """What the host has there can be read."""
    with tempfile.NamedTemporaryFile("w", dir=SHARED_MEMORY, suffix=".chaos-test") as hosts:
        hosts.write("data")
        hosts.flush()
        os.chmod(hosts.name, 0o644)
        kept = f"{hosts.name}.kept"
        code = (
            f"import os, time; print(open({hosts.name!r}).read(), os.path.exists({kept!r}), flush=True)\n"
            f"open({kept!r}, 'w').write('state')\n"
            f"print(open({kept!r}).read(), flush=True); time.sleep(300)\n"
        )
        lab = open_lab(script(code))
        until(lambda: "state" in lab.log("node0.1"), "the node's own file")
        assert not os.path.exists(kept)
        lab.cluster.nodes[0].kill()
        lab.cluster.replace(lab.cluster.nodes[0])
        until(lambda: "state" in lab.log("node0.2"), "the replacement's own file")
        assert lab.log("node0.2").split() == lab.log("node0.1").split() == ["data", "False", "state"]


@pytest.mark.parametrize("mode", NAMESPACES, indirect=True)
def test_nodes_find_each_other_by_name(open_lab: OpenLab) -> None:
    """Also a replacement, which has another address; without namespaces there are no names of our own."""
    code = """
import pathlib, socket, sys, time
while not pathlib.Path(sys.argv[1], "go").exists():
    time.sleep(0.01)
print(*(socket.gethostbyname(name) for name in ("node0", "node1", "control")), flush=True)
time.sleep(300)
"""
    lab = open_lab((*script(code), "{run_dir}"), nodes=2)
    first, second = lab.cluster.nodes
    second.kill()
    fresh = lab.cluster.replace(second)
    (lab.run_dir / "go").touch()
    control = first.address.rsplit(".", 1)[0] + ".254"
    for key in ("node0.1", "node1.2"):
        assert lab.wait_log(key, "\n").split() == [first.address, fresh.address, control]
