"""What a node is, in every mode: its command, its processes, its network, its death and its replacement."""

import os
import pathlib
import signal
import subprocess
import tempfile
import threading

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
    lab = open_lab((*script(code), *WHO, "{control}", '{"json": 1}'), nodes=2, PLAN="yes")
    lab.wait_exits(2)
    for index, node in enumerate(lab.cluster.nodes):
        network = "127.77" if mode == "plain" else "10.77"
        assert node.address.startswith(network + ".")
        control = node.address.rsplit(".", 1)[0] + ".254"
        device = "lo" if mode == "plain" else "eth0"
        wanted = [str(index), node.address, "1", str(lab.run_dir / "shared"), control, '{"json":', "1}", device]
        wanted += [f"node{index}", "1", lab.run_id, str(lab.run_dir / "events" / node.name), "yes"]
        assert lab.log(f"node{index}.1").split() == wanted


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (("/no/such/command", "x"), 127, "/no/such/command: cannot be executed: No such file or directory"),
        (("/etc",), 126, "/etc: cannot be executed: Permission denied"),
    ],
)
def test_a_command_that_cannot_be_executed(
    open_lab: OpenLab, command: tuple[str, ...], code: int, message: str
) -> None:
    lab = open_lab(command)
    assert lab.wait_exits(1) == [Exit("node0", 1, code)]
    assert lab.log("node0.1") == message + "\n"


def test_the_end_of_a_command(open_lab: OpenLab) -> None:
    lab = open_lab(("sh", "-c", "[ {index} = 0 ] && exit 3; kill -SEGV $$"), nodes=2)
    assert sorted(lab.wait_exits(2), key=lambda end: end.node) == [Exit("node0", 1, 3), Exit("node1", 1, -11)]
    assert all(node.alive for node in lab.cluster.nodes), "a node outlives its command"
    assert lab.cluster.exits() == []


def test_a_kill_takes_everything_on_the_node_and_nothing_else(open_lab: OpenLab) -> None:
    lab = open_lab(FAMILY, nodes=2)
    lab.wait_family(0)
    lab.wait_family(1)
    node = lab.cluster.nodes[0]
    node.kill()
    left = [item.node for item in leftovers.leftovers(lab.run_id)]
    assert "node0.1" not in left
    assert left.count("node1.1") == 3
    assert not node.alive
    assert node.pids() == []
    assert lab.cluster.exits() == [Exit("node0", 1, -9)]
    for verb in (node.kill, node.freeze, lambda: node.signal(signal.SIGTERM), lambda: node.notice("ec2", 1)):
        with pytest.raises(NodeGone, match=r"node0\.1"):
            verb()
    assert lab.cluster.nodes[1].alive


def test_a_frozen_node_can_be_killed(open_lab: OpenLab) -> None:
    lab = open_lab(FAMILY)
    lab.wait_family(0)
    lab.cluster.nodes[0].freeze()
    lab.cluster.nodes[0].kill()
    assert [item for item in leftovers.leftovers(lab.run_id) if item.node == "node0.1"] == []


def test_peers_see_the_end_of_a_killed_node(open_lab: OpenLab) -> None:
    code = SERVER + (
        "import time\n"
        "if index == '0':\n"
        "    link = listener.accept()[0]; time.sleep(300)\n"
        "while not (run_dir / '0.1').exists(): time.sleep(0.01)\n"
        "link = socket.create_connection(((run_dir / '0.1').read_text(), 7000))\n"
        "print('connected', flush=True)\n"
        "try: print('end', link.recv(1) == b'', flush=True)\n"
        "except ConnectionError: print('end reset', flush=True)\n"
    )
    lab = open_lab((*script(code), *WHO), nodes=2)
    lab.wait_log("node1.1", "connected")
    lab.cluster.nodes[0].kill()
    lab.wait_log("node1.1", "end")  # or a reset: either way its peers need not wait for a time-out


def test_a_replacement_has_a_new_address_and_reaches_its_peers(open_lab: OpenLab) -> None:
    code = SERVER + (
        "if incarnation == '2':\n"
        "    link = socket.create_connection(((run_dir / '1.1').read_text(), 7000))\n"
        "    print('heard', link.recv(10).decode(), flush=True)\n"
        "while True: listener.accept()[0].sendall(f'node{index}'.encode())\n"
    )
    lab = open_lab((*script(code), *WHO), nodes=2)
    old = lab.cluster.nodes[0]
    until((lab.run_dir / "shared" / "1.1").exists, "the file of node1")
    with pytest.raises(UsageError, match="still there"):
        lab.cluster.replace(old)
    old.kill()
    new = lab.cluster.replace(old)
    assert (new.name, new.index, new.incarnation, new.alive) == ("node0", 0, 2, True)
    assert new.address not in (old.address, lab.cluster.nodes[1].address)
    assert lab.cluster.nodes[0] is new
    lab.wait_log("node0.2", "heard node1")
    assert not old.alive
    with pytest.raises(UsageError, match="replaced already"):
        lab.cluster.replace(old)


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
    assert node.alive


