"""Shows the result of a search for failing schedules of faults: as JSON values, on a terminal, and as scenario files
that replay the failures."""

from __future__ import annotations

import pathlib
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness.fuzz.search import Found, Search
from harness.judge.verdict import Verdict
from harness.report.words import one_line
from harness.units import counted

JSON = "fuzz.json"
UNCLEAR = (Verdict.INCONCLUSIVE, Verdict.INVALID)
TITLE = "Found by a search: {}"
WORDS_MAX = 150  # characters of a reason in a title


@dataclass(frozen=True)
class Result:
    search: Search
    folder: pathlib.Path
    interrupted: bool

    @property
    def verdict(self) -> Verdict:
        if self.search.found:
            return Verdict.FAIL
        return Verdict.PASS if self.search.verdicts[Verdict.PASS] else Verdict.INCONCLUSIVE

    @property
    def why(self) -> str:
        if self.search.found:
            return f"{counted(len(self.search.found), 'failure')} found"
        runs = sum(self.search.verdicts.values())
        judged = self.search.verdicts[Verdict.PASS]
        return f"nothing found in {counted(judged, 'judged run')} of {runs}"

    def file(self, found: Found) -> pathlib.Path:
        return self.folder / f"found-{found.number}.yaml"

    def command(self, found: Found) -> str:
        base = self.search.space.base
        words = ["chaos", "run", str(self.file(found)), "--seed", str(base.seed)]
        return shlex.join(words + (["--backend", base.backend] if base.backend != "local" else []))

    def files(self) -> dict[str, str]:
        return {self.file(found).name: self._scenario(found) for found in self.search.found}

    def _scenario(self, found: Found) -> str:
        base = self.search.space.base
        told = [one_line(found.reason), rate(found), f"Replay: {self.command(found)}"]
        title = TITLE.format(one_line(found.reason))
        text = base.text(found.smallest, f"{base.name}-{found.number}", title[:WORDS_MAX])
        return "".join(f"# {line}\n" for line in told) + text

    def plain(self) -> dict[str, Any]:
        """Returns the result of the search as JSON values."""
        search = self.search
        told: dict[str, Any] = {"schema": 1, "verdict": self.verdict.value, "why": self.why}
        told |= {"interrupted": self.interrupted, "seed": search.space.base.seed, "drawn": search.searched}
        told["runs"] = {verdict.value: count for verdict, count in search.verdicts.items()}
        told["seconds"] = round(search.seconds, 1)
        told["covered"] = [[kind, phase, count] for (kind, phase), count in sorted(search.coverage.cells.items())]
        told["pairs"] = [[*pair, count] for pair, count in sorted(search.coverage.pairs.items())]
        told["not_drawn"] = {**search.space.undrawn, **search.useless}
        told["found"] = [self._found(found) for found in search.found]
        return told

    def _found(self, found: Found) -> dict[str, Any]:
        return {
            "file": self.file(found).name,
            "command": self.command(found),
            "codes": sorted(found.codes),
            "reason": found.reason,
            "run": found.run,
            "failed": found.failed,
            "repeats": found.repeats,
            "rate_interval": found.interval,
            "flaky": found.failed < found.repeats,
            "smallest": found.whole,
            "again": found.again,
            "faults": list(found.smallest),
            "first_faults": list(found.first),
        }

    def lines(self) -> Iterator[str]:
        search = self.search
        runs = ", ".join(f"{count} {verdict}" for verdict, count in sorted(search.verdicts.items())) or "none"
        yield f"runs: {runs}; {counted(search.searched, 'schedule')} drawn"
        cells, pairs = len(search.coverage.cells), len(search.coverage.pairs)
        phases = {phase for _, phase in search.coverage.cells}
        yield (
            f"covered: {counted(cells, 'combination')} of a fault and one of {counted(len(phases), 'phase')}, "
            f"{counted(pairs, 'pair')} of faults"
        )
        if unclear := sum(search.verdicts[each] for each in UNCLEAR):
            yield f"{counted(unclear, 'run')} inconclusive or invalid: nothing is said of the job by them"
        for kind, why in {**search.space.undrawn, **search.useless}.items():
            yield f"not drawn: {kind}: {one_line(why)}"
        for found in search.found:
            yield f"found {found.number}: {one_line(found.reason)}"
            yield f"  {rate(found)}"
            for entry in found.smallest:
                yield f"  {one_line(entry)}"
            yield f"  run: {found.run}"
            yield f"  {self.command(found)}"


def rate(found: Found) -> str:
    low, high = found.interval
    often = f"{found.failed} of {counted(found.repeats, 'repeat')} failed ({100 * low:.0f} to {100 * high:.0f} %)"
    if not found.repeats:
        often = "not repeated yet"
    elif found.failed < found.repeats:
        often = f"flaky: {often}"
    if not found.repeatable:
        return f"{often}; not made smaller"
    return f"{often}; {'nothing smaller fails so' if found.whole else 'not all smaller schedules were tried'}"
