"""How the observer gets into a process. Jobs of two ranks: worlds, samples of all ranks, how workers end, and what
torchrun's agent sees."""

import json
import pathlib
from typing import Any

import pytest
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


def test_a_job_is_the_same_with_and_without_tells_its_world_and_can_be_held_at_its_next_batch(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "alone").mkdir()
    alone = observing.run_ranks(script(killed=False), tmp_path / "alone", 2, observed=False)
    (tmp_path / "armed").touch()
    match = {"event": "failpoint", "name": "next_batch"}
    hold = {"match": match, "rank": 1, "limit_s": 0.5, "armed": f"{tmp_path}/armed", "released": f"{tmp_path}/none"}
    (tmp_path / "holds.json").write_text(json.dumps([hold]))
    watched = observing.run_ranks(script(killed=False), tmp_path, 2, CHAOS_HOLDS=str(tmp_path / "holds.json"))
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
    held = ranks[1][1]
    begin_ns = next(event["mono_ns"] for event in named(held, "failpoint") if event["name"] == "next_batch")
    steps_ns = [event["mono_ns"] for event in named(held, "step")]
    assert not named(held, "observer.failed")
    assert not [at for at in steps_ns if begin_ns < at < begin_ns + 500_000_000], "held, it does no step"


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


LOADED = "import sys; print([name for name in sys.modules if name.startswith('harness')])"
ITSELF = "['harness', 'harness.node', 'harness.node.observer', 'harness.node.observer.imports']\n"
INNER = "import sys; print('harness.node.observer.imports' in sys.modules)"
FAKES = {f"torch/{name}.py": "" for name in ("__init__", "optim/__init__", "optim/optimizer", "autograd")}
ONE_FAKE = {"torch.py": "LOADER = __loader__\n"}
THEIRS = {"theirs/sitecustomize.py": "import sys; sys.theirs = __file__\n"}


@pytest.mark.parametrize(
    ("script", "files", "observed", "ended"),
    [
        (LOADED, {}, True, (0, ITSELF, "")),  # without torch there is nothing to watch
        (LOADED, {}, False, (0, "[]\n", "")),
        (f"import subprocess, sys; subprocess.run([sys.executable, '-c', {INNER!r}])", {}, True, (0, "True\n", "")),
        ("import sys, sitecustomize; print(sys.theirs == sitecustomize.__file__)", THEIRS, True, (0, "True\n", "")),
        # The real loader is given back, and a torch that has nothing we know is left alone.
        (
            *(
                "import torch; print(type(torch.LOADER).__name__, torch.__spec__.loader is torch.LOADER)",
                ONE_FAKE,
                True,
            ),
            (0, "SourceFileLoader True\n", ""),
        ),
        ("import torch.optim.optimizer, torch.autograd; raise SystemExit(7)", FAKES, True, (7, "", "")),
        # An observer that cannot begin says so and steps aside.
        (
            *("import harness.node.observer.imports as i; i.pkgutil = None; import torch; print('trained')", ONE_FAKE),
            *(True, (0, "trained\n", "not observed")),
        ),
    ],
    ids=["no torch", "no switch", "a child", "a hidden sitecustomize", "a loader", "an odd torch", "a broken observer"],
)
def test_what_is_no_training_is_not_touched(
    script: str, files: dict[str, str], observed: bool, ended: tuple[int, str, str], tmp_path: pathlib.Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    more = {"RANK": "0", "CHAOS_EVENTS": str(tmp_path / "events")} | (
        {"PYTHONPATH": str(tmp_path / "theirs")} if files is THEIRS else {}
    )
    code, out, err = observing.run(["-c", script], observing.environment(tmp_path, observed, **more), tmp_path)
    assert (code, out, err.count(ended[2]) if ended[2] else err) == (*ended[:2], 1 if ended[2] else "")
    assert observed is False or script is not LOADED or not (tmp_path / "events").exists()
