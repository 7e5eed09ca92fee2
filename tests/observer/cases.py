"""Trainings as anybody writes them: each in a fork of one process that has imported torch. `cases.py OUT`

Each writes what it computed to `OUT/<case>.json`; where the process is observed, its log lies in `OUT/events/<case>`.
"""

import atexit
import contextlib
import copy
import gc
import importlib
import json
import os
import pathlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch._dynamo  # the first optimizer would import it, in each fork
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

OUT = pathlib.Path(sys.argv[1])
CASES: dict[str, Callable[[], Any]] = {}


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    CASES[function.__name__] = function
    return function


def dataset() -> TensorDataset:
    torch.manual_seed(0)
    return TensorDataset(torch.randn(24, 8), torch.randn(24, 1))


def model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 1))


def train(
    loader: Any, net: nn.Module | None = None, *optimizers: Any, skip: int = 0, parts: int = 1, left_out: int = -1
) -> list[float]:
    """A step is an update after so many parts. The gradients of the batch that is left out are thrown away."""
    net = net or model()
    optimizers = optimizers or (torch.optim.AdamW(net.parameters(), lr=0.01),)
    losses = []
    for number, (x, y) in enumerate(loader):
        if number < skip:
            continue
        loss = nn.functional.mse_loss(net(x), y) / parts
        loss.backward()
        if number != left_out:
            losses.append(loss.item())
        for optimizer in optimizers if (number + 1) % parts == 0 else ():
            if number != left_out:
                optimizer.step()
            optimizer.zero_grad()
    return losses


def read(size: int = 4) -> Any:
    return DataLoader(dataset(), batch_size=size)


@case
def accumulation() -> Any:
    net = model()
    return train(read(), net, torch.optim.SGD(net.parameters(), lr=0.01), parts=2)


@case
def thrown_away() -> Any:
    """A warm-up before the first step, and a batch that is left out."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    net(torch.zeros(4, 8)).mean().backward()
    optimizer.zero_grad()
    return train(read(), net, optimizer, left_out=2)


@case
def two_optimizers() -> Any:
    net = model()
    first = torch.optim.SGD(net[0].parameters(), lr=0.01)
    return train(read(), net, first, torch.optim.Adam(net[2].parameters(), lr=0.02))


@case
def scaler() -> Any:
    """The third update meets an infinity."""
    net, losses = model(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    scaling = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for number, (x, y) in enumerate(read()):
        loss = nn.functional.mse_loss(net(x), y)
        scaling.scale(loss).backward()
        if number == 2:
            next(each.grad for each in net.parameters() if each.grad is not None)[0, 0] = float("inf")
        scaling.step(optimizer)
        scaling.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def one_step(net: nn.Module, backward: Callable[[Any, Any], object]) -> list[float]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    backward(*dataset()[:4])
    optimizer.step()
    return [p.sum().item() for p in net.parameters()]


@case
def losses_that_can_be_read_once() -> Any:
    net, loss = model(), nn.functional.mse_loss
    return one_step(net, lambda x, y: torch.autograd.backward(loss(net(x), y) * part for part in (1, 2)))  # type: ignore[arg-type]


@case
def begun_again_in_process() -> Any:
    """An exception ends a step between `backward` and `step`, and the process begins again in another world."""
    torch.manual_seed(0)
    halves = [(x, y.unsqueeze(1)) for x, y in zip(torch.randn(4, 8, 8), torch.randn(4, 8), strict=True)]
    losses = []
    for world, whole in enumerate((2, 4)):
        net, met = model(), (OUT / f"met-{world}").absolute()
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        torch.distributed.init_process_group("gloo", init_method=f"file://{met}", rank=0, world_size=1)
        losses += train(halves[:whole], net, optimizer)
        for x, y in halves[whole : whole + 1]:
            nn.functional.mse_loss(net(x), y).backward()
        torch.distributed.destroy_process_group()
    return losses


@case
def plain() -> Any:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    losses, rates, norms = [], [], []
    for x, y in read():
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(net.parameters(), 1.0).item())
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(loss.item())
    return {"losses": losses, "rates": rates, "norms": norms, "end": [p.sum().item() for p in net.parameters()]}


@case
def generator_and_critic() -> Any:
    """Two updates of the critic on data, then one of the generator on noise."""
    critic, generator = model(), nn.Linear(3, 8)
    theirs = torch.optim.Adam(critic.parameters()), torch.optim.Adam(generator.parameters())
    losses = []
    for number, (x, _) in enumerate(read()):
        with torch.no_grad():
            fake = generator(torch.randn(len(x), 3))
        losses += [_update(critic(torch.cat([x, fake])).mean(), theirs[0])]
        if number % 2:
            losses += [_update(-critic(generator(torch.randn(4, 3))).mean(), theirs[1])]
    return losses


def _update(loss: Any, optimizer: Any) -> float:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.item())


@case
def one_optimizer_never_steps() -> Any:
    net = model()
    kept = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    return [*train(read(), net), kept.param_groups[0]["lr"]]


class Outer(torch.optim.Optimizer):
    """Steps another one, as sharded optimizers do."""

    def __init__(self, parameters: Any):
        self.inner = torch.optim.SGD(parameters, lr=0.01)
        super().__init__(self.inner.param_groups, {})

    def step(self, closure: Any = None) -> Any:
        self.inner.step()


@case
def sharded_optimizer() -> Any:
    net = model()
    return train(read(), net, Outer(list(net.parameters())))


@case
def closures() -> Any:
    """Forward and backward lie inside the optimizer's step, several times."""
    net, losses = model(), []
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=4)
    for x, y in read(12):

        def closure(x: Any = x, y: Any = y) -> Any:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(x), y)
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())
    return losses


