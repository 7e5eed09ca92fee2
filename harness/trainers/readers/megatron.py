"""Reads the lines that Megatron-LM prints for iterations, and for saved and loaded checkpoints. Examples of lines:

iteration  10/ 100 | consumed samples: 160 | elapsed time per iteration (ms): 98.1 | learning rate: 1.0E-04 | …
successfully saved checkpoint from iteration      10 to /checkpoints
successfully loaded checkpoint from /checkpoints [ t 1/1, p 1/1 ] at iteration 10
"""

import re
from collections.abc import Iterator

from harness.trainers.readers.contract import EXPRESSION_CHARS_MAX, LineSource, Reader, Told, count, known, number

_ITERATION = re.compile(r"\biteration\s+(\d{1,15})\s*/\s*\d{1,15}\s*\|(.*)")
_SAVED = re.compile(r"successfully saved checkpoint from iteration\s+(\d{1,15}) to (\S+)")
_LOADED = re.compile(r"successfully loaded checkpoint from (\S+) .*at iteration\s+(\d{1,15})")


class MegatronSource(LineSource):
    chars_max = EXPRESSION_CHARS_MAX

    def line(self, text: str) -> Iterator[Told]:
        if found := _SAVED.search(text):
            yield Told("checkpoint.committed", {"step": int(found[1]), "path": found[2]})
        elif found := _LOADED.search(text):
            yield Told("restored", {"step": int(found[2]), "source": found[1]})
        elif found := _ITERATION.search(text):
            yield _iteration(int(found[1]), found[2])


def _iteration(step: int, rest: str) -> Told:
    pairs = (part.partition(":") for part in rest.split("|"))
    told = {name.strip(): value.strip() for name, _, value in pairs}
    consumed, batch = count(told.get("consumed samples")), count(told.get("global batch size"))
    place = {}
    if consumed is not None and batch and consumed >= batch:
        place = {"first": consumed - batch, "count": batch}
    took_ms = number(told.get("elapsed time per iteration (ms)"))
    loss, norm, rate = (number(told.get(name)) for name in ("lm loss", "grad norm", "learning rate"))
    figures = known(loss=loss, grad_norm=norm, lr=rate)
    took_ns = round(took_ms * 1e6) if took_ms is not None and 0 <= took_ms < 1e12 else None
    return Told("step", {"step": step, **figures, **place}, took_ns=took_ns)


class Megatron(Reader):
    tells = frozenset({"steps", "loss", "positions", "checkpoints", "restores"})
    source = MegatronSource


READER = Megatron
