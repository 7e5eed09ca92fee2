"""Reads the lines that MaxText prints on standard output. MaxText counts steps from 0. An example of a line:

completed step: 5, seconds: 5.668, TFLOP/s/device: 134.909, Tokens/s/device: 8671.794, total_weights: 196608, loss: 10.9
"""

import re
from collections.abc import Iterator

from harness.trainers.readers.contract import EXPRESSION_CHARS_MAX, LineSource, Reader, Told, known, number

_STEP = re.compile(r"completed step:\s*(\d{1,15}), seconds:\s*([^\s,]+)")
_LOSS = re.compile(r"\bloss:\s*([^\s,]+)")


class MaxtextSource(LineSource):
    chars_max = EXPRESSION_CHARS_MAX

    def line(self, text: str) -> Iterator[Told]:
        found = _STEP.search(text)
        if found is None:
            return
        seconds, loss = number(found[2]), _LOSS.search(text)
        took_ns = round(seconds * 1e9) if seconds is not None and 0 <= seconds < 1e9 else None
        told = known(step=int(found[1]) + 1, loss=number(loss[1]) if loss else None)
        yield Told("step", told, took_ns=took_ns)


class Maxtext(Reader):
    tells = frozenset({"steps", "loss"})
    source = MaxtextSource


READER = Maxtext