@case
def workers() -> Any:
    torch.manual_seed(3)
    loader = DataLoader(dataset(), batch_size=4, shuffle=True, num_workers=2, persistent_workers=True)
    return train(loader) + train(loader)


def ahead(loader: Any) -> Iterator[Any]:
    """One batch is always fetched ahead."""
    waiting: list[Any] = []
    for batch in loader:
        waiting.append(batch)
        if len(waiting) == 2:
            yield waiting.pop(0)
    yield from waiting


@case
def validating() -> Any:
    """A second loader is read between the steps, without training on it."""
    net, losses = model(), []
    for round_ in range(3):
        losses += train(DataLoader(Subset(dataset(), range(8 * round_, 8 * round_ + 8)), batch_size=4), net)
        net.eval()
        with torch.no_grad():
            losses += [nn.functional.mse_loss(net(x), y).item() for x, y in read(12)]
        net.train()
    return losses


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[Any]:
        return iter(dataset())


@case
def own_error() -> Any:
    train(read(12))
    try:
        raise ValueError("the first thing that went wrong")
    except ValueError as error:
        raise RuntimeError("could not clean up after it") from error


def twice(number: float) -> float:
    return 2 * number


class Scripted:
    def __init__(self, number: float):
        self.number = number

    def doubled(self) -> float:
        return twice(self.number)


@case
def saved_whole() -> Any:
    """The module itself is pickled, copied and compiled, as if nobody looked at it."""
    net = model()
    losses = train(read(), net)
    torch.save(net, OUT / "whole.pt")
    again = copy.deepcopy(net)
    scripted = torch.jit.script(net)
    hooks = [len(each._forward_pre_hooks) for each in (again, torch.load(OUT / "whole.pt", weights_only=False))]
    x = dataset()[:4][0]
    importlib.import_module("torch.distributed.optim")  # scripts classes that use names of their module
    assert torch.jit.script(Scripted)(2.0).doubled() == 4.0
    return losses, hooks, scripted(x).sum().item(), train(read(), net)


