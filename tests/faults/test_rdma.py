"""RDMA: faults that it goes around are refused, and the fault of it acts at the table of a libibverbs of our own.

No RDMA hardware takes part: `FAKE` has the table, and the layout of rdma-core 44 by plain offsets.
"""

import os
import pathlib
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import small_jobs
from faults.fault_context import means
from waiting import until

from harness.api.testing import FaultContext
from harness.backends.contract import Capability, Cluster, Verb
from harness.backends.local.backend import BACKEND
from harness.errors import BackendError, CannotRunError
from harness.faults.contract import Fault, Target, build_fault
from harness.node import boot, compiling, rdma
from harness.node.types import RdmaDevices
from harness.plan import rdma_paths
from harness.plan.capabilities import check_capabilities
from harness.run.job import execute

COMMON = """
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define POLL 96
#define POST 208
#define ABI (280 + sizeof(pthread_mutex_t))
#define AT(context, offset) (*(void **)((char *)(context) + (offset)))
struct queue { char *context; };
struct request { uint64_t id; struct request *next; };
struct completion { uint64_t id; int status, opcode; char rest[32]; };
"""
FAKE = """
static char memory[320 + ABI + 8];
static int waiting;
static int post(struct queue *queue, struct request *request, struct request **bad) {
    for (; request; request = request->next) waiting++;
    return 0;
}
static int poll(struct queue *queue, int most, struct completion *to) {
    int found = 0;
    for (; found < most && waiting > 0; found++, waiting--) memset(&to[found], 0, sizeof *to);
    return found;
}
static int query(void *context, uint8_t port, int *to, size_t size) { *to = 4; return 0; }
int ibv_query_port(void *context, uint8_t port, int *to) { *to = 4; return 0; }
void *ibv_open_device(void *device) {
    char *context = memory + 320;
    AT(memory, 0) = query, *(size_t *)(context - 8) = 320 + ABI + 8;
    AT(context, POLL) = poll, AT(context, POST) = post, AT(context, ABI) = (void *)-1;
    return context;
}
"""
CLIENT = """
#include <dlfcn.h>
#include <time.h>
extern void *ibv_open_device(void *);
extern int ibv_query_port(void *, uint8_t, int *);
int main(int count, char **words) {
    int (*old)(void *, uint8_t, int *) = ibv_query_port;
    void *(*open)(void *) = ibv_open_device;
    if (count > 1) { /* as NCCL does */
        void *library = dlopen(words[1], RTLD_NOW | RTLD_LOCAL);
        open = (void *(*)(void *))dlvsym(library, "ibv_open_device", "IBVERBS_1.1");
        old = (int (*)(void *, uint8_t, int *))dlvsym(library, "ibv_query_port", "IBVERBS_1.1");
    }
    struct queue queue = {open(NULL)};
    struct request second = {2, NULL}, first = {1, &second}, *bad;
    struct completion done[4];
    for (int state, wide, many = 0;; many = 0) {
        int (*post)(struct queue *, struct request *, struct request **) = AT(queue.context, POST);
        int (*poll)(struct queue *, int, struct completion *) = AT(queue.context, POLL);
        post(&queue, &first, &bad);
        while (many < 2) many += poll(&queue, 4, done + many);
        old(queue.context, 1, &state);
        ((int (*)(void *, uint8_t, int *, size_t))AT(queue.context, -320))(queue.context, 1, &wide, 52);
        printf("%d %d %d %d\\n", done[0].status, done[1].status, state, wide);
        fflush(stdout);
        usleep(2000);
    }
}
"""
LINKED, LOADED = "linked", "loaded"
pytestmark = pytest.mark.skipif(compiling.why_not() is not None, reason=str(compiling.why_not()))


