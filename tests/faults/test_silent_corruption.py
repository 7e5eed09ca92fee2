"""One wrong bit inside a training that knows nothing of it: alone, with DDP, and with a sharded model."""

import json
import pathlib
import struct
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from observer import observing

from harness.faults.contract import Target, build_fault
from harness.log.consequences import May
from harness.log.truth import Decision
from harness.node.emitter import silent_corruption
from harness.node.emitter.silent_corruption import CHOSEN, CORRUPTED, OVER

TRAIN = """
import json, sys, torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook
from harness.node.emitter import silent_corruption
dist.init_process_group("gloo")
rank, found = dist.get_rank(), []
for order in ORDERS:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    model = fully_shard(model) if SHARDED else DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    sums, told = [], []
    strike = lambda *_: step == 3 and rank == 1 and order and silent_corruption.corrupt(
        json.dumps(order), told.append, step, lambda: False, 5)
    handle = register_optimizer_step_post_hook(strike)  # as an observer does
    for step in range(1, 13):
        loss = model(torch.full((4, 6), 0.1 * step)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mine = [getattr(each, "_local_tensor", each) for each in model.parameters()]
        sums.append(sum(float(each.detach().double().sum()) for each in mine))
    handle.remove()
    found.append([sums, [[event["name"], event["text"]] for event in told]])
print(json.dumps(found))
dist.destroy_process_group()
"""
ONCE: dict[str, Any] = {"every": 1, "steps": 1}
NAME = "silent_data_corruption"
DRIFTS = {"gradient": False, "activation": False, "weight": True, "optimizer_state": True}
ORDERS: list[dict[str, Any]] = [
    {},
    *({"what": what, "bit": 30} | ONCE for what in ("weight", "optimizer_state", "gradient")),
    {"what": "activation", "bit": 30, "every": 3, "steps": 7},
    {"what": "gradient", "bit": 23, "every": 1, "steps": 4},
]


def train(folder: pathlib.Path, sharded: bool) -> list[list[Any]]:
    """Returns for each order the sums of both ranks' weights by step, and what rank 1 told."""
    script = TRAIN.replace("SHARDED", str(sharded)).replace("ORDERS", repr(ORDERS))
    ended = observing.run_ranks(script, folder, 2, observed=False)
    assert [code for code, _, _ in ended] == [0, 0], ended[1][2]
    first, second = (json.loads(out) for _, out, _ in ended)
    return [[sums, *rest] for (sums, _), rest in zip(first, second, strict=True)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, list[list[Any]]]:
    return {sharded: train(tmp_path_factory.mktemp("job"), sharded) for sharded in (False, True)}


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize(("number", "step"), [(1, 5), (2, 6), (3, 5)])
def test_one_number_goes_wrong_in_one_step(
    number: int, step: int, sharded: bool, trained: dict[bool, list[list[Any]]]
) -> None:
    """A spoilt gradient moves all replicas alike; a spoilt weight or state moves one of them."""
    (_, usual, nothing), (first, second, told) = trained[sharded][0], trained[sharded][number]
    what = ORDERS[number]["what"]
    assert not nothing and [name for name, _ in told] == [CHOSEN, CORRUPTED, OVER]
    assert told[1][1].startswith(f"step 5: {what} at ") and ("weight[" in told[1][1] or "bias[" in told[1][1])
    assert next(at for at, (a, b) in enumerate(zip(usual, second, strict=True), 1) if a != b) == step
    assert sharded or (first != second) is DRIFTS[what]


@pytest.mark.parametrize("sharded", [False, True])
def test_an_activation_goes_wrong_now_and_then(sharded: bool, trained: dict[bool, list[list[Any]]]) -> None:
    (_, usual, _), (_, second, told) = trained[sharded][0], trained[sharded][4]
    assert [text.split(":")[0] for name, text in told if name == CORRUPTED] == ["step 5", "step 8", "step 11"]
    assert told[-1][0] == OVER and usual[:4] == second[:4] and usual[4] != second[4]


def test_a_permanent_bit_is_stuck_and_over_by_itself(trained: dict[bool, list[list[Any]]]) -> None:
    """Nobody has to be there to end it: a harness that was killed leaves nothing behind but a few more steps."""
    _, _, told = trained[False][5]
    after = [float(text.split(" → ")[1]) for name, text in told if name == CORRUPTED]
    assert 1 <= len(after) <= 4 and len({struct.pack(">f", each)[1] >> 7 for each in after}) == 1
    assert told[-1][0] == OVER


@given(st.integers(0, 11), st.integers(0, 31), st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_exactly_one_bit_of_one_element_is_set_and_set_back(element: int, bit: int, kind: torch.dtype) -> None:
    tensor = torch.linspace(-2, 3, 12).to(kind).view(3, 4).t()
    words = {2: torch.int16, 4: torch.int32, 8: torch.int64}[kind.itemsize]
    before, was, version = tensor.clone(), float(tensor.flatten()[element]), tensor._version
    index, first, second, value = silent_corruption.set_bit(tensor, element, bit, None)
    changed = (before.contiguous().view(words) ^ tensor.contiguous().view(words)).flatten().tolist()
    assert [place for place, each in enumerate(changed) if each] == [element] and tensor._version == version
    assert (changed[element] % (1 << 8 * kind.itemsize)).bit_count() == 1
    assert (first, second) == (was, float(tensor[tuple(index)])) or second != second
    silent_corruption.set_bit(tensor, element, bit, value)
    assert torch.equal(before, tensor) is False
    silent_corruption.set_bit(tensor, element, bit, not value)
    assert torch.equal(before, tensor)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("", "this process has not imported torch"),
        ("import torch; w = torch.nn.Parameter(torch.ones(2)); o = torch.optim.SGD([w], 0.1)", "keeps no state"),
    ],
)
def test_a_process_with_nothing_to_corrupt_says_so_and_trains_on(
    program: str, said: str, tmp_path: pathlib.Path
) -> None:
    order = json.dumps({"what": "optimizer_state", "bit": 3} | ONCE)
    script = f"from harness.node.emitter import silent_corruption\n{program}\n"
    script += f"silent_corruption.corrupt({order!r}, lambda each: print(each['name'], each.get('text')), 1, bool, 1)\n"
    script += "if 'w' in globals():\n    w.grad = torch.ones(2)\n    o.step(); o.step()\n    print(w.tolist())"
    code, out, err = observing.run(["-c", script], observing.environment(tmp_path, observed=False), tmp_path)
    assert code == 0, err
    assert said in out and out.splitlines()[1].startswith(OVER)


def test_only_what_moves_one_replica_may_drift_and_a_bit_that_comes_back_needs_another_place() -> None:
    drifts = {what: May.DRIFT in build_fault(NAME, {"what": what}).consequences().may for what in DRIFTS}
    assert drifts == DRIFTS
    once, again = (build_fault(NAME, {"how": how}).true_answers() for how in ("transient", "permanent"))
    assert once and Decision.ROLL_BACK in once.decisions
    assert again and Decision.ROLL_BACK not in again.decisions and Decision.EVICT_NODE in again.decisions


def test_it_says_what_it_will_do() -> None:
    fault = build_fault(NAME, {"what": "weight", "how": "intermittent", "once_in": 5})
    assert fault.describe([Target(0, 1)]) == (
        "bit 29 of one weight value of rank 1 is wrong once in 5 steps, for 20 steps, without a word"
    )
