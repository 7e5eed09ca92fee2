"""Observes which samples each training step consumed, and how long the step waited for them.

The data loader knows a batch's sample indices; the input of the outermost module shows which batch the model got. An
input of the model belongs to the fetched batch that uses the same memory, or else to a batch with equal bytes at a few
places. If no batch matches (for example because the input was converted), the batch fetched last counts as consumed. If
the model's inputs cannot be observed, one batch counts as consumed for each backward pass. If sample indices are
unknown, a digest of the model's inputs is logged instead. Once sample indices are known, a step whose input comes from
no loader (such as a GAN's noise) consumes no samples.
"""

from __future__ import annotations

import collections
import gc
import hashlib
import itertools
import time
import weakref
from collections.abc import Iterator
from typing import Any

from harness.node.observer import tensor_fingerprint
from harness.node.observer.watch import Watch
from harness.node.observer.wrapping import around

AFTER = "torch.utils.data.dataloader"
BATCHES_MAX = 1024  # fetched, and not consumed yet
RUNS_MAX = 4096  # of one step
SUBSETS_MAX = 16  # one in another: a data set that passes on what it is asked seems to have no end


class Batch:
    def __init__(self, source: Any, indices: list[int] | None, epoch: int | None, data: Any):
        tensors = tensor_fingerprint.tensors(data)
        self.source, self.indices, self.epoch = source, indices, epoch
        self.alive = [weakref.ref(tensor) for tensor in tensors]
        self.prints = {mark for mark in map(tensor_fingerprint.fingerprint, tensors) if mark is not None}
        self.digest = tensor_fingerprint.digest(tensors) if indices is None else None
        self.rows, self.elements = tensor_fingerprint.largest(data)

    def likeness(self, inputs: list[Any], prints: set[Any]) -> int:
        """Scores how many input tensors are from this batch. Equal memory counts for more than equal contents."""
        mine = {tensor_fingerprint.memory(tensor) for tensor in (ref() for ref in self.alive) if tensor is not None}
        same = sum(1 for tensor in inputs if tensor_fingerprint.memory(tensor) in mine)
        return 1000 * same + len(self.prints & prints)

    def times(self, rows: int, elements: int) -> int:
        """Returns how many batches of this size an input with `rows` rows and `elements` elements holds, at least 1."""
        times = rows // self.rows if self.rows and not rows % self.rows else 1
        return times if 2 * elements > times * self.elements else 1


