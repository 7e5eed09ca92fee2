"""How the observer gets into a process. Jobs of two ranks: worlds, samples of all ranks, how workers end, and what
torchrun's agent sees."""

import json
import pathlib
from typing import Any

from observer import observing

TRAIN = """
import os, signal, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
data = TensorDataset(torch.randn(16, 8), torch.randn(16, 1))
sampler = DistributedSampler(data, seed=5)
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for number, (x, y) in enumerate(DataLoader(data, batch_size=2, sampler=sampler)):
        if KILLED and rank == 1 and number == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item().hex())
dist.destroy_process_group()
"""


def script(killed: bool) -> str:
    return TRAIN.replace("KILLED", str(killed))


def told(folder: pathlib.Path, role: str = "trainer") -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    found = [log for log in observing.logs(folder / "events") if log.header["role"] == role]
    return [(log.header, log.events) for log in sorted(found, key=lambda log: log.header.get("rank", -1))]


def named(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event for event in events if event["event"] == name]


def test_a_job_is_the_same_with_and_without_and_tells_its_world(tmp_path: pathlib.Path) -> None:
    (tmp_path / "alone").mkdir()
    alone = observing.run_ranks(script(killed=False), tmp_path / "alone", 2, observed=False)
    watched = observing.run_ranks(script(killed=False), tmp_path, 2)
    assert [code for code, _, _ in watched] == [0, 0], watched[0][2]
    assert [out for _, out, _ in watched] == [out for _, out, _ in alone]
    ranks = told(tmp_path)
    assert [(h["rank"], h["local_rank"], h["world_size"], h["node"]) for h, _ in ranks] == [
        (0, 0, 2, "node0"),
        (1, 1, 2, "node0"),
    ]
    for _, events in ranks:
        assert [event["world_size"] for event in named(events, "rendezvous")] == [2]
        assert [event["step"] for event in named(events, "step")] == list(range(1, 9))
    for epoch in (0, 1):
        steps = [step for _, events in ranks for step in named(events, "step") if step["epoch"] == epoch]
        assert sorted(observing.expanded(*steps)) == list(range(16))


def test_who_lost_a_peer_says_so(tmp_path: pathlib.Path) -> None:
    (code, _, err), (killed, _, _) = observing.run_ranks(script(killed=True), tmp_path, 2)
    assert code == 1 and killed == -9
    (_, survivor), (_, victim) = told(tmp_path)
    (end,) = named(survivor, "exiting")
    assert end["reason"] == "peer lost" and end["error"].split(": ")[0] in err
    assert not named(victim, "exiting") and named(victim, "step")[-1]["step"] == 3


def test_the_agent_tells_of_a_killed_worker(tmp_path: pathlib.Path) -> None:
    (tmp_path / "train.py").write_text(script(killed=True))
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    code, _, err = observing.run(words, observing.environment(tmp_path), tmp_path)
    assert code == 1, err
    ((_, events),) = told(tmp_path, "agent")
    assert [event["event"] for event in events[:3]] == ["agent.started", "agent.rendezvous", "agent.rendezvous"]
    assert events[2]["nodes"] == 1 and events[-1]["event"] == "agent.exiting"
    ends = {event["rank"]: event for event in named(events, "worker.exit")}
    assert ends[1]["code"] == -9 and ends[0]["code"] != 0
    assert {ends[header["rank"]]["pid"] for header, _ in told(tmp_path)} == {end["pid"] for end in ends.values()}


def test_an_unchanged_trainer_can_be_held_where_it_asks_for_its_next_batch(tmp_path: pathlib.Path) -> None:
    (tmp_path / "armed").touch()
    match = {"event": "failpoint", "name": "next_batch"}
    hold = {"match": match, "rank": 1, "limit_s": 0.5, "armed": f"{tmp_path}/armed", "released": f"{tmp_path}/none"}
    (tmp_path / "holds.json").write_text(json.dumps([hold]))
    ended = observing.run_ranks(script(killed=False), tmp_path, 2, CHAOS_HOLDS=str(tmp_path / "holds.json"))
    assert [code for code, _, _ in ended] == [0, 0], ended[0][2]
    first, second = (events for _, events in told(tmp_path))
    asked = [event["mono_ns"] for event in named(second, "failpoint") if event["name"] == "next_batch"]
    assert asked and not named(second, "observer.failed")
    begin_ns = asked[0]
    steps = [event["mono_ns"] for event in named(second, "step")]
    assert not [at for at in steps if begin_ns < at < begin_ns + 500_000_000], "held, it does no step"
    assert len(named(first, "step")) == len(named(second, "step")) == 8


FAKE_TORCH = "LOADER = __loader__\n"


def test_a_script_without_torch_is_not_touched(tmp_path: pathlib.Path) -> None:
    script = "import sys; print([name for name in sys.modules if name.startswith('harness.')])"
    code, out, err = observing.run(["-c", script], observing.environment(tmp_path), tmp_path)
    assert (code, out, err) == (0, "['harness.node', 'harness.node.observer', 'harness.node.observer.imports']\n", "")
    assert not (tmp_path / "events").exists()


def test_a_hidden_sitecustomize_still_runs(tmp_path: pathlib.Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "sitecustomize.py").write_text("import sys; sys.theirs = __file__\n")
    env = observing.environment(tmp_path, PYTHONPATH=str(tmp_path / "theirs"))
    script = "import sys, sitecustomize; print(sys.theirs == sitecustomize.__file__)"
    assert observing.run(["-c", script], env, tmp_path) == (0, "True\n", "")


def test_children_of_a_process_are_observed_too(tmp_path: pathlib.Path) -> None:
    inner = "import sys; print('harness.node.observer.imports' in sys.modules)"
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    assert observing.run(["-c", script], observing.environment(tmp_path), tmp_path) == (0, "True\n", "")


def test_the_real_loader_is_given_back(tmp_path: pathlib.Path) -> None:
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    script = "import torch; print(type(torch.LOADER).__name__, torch.__spec__.loader is torch.LOADER)"
    env = observing.environment(tmp_path)
    assert observing.run(["-c", script], env, tmp_path) == (0, "SourceFileLoader True\n", "")


def test_a_torch_that_has_nothing_we_know_is_left_alone(tmp_path: pathlib.Path) -> None:
    (tmp_path / "torch").mkdir()
    for name in ("__init__", "optim/__init__", "optim/optimizer", "autograd"):
        path = tmp_path / "torch" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    script = "import torch.optim.optimizer, torch.autograd; raise SystemExit(7)"
    code, out, err = observing.run(["-c", script], observing.environment(tmp_path, RANK="0"), tmp_path)
    assert (code, out, err) == (7, "", "")


def test_an_observer_that_cannot_begin_says_so_and_steps_aside(tmp_path: pathlib.Path) -> None:
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    script = "import harness.node.observer.imports as i; i.pkgutil = None; import torch; print('trained')"
    code, out, err = observing.run(["-c", script], observing.environment(tmp_path), tmp_path)
    assert (code, out) == (0, "trained\n") and err.count("not observed") == 1


def test_without_the_switch_nothing_is_on_the_path(tmp_path: pathlib.Path) -> None:
    script = "import sys; print([name for name in sys.modules if name.startswith('harness')])"
    env = observing.environment(tmp_path, observed=False, CHAOS_EVENTS=str(tmp_path / "events"))
    assert observing.run(["-c", script], env, tmp_path) == (0, "[]\n", "")
