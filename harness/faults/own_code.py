"""A user's own Python function `inject(context)` is called in a rank's process right after a step."""

import ast
import pathlib
from typing import Self

from pydantic import Field, field_validator, model_validator

from harness.backends.contract import Node
from harness.faults.contract import Context, Hold, Targets, name_ranks
from harness.faults.shared import inside
from harness.log.consequences import May
from harness.node.emitter.strikes import CALLED, FAILED, RETURNED
from harness.units import Duration

SOURCE_CHARS_MAX = 64 * 2**10


class OwnCode(inside.InsideFault):
    """Runs Python code from the scenario in the training thread of a rank. The code can damage, block or end the
    process. docs/writing-a-scenario.md has an example.

    The trainer must log the harness's events, or run with the harness's observer, which logs these events.
    """

    file: str = Field("", max_length=1000, description="A Python file with def inject(context), beside the scenario.")
    source: str = Field("", max_length=SOURCE_CHARS_MAX, description="Or the code itself; read from the file.")
    duration_max: Duration = Field(Duration("60s"), description="The harness waits no longer than this for the code.")

    runbook = "F1"
    # No `truth`: the code does what its user wrote, so nobody else knows the right answer.
    may = frozenset({May.STOP, May.MOVE})

    @field_validator("source")
    @classmethod
    def _has_inject(cls, source: str) -> str:
        if source:
            check(source)
        return source

    @model_validator(mode="after")
    def _has_code(self) -> Self:
        if not self.file and not self.source:
            raise ValueError("write file: with a Python file, or source: with the code; it has def inject(context)")
        return self

    def beside(self, folder: pathlib.Path) -> Self:
        if self.source:
            return self
        source = _read(folder / self.file)
        check(source)
        return self.model_copy(update={"source": source})

    def holds(self, targets: Targets) -> list[Hold]:
        return inside.at_the_next_step(targets, "call", self.source)

    def describe(self, targets: Targets) -> str:
        return f"{name_ranks(targets)}: inject(context) of {self.file or 'the scenario'} is called after its next step"

    def inject(self, targets: Targets, context: Context) -> None:
        victims = self.find_victims(targets, context)
        struck = inside.strike_each(targets, context, CALLED)
        ended = {rank: self._end(rank, *victims[rank], context) for rank in struck}
        ok = len(ended) == len(targets) and "raised an error, see its output" not in ended.values()
        detail = "; ".join(f"rank {rank}: {how}" for rank, how in ended.items())
        context.effect(len(ended), len(targets), "calls of inject", ok=ok, detail=detail)

    def _end(self, rank: int, node: Node, pid: int, context: Context) -> str:
        begun_ns = context.reached(rank, CALLED)

        def over(failpoint: str) -> bool:
            return context.reached(rank, failpoint) >= begun_ns

        context.wait(self.duration_max.s, until=lambda: over(RETURNED) or over(FAILED) or inside.is_gone(node, pid))
        if over(FAILED):
            return "raised an error, see its output"
        if over(RETURNED):
            return "it returned"
        return "the process ended in it" if inside.is_gone(node, pid) else f"still at work after {self.duration_max}"


def _read(path: pathlib.Path) -> str:
    if not path.is_file():
        raise ValueError(f"no file {path}; paths start at the folder of the scenario")
    try:
        with path.open(encoding="utf-8") as file:
            source = file.read(SOURCE_CHARS_MAX + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(source) > SOURCE_CHARS_MAX:
        raise ValueError(f"{path}: more than {SOURCE_CHARS_MAX} characters")
    return source


def check(source: str) -> None:
    """Raises `ValueError` unless `source` is Python with `def inject(context)`. Does not run `source`."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"not valid Python: {error}") from None
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "inject"]
    if not found or len(found[-1].args.posonlyargs) + len(found[-1].args.args) != 1:
        raise ValueError("it needs def inject(context) with one parameter at its top level")


FAULT = OwnCode
