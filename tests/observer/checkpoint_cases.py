"""Trainings that save, end and go on, each life in a fork of one process that has imported torch.

`checkpoint_cases.py OUT`: a case's files lie in `OUT/<case>`, its log and its ledger in `OUT/events/<case>/node0`.
"""

import atexit
import contextlib
import copy
import gc
import io
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo  # what every fork would import on its own
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful

OUT = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path()
SGD = torch.optim.SGD


class Training:
    def __init__(self, kind: type = torch.optim.AdamW, seed: int = 1, **options: Any):
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
        self.optimizer = kind(self.model.parameters(), lr=0.01, **options)
        self.done = 0

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.half_a_step()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def half_a_step(self) -> None:
        self.done += 1
        inputs = torch.arange(32.0).reshape(4, 8) * self.done / 100
        self.model(inputs).square().mean().backward()

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "epoch": 3}

    def save(self, name: str = "last.pt") -> None:
        torch.save(self.state(), f"{name}.tmp")
        os.replace(f"{name}.tmp", name)

    def load(self, name: str = "last.pt") -> None:
        state = torch.load(name)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


Act = Callable[[Training], object]
Life = Callable[[], object]


def life(*acts: Act, **options: Any) -> Life:
    """A training with these options that does one after the other."""

    def live() -> None:
        training = Training(**options)
        for act in acts:
            act(training)

    return live


def steps(count: int) -> Act:
    return lambda training: training.steps(count)


def saves(name: str = "last.pt") -> Act:
    return lambda training: training.save(name)


def loads(name: str = "last.pt") -> Act:
    return lambda training: training.load(name)


def writes(name: str) -> Act:
    return lambda training: torch.save(training.state(), name)


def exports(name: str) -> Act:
    return lambda training: torch.save(training.model.state_dict(), name)


def torn(name: str) -> Act:
    return lambda _: os.truncate(name, os.path.getsize(name) // 2)


def killed(_: Training) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def flips_one_bit() -> None:
    data = bytearray(pathlib.Path("last.pt").read_bytes())
    weight = torch.load("last.pt")["model"]["0.weight"].numpy().tobytes()
    assert len(weight) == 64 * 4
    data[data.index(weight) + 5] ^= 1
    pathlib.Path("last.pt").write_bytes(data)


def first_that_loads(*names: str) -> Act:
    def load(training: Training) -> None:
        for name in names:
            with contextlib.suppress(RuntimeError):
                return training.load(name)

    return load


def in_the_background() -> None:
    """The first save gets its name while the training goes on; the second one never does."""
    training = Training()
    training.steps(3)
    written, named = threading.Event(), threading.Event()
    state = copy.deepcopy(training.state())

    def save() -> None:
        torch.save(state, "step3.pt.tmp")
        written.set()
        assert named.wait()
        os.replace("step3.pt.tmp", "step3.pt")

    thread = threading.Thread(target=save)
    thread.start()
    assert written.wait()
    training.steps(1)
    named.set()
    thread.join()
    training.steps(1)
    torch.save(training.state(), "step5.pt.tmp")
    training.steps(1)


WAYS: dict[str, Callable[[str, str], object]] = {
    "copy": shutil.copy2,
    "link": os.link,
    "cp": lambda written, name: subprocess.run(["cp", written, name], check=True),
    "mv": lambda written, name: subprocess.run(["mv", written, name], check=True),
    "half": lambda written, name: pathlib.Path(name).write_bytes(pathlib.Path(written).read_bytes()[:3000]),
}


def written_elsewhere() -> None:
    """One save a step, each published in its own way; half of the fifth; the sixth from memory, the last one later."""
    os.environ["CHAOS_CHECKPOINTS"] = os.path.abspath("store")
    os.mkdir("store")
    training = Training()
    for way, put in WAYS.items():
        training.steps(1)
        with tempfile.TemporaryDirectory() as folder:
            torch.save(training.state(), f"{folder}/state.pt")
            put(f"{folder}/state.pt", f"store/{way}.pt")
    training.steps(1)
    pathlib.Path("store/memory.pt").write_bytes(_bytes(training.state()))
    training.steps(1)
    late = _bytes(training.state())
    training.steps(2)
    pathlib.Path("store/late.pt").write_bytes(late)
    training.steps(2)


def ended_by_others() -> None:
    """The process ends right after its group, without what is registered for its exit, as a worker of Ray."""
    os.environ["CHAOS_CHECKPOINTS"] = os.path.abspath("store")
    os.mkdir("store")
    torch.distributed.init_process_group("gloo", init_method=f"file://{os.path.abspath('met')}", rank=0, world_size=1)
    training = Training()
    training.steps(1)
    with tempfile.TemporaryDirectory() as folder:
        torch.save(training.state(), f"{folder}/state.pt")
        shutil.copy2(f"{folder}/state.pt", "store/last.pt")
    torch.distributed.destroy_process_group()
    os._exit(0)


def let_go() -> None:
    """The last save is looked at again only when the process ends, and nothing lives any more then."""
    life(steps(1), writes("last.pt"))()  # without a new name, which would tell that it is whole
    gc.collect()


def averaged() -> None:
    """Steps 4 and 8 of a training whose average of weights is not restored in between, and then is."""
    training = Training()
    for _ in range(2):
        training.steps(4)
        torch.save(training.state() | {"average": torch.full((10,), training.done / 4)}, f"step{training.done}.pt")
    training.steps(1)


def averages_anew() -> None:
    for average in (1.0, 2.0):
        training = Training()
        training.load("step4.pt")
        training.done = 4
        training.steps(4)
        torch.save(training.state() | {"average": torch.full((10,), average)}, "again.pt")
        training.steps(1)


def many_copies() -> None:
    """Of an object that ends with the optimizer's state: the parameters' copies come late."""
    layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(40)))
    optimizer = torch.optim.AdamW(layers.parameters())
    for _ in range(2):
        layers(torch.ones(2, 8)).mean().backward()
        optimizer.step()
    torch.save(copy.deepcopy({"model": layers.state_dict(), "optimizer": optimizer.state_dict()}), "last.pt")
    layers(torch.ones(2, 8)).mean().backward()
    optimizer.step()


