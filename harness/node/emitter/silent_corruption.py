"""Corrupts one bit of one number in the memory of a training process, without raising an error.

The number to corrupt is chosen in the next optimizer step, and the corruption begins one step later. A fault that lasts
several steps sets the bit to the same wrong value each time.
"""

from __future__ import annotations

import gc
import importlib
import json
import random
import sys
from collections.abc import Callable
from typing import Any

CHOSEN, CORRUPTED, OVER = "value_chosen", "value_corrupted", "corruption_over"
FLOAT32_BITS = 32
NOTHING = "the optimizer holds no numbers that a bit could go wrong in"

Append = Callable[[dict[str, Any]], int]


def corrupt(order: str, append: Append, step: int | None, over: Callable[[], bool], seed: int) -> None:
    """Starts to corrupt a number in memory. `order` is JSON with the parameters `what`, `bit`, `every` and `steps` of
    the fault `silent_data_corruption`. `step` is the last finished step. The corruption ends early when `over` returns
    True."""
    if "torch" not in sys.modules:
        append({"event": "failpoint", "name": CHOSEN, "text": "this process has not imported torch"})
        append({"event": "failpoint", "name": OVER})
        return
    Corruption(**json.loads(order), append=append, step=step or 0, over=over, dice=random.Random(seed)).begin()


class Corruption:
    def __init__(
        self,
        what: str,
        bit: int,
        every: int,
        steps: int,
        append: Append,
        step: int,
        over: Callable[[], bool],
        dice: random.Random,
    ):
        self.torch = sys.modules["torch"]
        self.what, self.bit, self.every, self.steps = what, bit, every, steps
        self.append, self.step, self.over, self.dice = append, step, over, dice
        self.optimizer: Any = None  # the first one that steps
        self.parameter: Any = None  # the one whose number, gradient, state or module it is
        self.name, self.element = "", 0
        self.stuck: bool | None = None  # the bit's wrong value
        self.done = -1  # steps since the one in which the number was chosen
        self.acted = False  # in this step
        self.ended = False
        self.handles: list[Any] = []

    def begin(self) -> None:
        """Registers the hook `before` for optimizer steps. Hooks of optimizers are never removed, because PyTorch fails
        if a hook is removed while hooks are running."""
        importlib.import_module("torch.optim.optimizer").register_optimizer_step_pre_hook(self.before)

    def before(self, optimizer: Any, *_: Any) -> None:
        """Before the first optimizer step, chooses the number to corrupt. Before later steps, corrupts the gradient if
        the fault is for a sharded gradient."""
        if self.ended:
            return
        if self.optimizer is None:
            self.optimizer = optimizer
            importlib.import_module("torch.optim.optimizer").register_optimizer_step_post_hook(self.after)
            why = self.safely(self.choose)
            self.tell(CHOSEN, why or self.name)
            if why:
                self.end()
        elif optimizer is self.optimizer and self.what == "gradient" and is_sharded(self.parameter) and self.due:
            self.spoil(local(self.parameter.grad))

    def after(self, optimizer: Any, *_: Any) -> None:
        if self.ended or optimizer is not self.optimizer:
            return
        if self.due and self.what == "weight":
            self.spoil(local(self.parameter))
        elif self.due and self.what == "optimizer_state":
            self.spoil(self.state())
        self.done, self.step, self.acted = self.done + 1, self.step + 1, False
        if not self.ended and (self.done >= self.steps or self.over()):
            self.end()

    @property
    def due(self) -> bool:
        return not self.acted and not self.ended and self.done >= 0 and self.done % self.every == 0

    def end(self, why: str = "") -> None:
        self.ended = True
        for handle in self.handles:
            handle.remove()
        self.tell(OVER, why)

    def tell(self, name: str, text: str) -> None:
        self.append({"event": "failpoint", "name": name, "text": text})

    # The number

    def choose(self) -> str:
        """Chooses the number to corrupt among all parameters of the optimizer. Returns an empty text, or the reason for
        a failure."""
        held = [each for group in self.optimizer.param_groups for each in group["params"]]
        held = [each for each in held if each.grad is not None and local(each).is_floating_point()]
        position = int(self.dice.random() * sum(local(each).numel() for each in held))
        for self.parameter in held:
            if position < local(self.parameter).numel():
                break
            position -= local(self.parameter).numel()
        else:
            return NOTHING
        self.element = position
        owner, self.name = self.find_owner()
        if self.what == "optimizer_state" and self.state() is None:
            return "the optimizer keeps no state of this number"
        if self.what == "activation":
            if owner is None:
                return "no module owns this weight, so it has no activation"
            self.name = self.name.rpartition(".")[0] or type(owner).__name__
            self.handles.append(owner.register_forward_hook(self.spoil_output))
        elif self.what == "gradient" and not is_sharded(self.parameter):
            self.handles.append(self.parameter.register_hook(self.spoil_gradient))
        return ""

    def find_owner(self) -> tuple[Any, str]:
        kind, found, name = self.torch.nn.Module, None, ""
        for each in [each for each in gc.get_objects() if issubclass(type(each), kind)]:
            if any(own is self.parameter for own in each.parameters(recurse=False)):
                found = each
            names = (known for known, own in each.named_parameters() if own is self.parameter)
            name = max([name, *names], key=len)
        return found, name or f"a tensor of shape {tuple(self.parameter.shape)}"

    def state(self) -> Any:
        held = (local(each) for each in self.optimizer.state.get(self.parameter, {}).values() if hasattr(each, "shape"))
        shape = local(self.parameter).shape
        return next((each for each in held if each.shape == shape and each.is_floating_point()), None)

    # The bit

    def spoil_gradient(self, gradient: Any) -> Any:
        """Returns this rank's own gradient with a corrupted number, before gradients are summed over all ranks."""
        if not self.due:
            return None
        gradient = gradient.clone()
        self.spoil(gradient)
        return gradient

    def spoil_output(self, module: Any, inputs: Any, output: Any) -> Any:
        if not self.due or not module.training or not hasattr(output, "clone"):
            return None
        output = output.clone()
        self.spoil(local(output))
        return output

    def spoil(self, tensor: Any) -> None:
        def flip() -> str:
            index, before, after, self.stuck = set_bit(tensor, self.element % tensor.numel(), self.bit, self.stuck)
            if repr(before) != repr(after):
                where = f"step {self.step + 1}: {self.what} at {self.name}{index}"
                self.tell(CORRUPTED, f"{where}: {before!r} → {after!r}")
            return ""

        self.acted = True
        if tensor is not None and tensor.numel() and (why := self.safely(flip)):
            self.end(why)

    def safely(self, act: Callable[[], str]) -> str:
        """Calls `act`, and returns its result or the text of its error, because an error must not end the training."""
        try:
            return act()
        except Exception as error:
            return f"{type(error).__name__}: {error}"