class Spare(nn.Module):
    """A module that is given something whose memory was given back."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = model()

    def forward(self, x: torch.Tensor, *_: Any) -> Any:
        return self.inner(x)


@case
def no_memory() -> Any:
    freed, net = torch.randn(100_000), Spare()
    freed.untyped_storage().resize_(0)
    return one_step(net, lambda x, y: nn.functional.mse_loss(net(x, freed), y).backward())


class Endless(torch.utils.data.Dataset[Any]):
    """One that answers for the data set that it would hold."""

    indices = range(24)

    @property
    def dataset(self) -> Any:
        return self

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return dataset()[index]


DATA: dict[str, Callable[[], Any]] = {
    "subset": lambda: DataLoader(Subset(dataset(), range(23, -1, -2)), batch_size=4),
    "fetching_ahead": lambda: ahead(read()),
    "copied_inputs": lambda: ((x.clone(), y.clone()) for x, y in ahead(read())),
    "stream": lambda: DataLoader(Stream(), batch_size=4),
    "no_loader": lambda: zip(*(part.split(4) for part in dataset().tensors), strict=True),
    "endless_subset": lambda: DataLoader(Endless(), batch_size=4),
}
CASES |= {name: lambda data=data: train(data()) for name, data in DATA.items()}  # type: ignore[misc]
# As a script does that resumes in the middle of an epoch:
CASES["skipping"] = lambda: train(read(), skip=4)


def in_parts(skip: int, inputs: Callable[[Any], list[Any]], batches: int = 1, gradient: bool = False) -> list[float]:
    """Each step takes so many batches, and makes of them what the model is given; `gradient`: as a pipeline's stage."""
    net, losses = model(), list[float]()
    optimizer, held = torch.optim.AdamW(net.parameters(), lr=0.01), list[Any]()
    for number, (x, _) in enumerate(read()):
        held.append(x)
        if number < skip or len(held) < batches:
            held *= number >= skip
            continue
        for part in inputs(torch.cat(held) if batches > 1 else x):
            out = net(part)
            torch.autograd.backward(out, torch.ones_like(out)) if gradient else out.sum().backward()
            losses.append(out.sum().item())
        held.clear()
        optimizer.step()
        optimizer.zero_grad()
    return losses


CASES |= {
    "split": lambda: in_parts(3, lambda x: [part + 0.0 for part in x.split(2)]),
    "concatenated": lambda: in_parts(2, lambda x: [x], batches=2),
    "converted": lambda: in_parts(3, lambda x: [x.half().float()]),
    "pipelined": lambda: in_parts(3, lambda x: [part.half().float() for part in x.split(1)], gradient=True),
}


@case
def saved_to_a_pipe() -> Any:
    net = model()
    train(read(12), net)
    os.mkfifo(pipe := OUT / "pipe")
    reader = threading.Thread(target=pipe.read_bytes, daemon=True)
    reader.start()
    torch.save(net.state_dict(), pipe)
    reader.join()
    return train(read(12), net)


@case
def hook_fails() -> Any:
    """Breaks the observer on purpose, where there is one."""
    fingerprint = sys.modules.get("harness.node.observer.tensor_fingerprint")
    if fingerprint is not None:
        fingerprint.tensors = None  # type: ignore[attr-defined]
    return train(read())


@case
def by_hand() -> Any:
    from harness.events import Emitter

    emit = Emitter.open("trainer", rank=0, world_size=1)
    losses = train(read(12))
    for number, loss in enumerate(losses, 1):
        emit("step", step=100 + number, loss=loss)
    return losses


def main() -> None:
    gc.freeze()  # a fork need not look through the objects of torch
    for name, function in CASES.items():
        if "CHAOS_EVENTS" not in os.environ:  # nothing is kept from one to the next
            with contextlib.suppress(RuntimeError):  # of `own_error`
                (OUT / f"{name}.json").write_text(json.dumps(function()))
            continue
        child = os.fork()
        if child == 0:
            os.environ["CHAOS_EVENTS"] = str(OUT / "events" / name / "node0")
            result = function()
            (OUT / f"{name}.json").write_text(json.dumps(result))
            atexit._run_exitfuncs()
            os._exit(0)  # without taking all of torch apart
        os.waitpid(child, 0)


main()