def no_checkpoint() -> None:
    training = Training()
    training.steps(2)
    torch.save({"statistics": torch.ones(100)}, "statistics.pt")
    training.model(torch.load("statistics.pt")["statistics"][:8].reshape(1, 8))
    torch.save([1, 2, 3], "list.pt")
    training.steps(2)


def copied_before() -> None:
    """As for a GPU, or to save in the background: what is saved shares nothing with what is trained."""
    training = Training()
    training.steps(3)
    state = training.state()
    state["model"] = {name: tensor.clone() for name, tensor in state["model"].items()}
    state["optimizer"] = torch.load(io.BytesIO(_bytes(state["optimizer"])))
    torch.save(state, "last.pt")
    training.steps(1)


def _bytes(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def separate_files(training: Training) -> None:
    os.mkdir("step-6")
    torch.save(training.model.state_dict(), "step-6/model.pt")
    torch.save({"last_epoch": 6}, "step-6/scheduler.pt")
    torch.save(training.optimizer.state_dict(), "step-6/optimizer.pt")


def loads_separate_files(training: Training) -> None:
    training.model.load_state_dict(torch.load("step-6/model.pt"))
    training.optimizer.load_state_dict(torch.load("step-6/optimizer.pt"))


def state_from_elsewhere() -> None:
    foreign = torch.load("last.pt")
    foreign["model"]["0.bias"] += 1
    pathlib.Path("other.pt").write_bytes(_bytes(foreign))
    life(loads("other.pt"), steps(1), kind=SGD, seed=5)()


def fine_tuned() -> None:
    shutil.rmtree(os.environ["CHAOS_EVENTS"])  # of the run that made the weights
    life(lambda training: training.model.load_state_dict(torch.load("unrelated.pt")), steps(2))()


def loads_copies(training: Training) -> None:
    state = torch.load("last.pt")
    training.model.load_state_dict({name: tensor.clone() for name, tensor in state["model"].items()})
    training.optimizer.load_state_dict(state["optimizer"])


def copies_the_numbers(training: Training) -> None:
    with torch.no_grad():
        for parameter, saved in zip(training.model.parameters(), torch.load("last.pt")["model"].values(), strict=True):
            parameter.copy_(saved)


class App(Stateful):
    def __init__(self, training: Training):
        self.parts = training.model, training.optimizer

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(*self.parts)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(*self.parts, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def loads_in_place(training: Training) -> None:
    state: dict[str, dict[str, Any]] = {"app": App(training).state_dict()}
    dcp.load(state, checkpoint_id="step-6")
    App(training).load_state_dict(state["app"])


class Adversaries:
    """One of them steps three times as often as the other."""

    def __init__(self, order: str):
        self.sides, self.order, self.rounds = {name: Training(seed=ord(name)) for name in "dg"}, order, 0

    def play(self, rounds: int) -> None:
        for _ in range(rounds):
            self.rounds += 1
            for name in self.order:
                self.sides[name].done = self.rounds
                self.sides[name].steps(1)

    def save(self) -> None:
        state = {name: side.state() for name, side in self.sides.items()} | {"step": self.rounds}
        torch.save(state, "last.pt.tmp")
        os.replace("last.pt.tmp", "last.pt")

    def load(self) -> None:
        state = torch.load("last.pt")
        self.rounds = state["step"]
        for name, side in self.sides.items():
            side.model.load_state_dict(state[name]["model"])
            side.optimizer.load_state_dict(state[name]["optimizer"])


def not_saved() -> None:
    training = Training()
    training.steps(2)
    try:
        torch.save({**training.state(), "bad": lambda: None}, "last.pt")
    except Exception:  # pickle raises what it likes
        training.steps(1)


def plays(order: str) -> Life:
    def live() -> None:
        adversaries = Adversaries(order)
        adversaries.play(3)
        adversaries.save()
        adversaries.play(2)
        os.kill(os.getpid(), signal.SIGKILL)

    return live


def plays_on(order: str, ledger: bool = True) -> Life:
    def live() -> None:
        for path in () if ledger else OUT.joinpath("events", "nobody_knows").rglob("checkpoints.ledger"):
            path.unlink()
        adversaries = Adversaries(order)
        adversaries.load()
        adversaries.play(2)

    return live


BEGINS = life(steps(10), saves(), steps(4), killed)
GOES_ON = life(loads(), steps(5), saves())
LIVES: dict[str, list[Life]] = {
    "accumulates": [
        life(
            *(steps(1), saves("step_1.pt"), Training.half_a_step, saves("step_2.pt"), steps(1), saves("step_3.pt")),
            *(lambda training: training.model(torch.ones(1, 8)), saves("step_4.pt")),
            *(Training.half_a_step, lambda training: dcp.save({"app": App(training)}, checkpoint_id="step-5")),
        )
    ],
    "resumed": [BEGINS, GOES_ON, GOES_ON],
    "damaged": [BEGINS, flips_one_bit, GOES_ON],
    "fallen_back": [
        life(steps(5), saves("a.pt"), steps(5), saves("b.pt"), torn("b.pt")),
        life(first_that_loads("b.pt", "a.pt"), steps(2)),
    ],
    "nothing_loads": [life(steps(5), saves("a.pt"), torn("a.pt")), life(first_that_loads("a.pt"), steps(2))],
    "in_the_background": [in_the_background],
    "exported": [life(steps(2), saves(), steps(1), exports("weights.pt"), steps(1))],
    "written_elsewhere": [written_elsewhere, life(loads("store/cp.pt"), steps(1))],
    "ended_by_others": [ended_by_others],
    "let_go": [let_go],
    "averaged": [averaged, averages_anew],
    "resumed_and_saved": [
        BEGINS,
        life(loads(), lambda training: torch.save(training.state() | {"epoch": 4}, "last.pt"), steps(1)),
    ],
    "many_copies": [many_copies],
    "no_checkpoint": [no_checkpoint],
    "separate_files": [
        life(steps(6), separate_files, steps(1), kind=SGD, momentum=0.9),
        life(loads_separate_files, steps(1), kind=SGD, momentum=0.9),
    ],
    "copied_before": [copied_before, life(loads_copies, steps(1))],
    "unknown_step": [life(steps(4), saves(), kind=SGD), state_from_elsewhere],
    "own_entry": [
        life(
            lambda training: torch.save({"model": training.model.state_dict(), "global_step": 70}, "found.pt"), seed=3
        ),
        life(lambda training: training.model.load_state_dict(torch.load("found.pt")["model"]), steps(1), kind=SGD),
    ],
    "weights_to_begin_with": [life(steps(1), exports("unrelated.pt")), fine_tuned],
    "again_from_scratch": [life(steps(3), saves()), life(steps(1))],
    "put_in_by_hand": [life(steps(3), saves(), kind=SGD), life(copies_the_numbers, steps(1), kind=SGD)],
    "distributed": [
        life(steps(4), lambda training: dcp.save({"app": App(training)}, checkpoint_id="step-4"), steps(1), killed),
        life(
            lambda training: dcp.load({"app": App(training)}, checkpoint_id="step-4"),
            steps(2),
            lambda training: dcp.save({"app": App(training)}, checkpoint_id="step-6"),
        ),
        life(loads_in_place, steps(1)),
    ],
    "moved_node": [BEGINS, GOES_ON],
    "seldom_last": [plays("dddg"), plays_on("dddg")],
    "seldom_first": [plays("gddd"), plays_on("gddd")],
    "nobody_knows": [plays("dddg"), plays_on("dddg", ledger=False)],
    "not_saved": [not_saved],
}
NODES = {"moved_node": "node1"}  # of a case's last life, where it is not the first node


def live(case: str, function: Callable[[], Any], node: str) -> None:
    """One life, in a process of its own."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    os.environ["CHAOS_EVENTS"] = str(OUT / "events" / case / node)
    os.environ["CHAOS_NODE"] = node
    try:
        os.chdir(OUT / case)
        function()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    atexit._run_exitfuncs()  # as an interpreter that ends
    os._exit(0)


def main() -> None:
    gc.freeze()  # a fork need not look through the objects of torch
    chosen = sys.argv[2:] or list(LIVES)
    torch.set_num_threads(1)
    for case in chosen:
        (OUT / case).mkdir(parents=True)
        for number, function in enumerate(LIVES[case]):
            last = number == len(LIVES[case]) - 1
            live(case, function, NODES.get(case, "node0") if last else "node0")


if __name__ == "__main__":
    main()
