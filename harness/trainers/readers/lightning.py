"""Reads Lightning's CSV log: `<output>/lightning_logs/version_<n>/metrics.csv`, in a new folder for each process start.

Lightning appends rows every `flush_logs_every_n_steps` steps, and rewrites the whole file when a column is added. Rows
of Lightning's CSV log have no time. Lightning counts steps from 0.
"""

import csv
import io
from collections.abc import Iterator

from pydantic import Field

from harness.trainers.readers.contract import Reader, Source, Told, count, known, number

LOSSES = ("train_loss_step", "train_loss", "loss_step", "loss", "train/loss")
COLUMNS_MAX = 10_000


class LightningSource(Source):
    def __init__(self, loss: str | None) -> None:
        self._losses = (loss,) if loss else LOSSES

    def feed(self, data: bytes) -> Iterator[Told]:
        rows = csv.reader(io.StringIO(data.decode(errors="replace"), newline=""))
        try:
            names = next(rows, [])
            if "step" not in names or len(names) > COLUMNS_MAX:
                raise ValueError("the first line of a metrics.csv names its columns; one of them is step")
            places = {name: place for place, name in enumerate(names)}  # a short row costs no more for many names
            column = next((places[name] for name in self._losses if name in places), None)
            for row in rows if column is not None else ():
                step, loss = count(_at(row, places["step"])), number(_at(row, column))
                if step is not None and loss is not None:
                    yield Told("step", known(step=step + 1, loss=loss, lr=number(_at(row, places.get("lr")))))
        except csv.Error as error:
            raise ValueError(f"not a CSV file: {error}") from None


def _at(row: list[str], place: int | None) -> str | None:
    return row[place] if place is not None and place < len(row) else None


class Lightning(Reader):
    tells = frozenset({"steps", "loss"})
    whole = True

    loss: str | None = Field(None, max_length=200, description="Column of the loss; default: one of the usual names.")

    def open(self) -> Source:
        return LightningSource(self.loss)


READER = Lightning
