"""Reads Hugging Face's `trainer_state.json`: the history of logged values, which each checkpoint writes again.

A checkpoint is complete once it has `<output>/checkpoint-*/trainer_state.json`, which is written last. The file
`trainer_state.json` holds no times, and lists a training step only when the next checkpoint is saved.
"""

import json
from collections.abc import Iterator

from harness.trainers.readers.contract import Reader, Source, Told, count, known, number

VALUES_MAX = 2_000_000  # of 100 000 logged steps there are 600 000; each takes far more memory than it has bytes


class HuggingfaceSource(Source):
    def feed(self, data: bytes) -> Iterator[Told]:
        if sum(data.count(sign) for sign in (b",", b"[", b"{")) > VALUES_MAX:
            raise ValueError(f"more than {VALUES_MAX} values; it is not read")
        try:
            state = json.loads(data)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        if not isinstance(state, dict):
            raise ValueError("a trainer's state is a JSON object")
        history = state.get("log_history")
        for entry in history if isinstance(history, list) else ():
            # Only a training step has a loss: entries of evaluations and of the end have none.
            if isinstance(entry, dict) and "loss" in entry and (step := count(entry.get("step"))) is not None:
                norm, rate = number(entry.get("grad_norm")), number(entry.get("learning_rate"))
                yield Told("step", {"step": step, **known(loss=number(entry["loss"]), grad_norm=norm, lr=rate)})
        if (step := count(state.get("global_step"))) is not None:
            yield Told("checkpoint.committed", {"step": step})


class Huggingface(Reader):
    tells = frozenset({"steps", "loss", "checkpoints"})
    whole = True
    source = HuggingfaceSource


READER = Huggingface
