"""A trainer without torch that keeps all that a resume needs, or forgets one thing of it: `BUG` names which, or several with + between.

Each rank is a process; they sum their gradients over TCP. A step takes two micro-batches; it saves after every so many
micro-batches, and calls the saves by their number. The state: weights, momentum, their moving average (EMA) and a loss
scale, as archives like those of `torch.save`; beside them the sampler's place, the gradient so far, the random state of
each rank, and the schedule, as JSON.
"""

import argparse
import json
import math
import os
import pathlib
import random
import struct
import time
import zipfile
from multiprocessing.connection import Client, Listener
from typing import Any

from harness.node.emitter import Emitter

BUGS = (
    "none",
    "sampler_epoch",  # resumes in the order of the first epoch
    "half_gradient",  # the gradient of a half accumulation is lost
    "stale_weights",  # each save holds what the first one held
    "end_of_epoch",  # a save at the end of an epoch: the next one is left out
    "order_by_world_size",  # the shuffle depends on the number of ranks
    "order_by_workers",  # on the number of workers of its loader
    "ema",  # the moving average begins anew
    "exports",  # exports nothing after a resume
)
DATA, BATCH, ACCUMULATE, WARM_UP = 192, 4, 2, 30
SCALE = 2.0**10  # of the loss: gradients are rounded to a part of it
NAMES = ("weights", "momentum", "ema", "scale")
SIZES = {"weights": 64, "momentum": 64, "ema": 32, "scale": 1}


class State:
    def __init__(self, rank: int, bugs: set[str]):
        self.rank, self.bugs = rank, bugs
        self.tensors = {name: [SCALE if name == "scale" else 0.5] * size for name, size in SIZES.items()}
        self.gradient, self.taken = 0.0, 0  # of the micro-batches since the last step, and how many they are
        self.micro = self.step = self.updates = self.consumed = 0
        self.random = random.Random(rank)
        self.stale: dict[str, list[float]] | None = None

    def plain(self) -> dict[str, Any]:
        names = ("gradient", "taken", "micro", "step", "updates", "consumed")
        return {name: getattr(self, name) for name in names} | {"random": self.random.getstate()}


def save(root: pathlib.Path, state: State, others: list[Any], resumed: bool) -> None:
    """By rank 0, and what it exports. `others`: the random states of all ranks."""
    if not (resumed and "exports" in state.bugs):
        (root / "exports").mkdir(exist_ok=True)
        (root / "exports" / f"{state.micro}.txt").write_text(str(state.tensors["weights"][0]))
    state.stale = state.stale or {name: list(values) for name, values in state.tensors.items()}
    held = state.stale if "stale_weights" in state.bugs else state.tensors
    plain = state.plain() | {"random": others}
    (root / f"ckpt_{state.micro}.json").write_text(json.dumps(plain))
    final, temporary = root / f"ckpt_{state.micro}.pt", root / f"ckpt_{state.micro}.pt.tmp"
    with zipfile.ZipFile(temporary, "w") as archive:
        archive.writestr("ckpt/data.pkl", b"\x80\x02}.")
        for number, name in enumerate(NAMES):
            archive.writestr(f"ckpt/data/{number}", struct.pack(f"<{len(held[name])}d", *held[name]))
    temporary.rename(final)


def load(root: pathlib.Path, state: State) -> None:
    """From the newest save, if there is one; `bug` says what is left as it was."""
    found = max(root.glob("ckpt_*.pt"), key=lambda path: int(path.stem[5:]), default=None)
    if found is None:
        return
    with zipfile.ZipFile(found) as archive:
        for number, name in enumerate(NAMES):
            data = archive.read(f"ckpt/data/{number}")
            state.tensors[name] = list(struct.unpack(f"<{len(data) // 8}d", data))
    plain = json.loads(found.with_suffix(".json").read_text())
    if "ema" in state.bugs:
        state.tensors["ema"] = state.tensors["weights"][: SIZES["ema"]]
    if "half_gradient" in state.bugs:
        plain |= {"gradient": 0.0}
    if "end_of_epoch" in state.bugs and plain["consumed"] % DATA == 0:
        plain["consumed"] += DATA
    states = plain.pop("random")
    if state.rank < len(states):
        version, inner, following = states[state.rank]
        state.random.setstate((version, tuple(inner), following))
    for name, value in plain.items():
        setattr(state, name, value)


def batch(state: State, ranks: int, workers: int, resumed_in: int | None) -> list[int]:
    """The samples of all ranks: a shuffle by epoch, and the place in it."""
    found = []
    given = {"order_by_world_size": ranks, "order_by_workers": workers}
    other = [value for name, value in given.items() if name in state.bugs]
    for place in range(state.consumed, state.consumed + BATCH * ranks):
        epoch = place // DATA
        if "sampler_epoch" in state.bugs and epoch == resumed_in:
            epoch = 0
        order = list(range(DATA))
        random.Random(f"{epoch} {other}").shuffle(order)
        found.append(order[place % DATA])
    return found