@pytest.fixture(params=[LINKED, LOADED])
def client(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> list[str]:
    """The command of a program that sends by a libibverbs: one that it is linked with, or loads as NCCL does."""
    (tmp_path / "map").write_text("IBVERBS_1.1 { global: ibv_*; local: *; };")
    for name, code in (("fake", FAKE), ("client", CLIENT)):
        (tmp_path / f"{name}.c").write_text(COMMON + code)
    library = str(tmp_path / "libibverbs.so.1")
    built = ["cc", "-w", "-o", library, str(tmp_path / "fake.c"), "-shared", "-fPIC"]
    subprocess.run([*built, f"-Wl,--version-script={tmp_path / 'map'}"], check=True)
    program, stub = str(tmp_path / "client"), tmp_path / "stub.c"
    stub.write_text(
        "void *ibv_open_device(void *d) { return 0; }\nint ibv_query_port(void *c, char p, int *t) { return 1; }"
    )
    linked = [library, f"-Wl,-rpath,{tmp_path}"] if request.param == LINKED else [str(stub)]
    subprocess.run(["cc", "-w", "-o", program, str(tmp_path / "client.c"), *linked, "-ldl"], check=True)
    return [program] if request.param == LINKED else [program, library]


@pytest.fixture
def sending(client: list[str], tmp_path: pathlib.Path) -> Iterator[subprocess.Popen[str]]:
    (tmp_path / "answers" / "node0").mkdir(parents=True)
    marks = rdma.prepare(tmp_path) | {"CHAOS_NODE": "node0", "CHAOS_ANSWERS": str(tmp_path / "answers" / "node0")}
    env = boot.with_delivered({**os.environ, **marks}, boot.place())
    with subprocess.Popen(client, env=env, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def rdma_fault(how: str, **parameters: Any) -> Fault:
    return build_fault("rdma", {"how": how, **parameters})


def told(process: subprocess.Popen[str], wanted: str) -> None:
    assert process.stdout is not None
    stdout = process.stdout
    until(lambda: stdout.readline().strip() == wanted, wanted)


@pytest.mark.parametrize(
    ("how", "line", "unit"),
    [
        ("delay", "0 0 4 4", "ms of delay on average"),
        ("error", "12 12 4 4", "work requests failed, at least"),
        ("port_down", "12 12 1 1", "work requests failed, at least"),
    ],
)
def test_it_acts_on_what_a_program_sends_is_counted_and_ends(
    how: str, line: str, unit: str, sending: subprocess.Popen[str], tmp_path: pathlib.Path
) -> None:
    told(sending, "0 0 4 4")
    context, fault = FaultContext(tmp_path, waits=True), rdma_fault(how, delay="20ms", duration="1s")
    fault.inject([Target(0)], means(context))
    told(sending, line)
    ((measured, expected, told_unit, ok),) = context.effects
    assert (told_unit, ok) == (unit, True) and measured >= expected and context.actions == ["faults.rdma"]
    fault.heal([Target(0)], means(context))
    fault.see_end([Target(0)], means(context))
    assert [(left, ok) for left, _, _, ok in context.ends] == [(0, True)]
    told(sending, "0 0 4 4")


def test_a_program_that_sends_nothing_shows_that_it_did_not_act(tmp_path: pathlib.Path) -> None:
    rdma.prepare(tmp_path)
    context = FaultContext(tmp_path)
    rdma_fault("error").inject([Target(0)], means(context))
    assert [(measured, ok) for measured, _, _, ok in context.effects] == [(0, False)]


@pytest.mark.parametrize(
    "text", ["", "0 1 2 3\n", "9" * 80, f"{'1 ' * 40}\n", "0000000000000000001 " * 3 + "-" * 19 + "\n"]
)
def test_counts_that_a_node_may_have_written_are_none(text: str) -> None:
    assert rdma.counts(text) == rdma.Counts()


@pytest.mark.slow
@pytest.mark.parametrize("client", [LINKED], indirect=True)
def test_a_job_on_virtual_nodes_meets_it(
    client: list[str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.run.job.refuse_bypassed", lambda plan, cluster: None)  # there is no device here
    strike = small_jobs.fault("slow", "rdma", {"after_ns": 10**9}, how="delay", delay="20ms", duration="1s")
    plan = small_jobs.job("rdma", ["timeout", "5", *client], strike)
    execute(plan, tmp_path / "run", BACKEND)
    (effect,), (end,) = (small_jobs.told(tmp_path / "run", name) for name in ("fault.effect", "fault.ended"))
    assert effect["ok"] and effect["measured"] >= 20 and end["ok"], (effect, end)


# The plan


def sysfs(root: pathlib.Path, *modules: str, **ports: str) -> pathlib.Path:
    for device, state in ports.items():
        (root / "class" / "infiniband" / device / "ports" / "1").mkdir(parents=True)
        (root / "class" / "infiniband" / device / "ports" / "1" / "state").write_text(f"{state}\n")
    for module in modules:
        (root / "module" / module).mkdir(parents=True)
    return root


def test_the_devices_of_a_node_are_those_with_an_active_port(tmp_path: pathlib.Path) -> None:
    assert rdma.look(tmp_path / "none") == {"devices": [], "gpus": False}
    root = sysfs(tmp_path, "nvidia", mlx5_1="4: ACTIVE", mlx5_0="4: ACTIVE", mlx5_2="1: DOWN")
    assert rdma.look(root) == {"devices": ["mlx5_0", "mlx5_1"], "gpus": True}


@pytest.mark.parametrize(
    ("settings", "gpus", "uses"),
    [
        ({}, True, True),
        ({}, False, False),  # gloo
        ({"NCCL_IB_DISABLE": "1"}, True, False),
        ({"NCCL_IB_DISABLE": "0"}, True, True),
        ({"NCCL_NET": "Socket"}, True, False),
        ({"NCCL_NET": "IB"}, True, True),
        ({"UCX_TLS": "rc,cuda_copy"}, False, True),
        ({"UCX_TLS": "tcp"}, False, False),
        ({"UCX_TLS": "^rc"}, False, False),
        ({"NCCL_NET": "Socket", "NVSHMEM_REMOTE_TRANSPORT": "ibrc"}, True, True),
        ({"NCCL_NET": "Socket", "NVSHMEM_REMOTE_TRANSPORT": "none"}, True, False),
    ],
)
def test_variables_of_the_workload_say_which_way_it_goes(settings: dict[str, str], gpus: bool, uses: bool) -> None:
    assert rdma_paths.uses_rdma(settings, gpus) is uses


HAS = RdmaDevices(("mlx5_0",), gpus=True)
NIC: list[tuple[str, dict[str, Any]]] = [
    ("nic_latency", {}),
    ("nic_loss", {"loss_percent": 5}),
    ("nic_bandwidth", {"rate": "1gbit"}),
    ("nic_flap", {}),
    ("partition", {}),
    ("connection_reset", {}),
]


@pytest.mark.parametrize(("name", "parameters"), NIC, ids=[name for name, _ in NIC])
def test_a_plan_is_refused_whose_fault_rdma_goes_around(name: str, parameters: dict[str, Any]) -> None:
    plan = small_jobs.job("x", ["true"], small_jobs.fault("nic", name, {"step": 1}, **parameters))
    here = Capability(True, "", frozenset(Verb), rdma=HAS)
    with pytest.raises(CannotRunError) as refusal:
        check_capabilities(plan, here)
    text = str(refusal.value)
    assert f"fault nic ({name}) disturbs IP" in text and "mlx5_0" in text and "`fault: rdma`" in text
    assert "`workload: {trainer: {env: {NCCL_NET: Socket}}}`" in text
    data = plan.to_json()
    data["workload"]["trainer"]["env"]["NCCL_NET"] = "Socket"
    check_capabilities(type(plan).from_json(data), here)
    check_capabilities(plan, Capability(True, "", frozenset(Verb), rdma=RdmaDevices()))


def test_what_goes_by_ip_anyway_is_not_refused() -> None:
    control = small_jobs.fault("c", "partition", {"step": 1}, cut_off_from="control")
    kill = small_jobs.fault("k", "rank_kill", {"step": 1})
    check_capabilities(small_jobs.job("x", ["true"], control, kill), Capability(True, "", frozenset(Verb), rdma=HAS))


def cluster(*answers: RdmaDevices | Exception | None) -> Cluster:
    def node(number: int, answer: RdmaDevices | Exception | None) -> object:
        def asked() -> RdmaDevices | None:
            if isinstance(answer, Exception):
                raise answer
            return answer

        return SimpleNamespace(name=f"node{number}", rdma=asked)

    return cast(Cluster, SimpleNamespace(nodes=[node(number, answer) for number, answer in enumerate(answers)]))


def test_the_struck_nodes_are_asked_before_the_job_starts() -> None:
    delay = small_jobs.job("x", ["true"], small_jobs.fault("nic", "nic_latency", {"step": 1}))
    for answer in (RdmaDevices(), None, BackendError("gone")):
        rdma_paths.refuse_bypassed(delay, cluster(answer, HAS))
    with pytest.raises(CannotRunError, match="disturbs IP, and node0 has RDMA"):
        rdma_paths.refuse_bypassed(delay, cluster(HAS))
    own = small_jobs.job("x", ["true"], small_jobs.fault("ib", "rdma", {"step": 1}, how="error"))
    rdma_paths.refuse_bypassed(own, cluster(HAS))
    with pytest.raises(CannotRunError, match="disturbs RDMA, and node0 has no RDMA device with an active port"):
        rdma_paths.refuse_bypassed(own, cluster(RdmaDevices()))


def test_a_real_node_is_asked_in_the_fault_free_run_too(tmp_path: pathlib.Path) -> None:
    """This machine has no RDMA device, so a fault of RDMA is refused before the trainer of either run starts."""
    if rdma.look()["devices"]:
        pytest.skip("this machine has an RDMA device")
    with_fault = small_jobs.job("x", ["true"], small_jobs.fault("ib", "rdma", {"step": 1}, how="error"))
    for run, before in ((with_fault, None), (with_fault.without_faults("x-free"), with_fault)):
        with pytest.raises(CannotRunError, match="node0 has no RDMA device"):
            execute(run, tmp_path / run.run_id, BACKEND, before=before)
        assert not small_jobs.told(tmp_path / run.run_id, "process.exit")
