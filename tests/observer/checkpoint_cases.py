"""Trainings that save, end and go on, each life in a fork of one process that has imported torch.

`checkpoint_cases.py OUT`: a case's files lie in `OUT/<case>`, its log and its ledger in `OUT/events/<case>/node0`.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import os
import pathlib
import shutil
import signal
import sys
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
LIVES: dict[str, list[Callable[[], Any]]] = {}
NODES: dict[str, str] = {}  # of a case's last life, where it is not the first node


def lives(*functions: Callable[[], Any]) -> None:
    """Of the case that is named as the first function."""
    LIVES[functions[0].__name__] = list(functions)


class Training:
    def __init__(self, kind: type = torch.optim.AdamW, seed: int = 1, **options: Any):
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
        self.optimizer = kind(self.model.parameters(), lr=0.01, **options)
        self.done = 0

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.done += 1
            inputs = torch.arange(32.0).reshape(4, 8) * self.done / 100
            self.model(inputs).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "epoch": 3}

    def save(self, name: str = "last.pt") -> None:
        torch.save(self.state(), f"{name}.tmp")
        os.replace(f"{name}.tmp", name)

    def load(self, name: str = "last.pt") -> None:
        state = torch.load(name)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def resumed() -> None:
    training = Training()
    training.steps(10)
    training.save()
    training.steps(4)
    killed()


def goes_on() -> None:
    training = Training()
    training.load()
    training.steps(5)
    training.save()


lives(resumed, goes_on, goes_on)


def damaged() -> None:
    resumed()


def flips_one_bit() -> None:
    data = bytearray(pathlib.Path("last.pt").read_bytes())
    bias = Training()
    weight = torch.load("last.pt")["model"]["0.weight"].numpy().tobytes()
    assert len(weight) == bias.model[0].weight.numel() * 4
    data[data.index(weight) + 5] ^= 1
    pathlib.Path("last.pt").write_bytes(data)


lives(damaged, flips_one_bit, goes_on)


def fallen_back() -> None:
    training = Training()
    for name in ("a.pt", "b.pt"):
        training.steps(5)
        training.save(name)
    os.truncate("b.pt", os.path.getsize("b.pt") // 2)


def takes_the_first_that_loads() -> None:
    training = Training()
    try:
        training.load("b.pt")
    except RuntimeError:
        training.load("a.pt")
    training.steps(2)


lives(fallen_back, takes_the_first_that_loads)


def nothing_loads() -> None:
    training = Training()
    training.steps(5)
    training.save("a.pt")
    os.truncate("a.pt", os.path.getsize("a.pt") // 2)


def begins_anew() -> None:
    training = Training()
    with contextlib.suppress(RuntimeError):
        training.load("a.pt")
    training.steps(2)


lives(nothing_loads, begins_anew)


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


lives(in_the_background)


def exported() -> None:
    training = Training()
    training.steps(2)
    training.save()
    training.steps(1)
    torch.save(training.model.state_dict(), "weights.pt")
    training.steps(1)


lives(exported)


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


lives(averaged, averages_anew)


def saves_at_once() -> None:
    training = Training()
    training.load()
    torch.save(training.state() | {"epoch": 4}, "last.pt")
    training.steps(1)


def resumed_and_saved() -> None:
    resumed()


lives(resumed_and_saved, saves_at_once)


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


lives(many_copies)


def no_checkpoint() -> None:
    training = Training()
    training.steps(2)
    torch.save({"statistics": torch.ones(100)}, "statistics.pt")
    training.model(torch.load("statistics.pt")["statistics"][:8].reshape(1, 8))
    torch.save([1, 2, 3], "list.pt")
    training.steps(2)


lives(no_checkpoint)


def separate_files() -> None:
    training = Training(torch.optim.SGD, momentum=0.9)
    training.steps(6)
    os.mkdir("step-6")
    torch.save(training.model.state_dict(), "step-6/model.pt")
    torch.save({"last_epoch": 6}, "step-6/scheduler.pt")
    torch.save(training.optimizer.state_dict(), "step-6/optimizer.pt")
    training.steps(1)


def goes_on_from_separate_files() -> None:
    training = Training(torch.optim.SGD, momentum=0.9)
    training.model.load_state_dict(torch.load("step-6/model.pt"))
    training.optimizer.load_state_dict(torch.load("step-6/optimizer.pt"))
    training.steps(1)


lives(separate_files, goes_on_from_separate_files)


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


def copied_after() -> None:
    training = Training()
    state = torch.load("last.pt")
    training.model.load_state_dict({name: tensor.clone() for name, tensor in state["model"].items()})
    training.optimizer.load_state_dict(state["optimizer"])
    training.steps(1)


lives(copied_before, copied_after)


def unknown_step() -> None:
    training = Training(torch.optim.SGD)
    training.steps(4)
    training.save()


def state_from_elsewhere() -> None:
    training = Training(torch.optim.SGD, seed=5)
    shutil.copy("last.pt", "other.pt")
    with torch.no_grad():
        foreign = torch.load("last.pt")
        foreign["model"]["0.bias"] += 1
    data = io.BytesIO()
    torch.save(foreign, data)
    pathlib.Path("other.pt").write_bytes(data.getvalue())
    training.load("other.pt")
    training.steps(1)


lives(unknown_step, state_from_elsewhere)


def own_entry() -> None:
    torch.save({"model": Training(seed=3).model.state_dict(), "global_step": 70}, "found.pt")


def takes_its_own_word() -> None:
    training = Training(torch.optim.SGD)
    training.model.load_state_dict(torch.load("found.pt")["model"])
    training.steps(1)


lives(own_entry, takes_its_own_word)


def weights_to_begin_with() -> None:
    training = Training()
    training.steps(1)
    torch.save(training.model.state_dict(), "unrelated.pt")


def fine_tuned() -> None:
    shutil.rmtree(os.environ["CHAOS_EVENTS"])  # of the run that made the weights
    training = Training()
    training.model.load_state_dict(torch.load("unrelated.pt"))
    training.steps(2)


lives(weights_to_begin_with, fine_tuned)


def again_from_scratch() -> None:
    training = Training()
    training.steps(3)
    training.save()


def without_a_load() -> None:
    Training().steps(1)


lives(again_from_scratch, without_a_load)


def put_in_by_hand() -> None:
    training = Training(torch.optim.SGD)
    training.steps(3)
    training.save()


def copies_the_numbers() -> None:
    training = Training(torch.optim.SGD)
    with torch.no_grad():
        for parameter, saved in zip(training.model.parameters(), torch.load("last.pt")["model"].values(), strict=True):
            parameter.copy_(saved)
    training.steps(1)


lives(put_in_by_hand, copies_the_numbers)


class App(Stateful):
    def __init__(self, training: Training):
        self.training = training

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.training.model, self.training.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.training.model,
            self.training.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )


def distributed() -> None:
    training = Training()
    training.steps(4)
    dcp.save({"app": App(training)}, checkpoint_id="step-4")
    training.steps(1)
    killed()


def distributed_goes_on() -> None:
    training = Training()
    dcp.load({"app": App(training)}, checkpoint_id="step-4")
    training.steps(2)
    dcp.save({"app": App(training)}, checkpoint_id="step-6")


def distributed_in_place() -> None:
    training = Training()
    model, optimizer = get_state_dict(training.model, training.optimizer)
    state = {"app": {"model": model, "optimizer": optimizer}}
    dcp.load(state, checkpoint_id="step-6")
    loaded = state["app"]
    set_state_dict(
        training.model, training.optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"]
    )
    training.steps(1)


lives(distributed, distributed_goes_on, distributed_in_place)


def moved_node() -> None:
    resumed()


NODES["moved_node"] = "node1"
lives(moved_node, goes_on)


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


def _plays(order: str) -> None:
    adversaries = Adversaries(order)
    adversaries.play(3)
    adversaries.save()
    adversaries.play(2)
    killed()


def _plays_on(order: str) -> None:
    adversaries = Adversaries(order)
    adversaries.load()
    adversaries.play(2)


def seldom_last() -> None:
    _plays("dddg")


def seldom_first() -> None:
    _plays("gddd")


def nobody_knows() -> None:
    _plays("dddg")


def without_a_ledger() -> None:
    for path in OUT.joinpath("events", "nobody_knows").rglob("checkpoints.ledger"):
        path.unlink()
    _plays_on("dddg")


lives(seldom_last, lambda: _plays_on("dddg"))
lives(seldom_first, lambda: _plays_on("gddd"))
lives(nobody_knows, without_a_ledger)


def not_saved() -> None:
    training = Training()
    training.steps(2)
    try:
        torch.save({**training.state(), "bad": lambda: None}, "last.pt")
    except Exception:  # pickle raises what it likes
        training.steps(1)


lives(not_saved)


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
    _leave()


def _leave() -> None:
    """As an interpreter that ends: what is registered for the exit runs."""
    import atexit

    atexit._run_exitfuncs()
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