class Batches:
    def __init__(self, watch: Watch, torch: Any):
        self._watch, self._torch = watch, torch
        self._waiting: collections.deque[Batch] = collections.deque(maxlen=BATCHES_MAX)
        self._consumed: list[Batch] = []
        self._digests: list[str] = []
        self._fetched = 0  # since the last step
        self._by_order: list[Batch] = []  # consumed in this step, if none is recognised
        self._roots: weakref.WeakSet[Any] = weakref.WeakSet()
        self._hooks: weakref.WeakKeyDictionary[Any, tuple[int, Any]] = weakref.WeakKeyDictionary()
        self._looked: set[str] = set()
        self._backward = 0
        self._taken = self._of_last_step = 0  # micro-batches: of this step, where an optimizer has stepped; of the last
        self._indexed = False  # samples of known indices were consumed

    def fetched(self, asked: tuple[Any, int], data: Any) -> None:
        iterator, began_ns = asked
        self._watch.add("data_ns", time.monotonic_ns() - began_ns)
        self.look("batch")
        indices = _indices_of(iterator)
        # The epoch is known where the script sets it: else a sampler's count stays where it began.
        sampler = getattr(iterator, "_index_sampler", None)
        epoch = getattr(getattr(sampler, "sampler", sampler), _EPOCH, None)
        self._waiting.append(Batch(weakref.ref(iterator), indices, epoch, data))
        self._fetched += 1

    def backward(self, tensors: Any = None, grad_tensors: Any = None, *_: Any, **__: Any) -> None:
        if grad_tensors is None:
            self._backward += 1
            self.look("backward")

    def look(self, moment: str) -> None:
        """Hooks the outermost modules to observe their inputs. A second call with the same `moment` (such as `batch`)
        does nothing. Several moments are needed, because some modules are wrapped only after the optimizer is made."""
        if moment not in self._looked:
            self._looked.add(moment)
            for root in _outermost(self._torch):
                if root not in self._roots:
                    self._roots.add(root)
                    self._watch_root(root)

    def look_again(self) -> None:
        self._looked.clear()
        self.look("world")

    def _watch_root(self, root: Any) -> None:
        compiling = self._torch.compiler.is_compiling
        given = self._watch.guard("batches")(self._given)

        def hook(module: Any, args: Any, kwargs: Any) -> None:
            if not compiling():
                given(module, args, kwargs)

        self._hooks[root] = root.register_forward_pre_hook(hook, with_kwargs=True).id, hook

    def hidden(self, module: Any, *_: Any, **__: Any) -> list[Any] | None:
        """Removes the observer's hooks from a module and its submodules, until `shown` puts them back."""
        modules = module.modules() if isinstance(module, self._torch.nn.Module) else ()
        found = [each for each in modules if each in self._hooks]
        for each in found:
            number, _ = self._hooks[each]
            each._forward_pre_hooks.pop(number, None)
            each._forward_pre_hooks_with_kwargs.pop(number, None)
        return found or None

    def shown(self, found: list[Any], _: Any) -> None:
        for each in found:
            number, hook = self._hooks[each]
            each._forward_pre_hooks[number], each._forward_pre_hooks_with_kwargs[number] = hook, True

    def without_hook(self, module: Any, reduced: Any) -> Any:
        state = reduced[2] if isinstance(reduced, tuple) and len(reduced) > 2 and module in self._hooks else None
        if not isinstance(state, dict):
            return reduced
        number, _ = self._hooks[module]
        own = {name: state[name].copy() for name in _HOOKS if name in state}
        for hooks in own.values():
            hooks.pop(number, None)
        return (*reduced[:2], {**state, **own}, *reduced[3:])

    def _given(self, module: Any, args: Any, kwargs: Any) -> None:
        if not module.training or not self._torch.is_grad_enabled():
            return
        inputs = tensor_fingerprint.tensors((args, kwargs))
        prints = {mark for mark in map(tensor_fingerprint.fingerprint, inputs) if mark is not None}
        if any(batch.likeness(inputs, prints) for batch in self._consumed):
            return
        best = max(self._waiting, key=lambda batch: batch.likeness(inputs, prints), default=None)
        if best is not None and best.likeness(inputs, prints):
            self._consume(best)
        elif self._waiting:
            times = self._waiting[-1].times(*tensor_fingerprint.largest((args, kwargs)))
            last = list(self._waiting)[-max(1, min(times, self._fetched)) :]
            self._by_order += [batch for batch in last if batch not in self._by_order]
        else:
            digest = tensor_fingerprint.digest(inputs) or ""
            if self._digests[-1:] != [digest]:  # a module and the one that wraps it are given the same
                self._digests.append(digest)

    def _consume(self, batch: Batch) -> None:
        """Records that the model consumed a batch. Earlier unused batches of the same loader count as skipped."""
        kept = [other for other in self._waiting if other.source != batch.source]
        after = [other for other in self._waiting if other.source == batch.source]
        self._consumed.append(batch)
        self._waiting.clear()
        self._waiting.extend(kept + after[after.index(batch) + 1 :])

    @property
    def _since_frozen(self) -> int:
        """Returns how many micro-batches of the current step had a backward pass. Two losses of one batch count as one
        micro-batch. An input without a backward pass does not count, because it may be for evaluation only."""
        return min(self._backward, len(self._consumed) + len(self._digests)) or self._backward

    def accumulated(self) -> dict[str, int]:
        """Returns the number of micro-batches in the current step so far, and the number in the last complete step."""
        whole = {"micro_batches_a_step": self._of_last_step} if self._of_last_step else {}
        return {"micro_batches": max(self._taken, self._since_frozen)} | whole

    def step_over(self, _: int | None) -> None:
        self._of_last_step, self._taken = self._taken, 0

    def of_step(self) -> dict[str, Any] | None:
        self._taken = max(self._taken, self._since_frozen)  # optimizers that take turns have a batch each
        passes, self._backward = self._backward, 0
        if not self._consumed and not self._digests:
            for batch in self._by_order or (list(self._waiting)[-passes:] if passes else ()):
                if batch in self._waiting:  # at most so many wait
                    self._consume(batch)
        consumed, self._consumed = self._consumed, []
        self._by_order, self._fetched = [], 0
        digests, self._digests = self._digests, []
        self._indexed |= any(batch.indices for batch in consumed)
        none = {"samples": list[Any]()} if self._indexed and not consumed and digests else {}
        return none | _fields(consumed, digests)


def _fields(consumed: list[Batch], digests: list[str]) -> dict[str, Any]:
    indices = [index for batch in consumed for index in batch.indices or ()]
    digests += [batch.digest for batch in consumed if batch.digest]
    fields: dict[str, Any] = {}
    found = _runs(indices)
    if found and len(found) <= RUNS_MAX:
        fields["samples"] = found
    epochs = {batch.epoch for batch in consumed if batch.indices}
    if len(epochs) == 1 and None not in epochs:
        fields["epoch"] = epochs.pop()
    if any(digests):
        fields["digest"] = digests[0] if len(digests) == 1 else hashlib.sha1("".join(digests).encode()).hexdigest()
    return fields


