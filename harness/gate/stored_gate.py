"""Reads suite.json of a stored gate, and checks sizes and types, because the file is not trusted."""

from __future__ import annotations

import pathlib
from typing import Annotated

import msgspec

from harness.errors import UsageError
from harness.gate import run_figures
from harness.gate.run_figures import Count, Short, Text
from harness.judge.verdict import Verdict
from harness.report import run_report
from harness.report.words import one_line
from harness.units import counted

SCHEMA = 1
BEGAN = "began"  # name of a file in a gate's folder until it has ended
Reason = Annotated[str, msgspec.Meta(max_length=20_000)]


class Run(msgspec.Struct, frozen=True):
    run_id: Text
    verdict: Verdict


class Row(msgspec.Struct, frozen=True):
    scenario: Text
    title: Reason
    verdict: Verdict
    reasons: Annotated[tuple[Reason, ...], msgspec.Meta(min_length=1, max_length=1000)]
    runs: Annotated[tuple[Run, ...], msgspec.Meta(max_length=10_000)]
    known_failure: bool = False
    swept: bool = False


class LeftOut(msgspec.Struct, frozen=True):
    scenario: Text
    why: Reason
    required: bool


class Part(msgspec.Struct, frozen=True):
    in_suite: Count
    selected: Count  # number of scenarios with the tag
    tag: Short
    backend: Text
    seed: int
    digest: Text  # digest of the suite's file
    names: Annotated[tuple[Text, ...], msgspec.Meta(max_length=1000)]  # of the selected scenarios, whatever the shard
    shard: Count | None = None
    shards: Count | None = None
    left_out: Annotated[tuple[LeftOut, ...], msgspec.Meta(max_length=2000)] = ()
    again: bool = False  # only scenarios that did not pass last time
    added: Short = ""  # earlier gate whose runs count as well
    repeat: Count | None = None  # runs of each scenario; `None`: as the suite says

    @property
    def same(self) -> tuple[object, ...]:
        """Returns the values, such as seed and backend, that must be equal in all shards of a gate."""
        return self.in_suite, self.selected, self.tag, self.backend, self.seed, self.digest, self.names, self.shards

    @property
    def incomplete(self) -> str:
        missing = [f"{each.scenario} ({each.why})" for each in self.left_out if each.required]
        return f"{counted(len(missing), 'required scenario')} left out: {', '.join(missing)}" if missing else ""

    @property
    def in_words(self) -> str:
        said = [f"only the {self.selected} of {self.in_suite} scenarios with tag {self.tag}"] if self.tag else []
        said += [f"only {', '.join(self.names)} of {self.in_suite} scenarios"] if self.again else []
        said += [f"with the runs of gate {self.added}"] if self.added else []
        said += [f"only shard {self.shard} of {self.shards}: merge all shards"] if self.shard else []
        optional = [each.scenario for each in self.left_out if not each.required]
        return "; ".join(said + ([f"without {', '.join(optional)}, which are not required"] if optional else []))


class Stored(msgspec.Struct, frozen=True):
    """A gate's result, as read from suite.json. Keys that this version of the harness does not know are ignored."""

    schema: int
    suite: Text
    title: Reason
    run_id: Text
    verdict: Verdict
    reason: Reason
    blindness_check: Row
    scenarios: Annotated[tuple[Row, ...], msgspec.Meta(max_length=2000)]
    part: Part


def read(folder: pathlib.Path) -> Stored:
    """Reads a stored gate. Raises `UsageError` if the folder holds no gate that this harness version can read."""
    path = folder / "suite.json"
    try:
        data = run_report.read_regular(path)
        if len(data) > run_figures.BYTES_MAX:
            raise UsageError(f"{path}: larger than {run_figures.BYTES_MAX // 2**20} MiB")
        found = msgspec.json.decode(data, type=Stored)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not a gate of this version: {one_line(error)}") from error
    if found.schema != SCHEMA:
        raise UsageError(f"{path}: it has schema {found.schema}; this version reads schema {SCHEMA}")
    return found


def check_ended(reports: pathlib.Path, newest_s: float, suite: str = "") -> None:
    """Raises `UsageError` if a gate that began after `newest_s` is still running, because `last` would then mean an
    older gate. `newest_s` is in seconds since 1970."""
    for began in reports.glob(f"*/{BEGAN}"):
        gate = began.parent.name
        if (began.parent / "plan.json").exists() or not gate.startswith(f"{suite}-" if suite else ""):
            continue  # a trainer may write anything into the folder of a run
        if began.stat().st_mtime > newest_s:
            raise UsageError(f"last: gate {gate} began later and has not ended; name the one that you mean")


def find(name: str, reports: pathlib.Path, suite: str, backend: str) -> Stored:
    """Returns a stored gate that ran the suite `suite` on the backend `backend`. `name` is the start of the gate's id,
    or `last` for the newest gate of the suite. Raises `UsageError` if there is no stored gate with this name."""
    files = sorted(reports.glob("*/suite.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    if name == "last":
        check_ended(reports, files[0].stat().st_mtime if files else 0.0, suite)
    for path in files:
        if name != "last" and not path.parent.name.startswith(name):
            continue
        try:
            gate = read(path.parent)
        except UsageError:
            if name != "last":
                raise
            continue
        if (gate.suite, gate.part.backend) == (suite, backend):
            return gate
    which = "no gate" if name == "last" else f"no gate {name}"
    raise UsageError(f"{which} of {suite} on {backend} is kept in {reports}; run the gate first")
