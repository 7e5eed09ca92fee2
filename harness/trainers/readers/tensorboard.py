"""Reads TensorBoard's files `events.out.tfevents.*`: scalars with step and time. Each process start makes a new file.

A file holds TFRecord frames: the record's length (8 bytes), a checksum of the length (4 bytes), the record, and its
checksum (4 bytes). A record is the protocol buffer `tensorflow.Event`, whose fields have the numbers 1 (wall_time, a
double), 2 (step) and 5 (summary). A summary has field 1 (value). A value has the fields 1 (tag), 2 (simple_value, a
float) and 8 (tensor). A tensor has the fields 5 (float_val) and 4 (tensor_content).
"""

import struct
from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from harness.trainers.readers.contract import Reader, Source, Told

RECORD_BYTES_MAX = 16 * 2**20
LOSSES = ("loss", "train/loss", "train_loss", "Loss/train", "loss/train", "train/loss_step")
_HEAD = struct.Struct("<QI")
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_Field = tuple[int, int | bytes]  # number, and a varint or the bytes


class TensorboardSource(Source):
    def __init__(self, losses: tuple[str, ...], offset: int) -> None:
        self._losses, self._offset = losses, offset
        self._rest = b""
        self._broken = False

    def feed(self, data: bytes) -> Iterator[Told]:
        if self._broken:
            return
        whole, at, damage = self._rest + data, 0, None
        while len(whole) - at >= _HEAD.size:
            length, _ = _HEAD.unpack_from(whole, at)
            if length > RECORD_BYTES_MAX:
                self._rest, self._broken = b"", True
                raise ValueError(f"a record of {length} bytes; at most {RECORD_BYTES_MAX} are read")
            end = at + _HEAD.size + length
            if len(whole) < end + 4:
                break
            try:
                yield from self._event(whole[at + _HEAD.size : end])
            except ValueError as error:  # the records after it are read all the same
                damage = damage or error
            at = end + 4
        self._rest = whole[at:]
        if damage is not None:
            raise damage

    def _event(self, record: bytes) -> Iterator[Told]:
        fields = dict(_fields(record))
        wall, step, summary = fields.get(1), fields.get(2, 0), fields.get(5)
        if not isinstance(wall, bytes) or len(wall) != 8 or not isinstance(summary, bytes):
            return
        if not isinstance(step, int) or step >= 2**53:
            return
        scalars = dict(_scalars(summary))
        loss = next((scalars[tag] for tag in self._losses if tag in scalars), None)
        if loss is not None:
            seconds = struct.unpack("<d", wall)[0]
            wall_ns = round(seconds * 1e9) if 0 < seconds < 4e9 else None
            yield Told("step", {"step": step + self._offset, "loss": loss}, wall_ns)


def _scalars(summary: bytes) -> Iterator[tuple[str, float]]:
    for number, value in _fields(summary):
        inside = dict(_fields(value)) if number == 1 and isinstance(value, bytes) else {}
        tag, simple, tensor = inside.get(1), inside.get(2), inside.get(8)
        if isinstance(tensor, bytes):
            parts = dict(_fields(tensor))
            simple = parts.get(5) or parts.get(4)
        if isinstance(tag, bytes) and isinstance(simple, bytes) and len(simple) == 4:
            yield tag.decode(errors="replace"), struct.unpack("<f", simple)[0]


def _fields(message: bytes) -> Iterator[_Field]:
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            length, at = _varint(message, at)
        else:
            length = {_FIXED64: 8, _FIXED32: 4}.get(kind, -1)
        if length < 0 or at + length > len(message):
            raise ValueError("not a protocol buffer")
        yield key >> 3, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(10):
        if at + place >= len(message):
            break
        byte = message[at + place]
        value |= (byte & 127) << (7 * place)
        if byte < 128:
            return value, at + place + 1
    raise ValueError("not a protocol buffer")


class Tensorboard(Reader):
    tells = frozenset({"steps", "loss"})
    timed = True

    loss: str | None = Field(None, max_length=200, description="Tag of the loss; default: one of the usual names.")
    first_step: Literal[0, 1] = Field(1, description="The step that the trainer's first one is logged as.")

    def open(self) -> Source:
        return TensorboardSource((self.loss,) if self.loss else LOSSES, 1 - self.first_step)


READER = Tensorboard