def _runs(indices: list[int]) -> list[list[int]]:
    """Compresses a list of sample indices, in their order, to runs `[first, count]` or `[first, count, stride]`."""
    found: list[list[int]] = []
    at = 0
    while at < len(indices):
        count, stride = _run(indices, at)
        if stride == 1 or count == 1:
            found.append([indices[at], count])
        elif count >= 3 and stride > 0:
            found.append([indices[at], count, stride])
        else:
            count = 1
            found.append([indices[at], 1])
        at += count
    return found


def _run(indices: list[int], at: int) -> tuple[int, int]:
    if at + 1 == len(indices):
        return 1, 1
    stride, count = indices[at + 1] - indices[at], 2
    while at + count < len(indices) and indices[at + count] - indices[at + count - 1] == stride:
        count += 1
    return count, stride


def install(watch: Watch, module: Any) -> None:
    torch, guard = watch.torch, watch.guard("batches")
    batches = Batches(watch, torch)
    _watch_iterators(watch, batches, module._BaseDataLoaderIter)
    noting = guard(lambda sampler, epoch: setattr(sampler, _EPOCH, int(epoch)))
    around(torch.utils.data.distributed.DistributedSampler, "set_epoch", noting)
    around(torch.autograd, "backward", guard(batches.backward))
    _leave_no_hook(watch, batches, torch)
    watch.when_optimizer_made(lambda _: batches.look("optimizer"))
    watch.of_step(batches.of_step)
    watch.after_step(batches.step_over)
    watch.accumulated = guard(batches.accumulated)
    watch.look_again = guard(batches.look_again)


_HOOKS = ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs")


def _leave_no_hook(watch: Watch, batches: Batches, torch: Any) -> None:
    guard, module = watch.guard("batches"), torch.nn.Module
    reduce, without = module.__reduce_ex__, guard(batches.without_hook)

    def reduce_ex(self: Any, protocol: Any) -> Any:
        reduced = reduce(self, protocol)
        return without(self, reduced) or reduced

    module.__reduce_ex__ = reduce_ex
    for name in ("script", "trace"):
        around(torch.jit, name, guard(batches.hidden), guard(batches.shown), guard(batches.shown))


def _watch_iterators(watch: Watch, batches: Batches, iterator: Any) -> None:
    """Hooks the data loader's iterators to record which sample indices they request. An iterator delivers batches in
    the order of its requests."""
    guard, failpoint = watch.guard("batches"), watch.guard("failpoint")(watch.failpoint)

    def fetching(iterator: Any) -> tuple[Any, int]:
        begin_ns = time.monotonic_ns()
        failpoint("next_batch")
        return iterator, begin_ns

    around(iterator, "_next_index", lambda iterator: iterator, guard(_asked))
    around(iterator, "__next__", fetching, guard(batches.fetched))
    around(iterator, "_reset", guard(_began))


_ASKED, _EPOCH = "_chaos_asked", "_chaos_epoch"


def _began(iterator: Any, *_: Any, **__: Any) -> None:
    setattr(iterator, _ASKED, collections.deque())


def _asked(iterator: Any, index: Any) -> None:
    if getattr(iterator, "_in_order", True) is False:
        return
    if not hasattr(iterator, _ASKED):
        _began(iterator)
    getattr(iterator, _ASKED).append(list(index) if isinstance(index, (list, tuple)) else [index])


def _indices_of(iterator: Any) -> list[int] | None:
    """Returns the data set indices of the next batch's samples, or `None` if they are unknown (for example if the
    loader's workers deliver out of order)."""
    asked = getattr(iterator, _ASKED, None)
    if not asked or getattr(iterator, "_in_order", True) is False:
        return None
    own = asked.popleft()
    if not all(hasattr(index, "__index__") for index in own):
        return None
    return _in_data_set(iterator._dataset, [int(index) for index in own])


def _in_data_set(dataset: Any, indices: list[int]) -> list[int] | None:
    for depth in itertools.count():
        if not (hasattr(dataset, "indices") and hasattr(dataset, "dataset")):
            break
        if depth == SUBSETS_MAX:
            return None
        places = dataset.indices
        indices, dataset = [int(places[index]) for index in indices], dataset.dataset
    chosen = getattr(dataset, "_indices", None)  # of a Hugging Face data set
    if chosen is not None and hasattr(chosen, "column"):
        column = chosen.column(0)
        indices = [int(column[index].as_py()) for index in indices]
    return indices if all(index >= 0 for index in indices) else None


def _outermost(torch: Any) -> Iterator[Any]:
    """Yields the modules that have parameters, are in no other module, and are not compiled in place."""
    module = torch.nn.Module
    found = [each for each in gc.get_objects() if issubclass(type(each), module)]
    inner = {id(child) for each in found for child in each._modules.values() if child is not None}
    for each in found:
        in_place = getattr(each, "_compiled_call_impl", None) is not None
        if id(each) not in inner and not in_place and next(each.parameters(), None) is not None:
            yield each
