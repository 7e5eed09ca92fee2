"""Why a lab cannot be built, in words; what the local backend says of this machine; and which of its GPUs a node gets."""

import errno
import pathlib
import subprocess
import sys
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

import harness
from harness.backends.contract import Launch, Verb, fill_placeholders
from harness.backends.local import backend as local
from harness.backends.local import client
from harness.backends.local.backend import gpus_of
from harness.errors import BackendError, UsageError
from harness.faults.contract import load_fault
from harness.node import kernel_errors, metadata

ROOT = str(pathlib.Path(harness.__file__).resolve().parent.parent)


@pytest.mark.parametrize(
    ("stage", "number", "mode", "words"),
    [
        ("user namespace", errno.EPERM, "user", "unprivileged_userns_clone"),
        ("uid map", errno.EPERM, "user", "AppArmor"),
        ("veth", errno.EPERM, "user", "AppArmor"),
        ("mounts", errno.EPERM, "user", "systempaths=unconfined"),
        ("node mounts", errno.EACCES, "root", "apparmor=unconfined"),
        ("namespaces", errno.EPERM, "root", "CAP_SYS_ADMIN"),
        ("user namespace", errno.ENOSPC, "user", "user.max_"),
        ("node namespaces", errno.EUSERS, "user", "user.max_"),
        ("veth", errno.EOPNOTSUPP, "root", "veth"),
        ("node processes", errno.EAGAIN, "user", "limit on processes"),
        ("user namespace", errno.EINVAL, "user", "another kernel"),
        (kernel_errors.WATCH, errno.EBUSY, "root", "Linux 5.5"),
        ("lab network", errno.EIO, "user", "lab network: Input/output error"),
    ],
)
def test_a_refusal_names_reason_and_remedy(stage: str, number: int, mode: str, words: str) -> None:
    assert words in kernel_errors.explain(stage, number, mode)


@pytest.mark.parametrize("limit", ["max_net_namespaces", "max_pid_namespaces"])
def test_the_probe_finds_a_real_refusal_and_falls_back(limit: str) -> None:
    """Under a limit of namespaces set for one user namespace alone."""
    code = textwrap.dedent("""
        import sys
        sys.path.insert(0, sys.argv[1])
        from harness.backends.contract import Verb
        from harness.backends.local.backend import BACKEND
        found = BACKEND.probe()
        basic = {Verb.SIGNAL, Verb.KILL, Verb.FREEZE, Verb.NOTICE, Verb.REPLACE}
        print(found.available, basic <= found.verbs, found.summary)
        print(found.missing[Verb.NET_DELAY])
    """)
    script = f'echo 0 > /proc/sys/user/{limit} && exec {sys.executable} -c "$0" {ROOT}'
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", script, code]
    done = subprocess.run(command, capture_output=True, text=True)
    if "unshare" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0 and done.stdout.startswith("True True process trees without namespaces"), done.stderr
    told = done.stdout.count("raise the sysctls user.max_*_namespaces")
    assert told == 2, "once for all ways, and for the missing verb"


def test_without_namespaces_nobody_disturbs_a_network_and_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAOS_LOCAL_MODE", "magic")
    with pytest.raises(UsageError, match="'magic': allowed are root, user, plain"):
        local.LocalBackend().probe()
    monkeypatch.setenv("CHAOS_LOCAL_MODE", "plain")
    capability = local.LocalBackend().probe()
    network = {Verb.NET_RATE, Verb.NET_DELAY, Verb.NET_LOSS, Verb.NET_LINK, Verb.NET_PARTITION}
    assert capability.available and not network & capability.verbs
    assert all("namespaces" in capability.missing[verb] for verb in network)
    assert "CHAOS_LOCAL_MODE=plain" in capability.missing[Verb.NET_LOSS]
    for name in ("nic_bandwidth", "nic_latency", "nic_loss", "nic_flap", "partition"):
        assert load_fault(name).needs <= network


@pytest.mark.parametrize(
    ("program", "boot", "said"),
    [
        (sys.executable, "raise SystemExit('no luck')", "ended before it was ready: no luck"),
        (sys.executable, "import time; time.sleep(60)", r"not ready within 0\.2 s"),
        ("/nowhere/python", "", "cannot be started"),
    ],
)
def test_a_labd_that_cannot_start_fails_or_hangs_says_why(
    program: str, boot: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", program)
    monkeypatch.setattr(client, "_BOOT", boot)
    if "sleep" in boot:
        monkeypatch.setattr(client, "START_S_MAX", 0.2)
        monkeypatch.setattr(client, "END_S_MAX", 0.2)
    with pytest.raises(BackendError, match=said):
        client.LabClient("plain", "x", None)


def test_the_native_request_is_plain_data() -> None:
    workload = Launch(("train", "{index}"), 2, 4, {"A": "1"}, ("store", "{control}"))
    assert local.BACKEND.render(workload) == {
        "nodes": [
            {"name": "node0", "command": ["train", "{index}"]},
            {"name": "node1", "command": ["train", "{index}"]},
        ],
        "control": ["store", "{control}"],
        "ranks_per_node": 4,
        "env": {"A": "1"},
    }


def test_placeholders_and_the_environment_of_the_metadata_endpoint() -> None:
    filled = fill_placeholders(("{index}", "x={address}:{index}", '{"index": {}}'), {"index": 3, "address": "a"})
    assert filled == ("3", "x=a:3", '{"index": {}}')
    with pytest.raises(UsageError, match=r"\{incarnation\} is unknown .* \{index\}"):
        fill_placeholders(("{incarnation}",), {"index": 3})
    assert metadata.environment("169.254.169.254:80")["GCE_METADATA_HOST"] == "169.254.169.254"
    environment = metadata.environment("127.77.0.1:8080")
    assert environment["GCE_METADATA_HOST"] == "127.77.0.1:8080"
    assert environment["AWS_EC2_METADATA_SERVICE_ENDPOINT"] == "http://127.77.0.1:8080"


@pytest.mark.parametrize(
    ("visible", "ranks", "expected"),
    [
        ("0,1,2,3", 2, ["0,1", "2,3"]),
        ("GPU-a,GPU-b", 1, ["GPU-a", "GPU-b"]),
        ("5", 1, ["5", "5"]),
        ("0,1,2", 2, ["0,1", "2,0"]),
        ("0,1", 4, ["0,1", "0,1"]),  # the reference trainer uses no GPU then
        ("", 1, [None, None]),  # how people hide them
    ],
)
def test_nodes_have_gpus_of_their_own_while_there_are_enough(
    visible: str, ranks: int, expected: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpus_of(node, ranks) for node in (0, 1)] == expected


def test_without_that_variable_nodes_get_what_the_driver_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for found, expected in ([], None), (["nvidia1", "nvidia0"], "0,1"):
        there = [pathlib.Path("/dev", name) for name in found]
        monkeypatch.setattr(pathlib.Path, "glob", lambda *_, there=there: iter(there))
        assert gpus_of(0, 2) == expected


@given(count=st.integers(1, 9), nodes=st.integers(1, 9), ranks=st.integers(1, 9))
def test_no_two_ranks_of_a_node_share_a_gpu_and_none_is_left_idle(count: int, nodes: int, ranks: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count))))
        given_out = [(gpus_of(node, ranks) or "").split(",") for node in range(nodes)]
    assert all(len(set(each)) == len(each) == min(ranks, count) for each in given_out)
    if ranks <= count:
        assert len({gpu for each in given_out for gpu in each}) == min(count, nodes * ranks)