def test_a_signal_cannot_leave_the_node(open_lab: OpenLab) -> None:
    lab = open_lab(SLEEP)
    for pid in (-1, 0, 1):
        with pytest.raises(UsageError, match="above 1"):
            lab.cluster.nodes[0].signal(signal.SIGKILL, pid)
    with subprocess.Popen(SLEEP) as bystander:
        # In a PID namespace the same number may be nobody or somebody else: this one is far above its few.
        assert lab.cluster.nodes[0].signal(signal.SIGKILL, bystander.pid) == 0
        assert bystander.poll() is None
        bystander.kill()


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


def test_the_end_of_the_control_process_is_told(open_lab: OpenLab) -> None:
    lab = open_lab(SLEEP, control=("sh", "-c", "echo {run_dir}; exit 5"))
    assert lab.wait_exits(1) == [Exit("control", 1, 5)]
    assert lab.log("control") == f"{lab.run_dir}\n"


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


def test_calls_from_many_threads(open_lab: OpenLab) -> None:
    lab = open_lab(FAMILY, nodes=2)
    wanted = [lab.wait_family(index) for index in (0, 1)]
    wrong: list[object] = []

    def look(index: int) -> None:
        for _ in range(25):
            if (found := lab.cluster.nodes[index].pids()) != wanted[index]:
                wrong.append(found)

    threads = [threading.Thread(target=look, args=(number % 2,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_two_labs_do_not_touch_each_other(open_lab: OpenLab) -> None:
    code = SERVER + "print('up', flush=True)\nwhile True: listener.accept()"
    one = open_lab((*script(code), *WHO), nodes=2)
    two = open_lab((*script(code), *WHO), nodes=2)
    for lab in (one, two):
        for index in (0, 1):
            lab.wait_log(f"node{index}.1", "up")  # the same port, and in namespaces the same address
    one.cluster.nodes[0].kill()
    one.cluster.close()
    assert leftovers.leftovers(one.run_id) == []
    assert all(node.alive and len(node.pids()) == 1 for node in two.cluster.nodes)
    assert two.cluster.exits() == []


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
    code = (
        "import os, pathlib, socket, time\n"
        "print(sorted(p.name for p in pathlib.Path('/proc').glob('[0-9]*')) == ['1', str(os.getpid())])\n"
        "name = socket.gethostname()\n"
        "print(sorted(os.listdir('/sys/class/net')), name, socket.gethostbyname(name))\n"
        "try: time.clock_settime(time.CLOCK_REALTIME, time.time()); print('clock set')\n"
        "except PermissionError: print('clock safe')\n"
    )
    lab = open_lab(script(code))
    lab.wait_exits(1)
    address = lab.cluster.nodes[0].address
    wanted = ["True", f"['eth0', 'lo'] node0 {address}", "clock safe"]
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
def test_a_lookup_of_an_unknown_name_does_not_wait(open_lab: OpenLab) -> None:
    code = (
        "import pathlib, socket\n"
        "print(pathlib.Path('/etc/resolv.conf').read_text().split()[1], socket.getnameinfo(('10.77.0.9', 1), 0)[0])"
    )
    lab = open_lab(script(code))
    lab.wait_exits(1)
    assert lab.log("node0.1").split() == ["127.0.0.1", "host-10-77-0-9"]


def test_the_run_directory_must_be_absolute(open_lab: OpenLab) -> None:
    from harness.backends.contract import Launch
    from harness.backends.local.backend import LocalBackend

    with pytest.raises(UsageError, match="absolute"):
        LocalBackend().open(Launch(SLEEP, 1, 1), pathlib.Path("here"), "x")


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "plain"], indirect=True)
def test_nodes_find_each_other_by_name(open_lab: OpenLab, mode: str) -> None:
    """Also a replacement, which has another address; without namespaces there are no names of our own."""
    code = """
import pathlib, socket, sys, time
while not pathlib.Path(sys.argv[1], "go").exists():
    time.sleep(0.01)
for _ in range(int(sys.argv[2])):
    print(*(socket.gethostbyname(name) for name in ("node0", "node1", "control")), flush=True)
time.sleep(300)
"""
    lab = open_lab((*script(code), "{run_dir}", "1"), nodes=2)
    lab.cluster.nodes[1].kill()
    fresh = lab.cluster.replace(lab.cluster.nodes[1])
    (lab.run_dir / "go").touch()
    first = lab.cluster.nodes[0]
    control = first.address.rsplit(".", 1)[0] + ".254"
    for key in ("node0.1", "node1.2"):
        assert lab.wait_log(key, "\n").split() == [first.address, fresh.address, control]


def test_the_head_is_node_0(open_lab: OpenLab) -> None:
    lab = open_lab(("echo", "{head}", "{{head}}"), nodes=2)
    lab.wait_exits(2)
    assert lab.log("node1.1").split() == [lab.cluster.nodes[0].address, "{head}"]