class World:
    """Rank 0 gathers what all ranks send it, and sends each all of that."""

    def __init__(self, rank: int, ranks: int, head: str):
        self._rank, self._links = rank, list[Any]()
        if rank == 0 and ranks > 1:
            with Listener((head, 7070), backlog=ranks) as listener:
                self._links = [listener.accept() for _ in range(ranks - 1)]
        while rank and not self._links:
            try:
                self._links = [Client((head, 7070))]
            except ConnectionRefusedError:
                time.sleep(0.04)

    def gather(self, value: Any) -> list[Any]:
        """What each rank gave, in the order of ranks."""
        if self._rank:
            self._links[0].send((self._rank, value))
            return self._links[0].recv()
        parts = dict([(0, value), *(link.recv() for link in self._links)])
        values = [parts[rank] for rank in sorted(parts)]
        for link in self._links:
            link.send(values)
        return values


def learn(state: State, gradient: float, rate: float) -> None:
    tensors, scale = state.tensors, state.tensors["scale"][0]
    scaled = round(gradient * scale) / scale
    for at, weight in enumerate(tensors["weights"]):
        tensors["momentum"][at] = 0.9 * tensors["momentum"][at] + scaled * (1 + at / 64)
        tensors["weights"][at] = weight - rate * tensors["momentum"][at]
    for at, mean in enumerate(tensors["ema"]):
        tensors["ema"][at] = 0.9 * mean + 0.1 * tensors["weights"][at]
    state.updates += 1
    tensors["scale"][0] *= 2 if state.updates % 2 == 0 else 1


def micro_batch(state: State, world: World, ranks: int, mine: list[int]) -> float:
    """One more: its samples, and the gradient of all ranks. Returns this rank's loss."""
    noise, value = state.random.gauss(0, 0.01), sum(state.tensors["weights"]) / 64
    own = sum(value - sample / DATA for sample in mine) / BATCH + noise
    state.gradient += sum(world.gather(own)) / ranks
    state.micro, state.taken = state.micro + 1, state.taken + 1
    state.consumed += BATCH * ranks
    return own * own


def main(root: pathlib.Path, rank: int, ranks: int, head: str, steps: int, every: int, bug: str, workers: int) -> None:
    bugs = set(bug.split("+"))
    assert bugs <= set(BUGS), bug
    emit = Emitter.open("trainer", rank=rank, local_rank=0, world_size=ranks)
    emit("started")
    world, state = World(rank, ranks, head), State(rank, bugs)
    emit("rendezvous", world_size=ranks)
    load(root, state)
    world.gather(None)  # nobody saves before all have loaded
    emit("restored", step=state.step, source=str(root) if state.micro else "scratch", fallback=[])
    resumed_in = state.consumed // DATA if state.micro else None
    begin_ns, loss, samples = time.monotonic_ns(), 0.0, list[int]()
    while state.step < steps:
        time.sleep(0.02)
        together = batch(state, ranks, workers, resumed_in)
        mine = together[rank * BATCH : (rank + 1) * BATCH]
        loss, samples = loss + micro_batch(state, world, ranks, mine), samples + mine
        if state.taken == ACCUMULATE:
            rate = 0.05 * min(1.0, (state.updates + 1) / WARM_UP)
            told: dict[str, Any] = {"loss": loss, "grad_norm": abs(state.gradient), "lr": rate}
            learn(state, state.gradient / ACCUMULATE, rate)
            state.step += 1
            told |= {"samples": [[sample, 1, 1] for sample in samples]}
            begin_ns = emit("step", step=state.step, begin_ns=begin_ns, **told)
            state.gradient, state.taken, loss, samples = 0.0, 0, 0.0, []
        if state.micro % every == 0:
            others = world.gather(state.random.getstate())
            if rank == 0:
                save(root, state, others, resumed_in is not None)
                half = {"micro_batches": state.taken, "micro_batches_a_step": ACCUMULATE}
                path = str(root / f"ckpt_{state.micro}.pt")
                emit("checkpoint.committed", step=state.step, kind="periodic", path=path, **half)
            world.gather(None)
    assert math.isfinite(state.tensors["weights"][0])
    emit("exiting", code=0, reason="completed", step=state.step)


if __name__ == "__main__":
    os.umask(0o022)
    parser = argparse.ArgumentParser()
    kinds = {"root": pathlib.Path, "rank": int, "ranks": int, "head": str, "steps": int, "every": int, "bug": str}
    for name, kind in kinds.items():
        parser.add_argument(name, type=kind)
    parser.add_argument("--num-workers", type=int, default=0, dest="workers")
    main(**vars(parser.parse_args()))