def is_sharded(tensor: Any) -> bool:
    return hasattr(tensor, "_local_tensor")


def local(tensor: Any) -> Any:
    """Returns this rank's part of a distributed tensor, or the tensor itself if it is not distributed."""
    return getattr(tensor, "_local_tensor", tensor)


def set_bit(tensor: Any, element: int, bit: int, value: bool | None) -> tuple[list[int], float, float, bool]:
    """Sets one bit of the element with the flat index `element` to `value`, or flips the bit if `value` is `None`.
    Returns the element's index in the tensor, its number before and after, and the bit's new value. `bit` is the bit's
    number in a float32. In other number types, the bit at the same distance from the sign bit is set, or bit 0 if there
    is no such bit."""
    torch = sys.modules["torch"]
    tensor = tensor.data  # its version stays: nobody is to know
    index = [int(each) for each in torch.unravel_index(torch.tensor(element), tensor.shape)]
    one, size = tensor[tuple(index)], tensor.element_size()
    word = one.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size])
    width, before, bits = 8 * size, float(one), int(word) % (1 << 8 * size)
    mask = 1 << max(0, width - FLOAT32_BITS + bit)
    value = not bits & mask if value is None else value
    bits = bits | mask if value else bits & ~mask
    word.fill_(bits - (bits >> width - 1 << width))
    return index, before, float(one), value
