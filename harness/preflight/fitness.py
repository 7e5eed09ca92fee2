"""Defines the result of a preflight (a test of a cluster before a job), which holds the results of all checks. A result
can be stored under a name, so that later preflights are compared with this result."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from harness.errors import UsageError, choice
from harness.judge.verdict import Verdict, merge
from harness.preflight.checks.contract import FAR_BELOW, Finding, Judged, load_check
from harness.report import write_files
from harness.report.run_report import ReportError, read_as

SCHEMA, NOT_JUDGED = 1, "not judged"
ASKED, KNOWN = "asked.json", "preflight.json"  # what was asked for, and what it came to
KEPT = ".preflights"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")


class Answer(msgspec.Struct, kw_only=True, omit_defaults=True):
    name: str
    title: str
    verdict: Verdict | None  # `None`: not judged
    judged: Judged


def in_words(answer: Answer) -> str:
    judged = answer.judged
    return f"{NOT_JUDGED}: {judged.not_judged}" if judged.not_judged else judged.words


class Curve(msgspec.Struct, kw_only=True):
    step: list[int]
    loss: list[float | None]
    grad_norm: list[float | None]


class Asked(msgspec.Struct, kw_only=True, omit_defaults=True):
    schema: Literal[1] = 1
    plan: dict[str, object]
    checks: list[str]
    against: str = ""
    faults: bool = False  # True: the scenario's faults acted, so it proves nothing
    canary_ended: str = ""  # why the trainer did not finish without a fault; empty: it did
    drill: str = ""  # the run in which a rank was killed, beside this folder
    drill_ended: str = ""
    interrupted: bool = False


class Preflight(msgspec.Struct, kw_only=True, omit_defaults=True):
    schema: Literal[1] = 1
    run_id: str
    scenario: str
    backend: str
    nodes: list[str] = []
    at_s: float = 0.0  # since 1970
    against: str = ""  # the kept one that it was held against
    faults: bool = False
    drill: str = ""
    commit: str = ""  # of the project under test; empty where it is not known
    interrupted: bool = False
    checks: list[Answer] = []
    canary: Curve | None = None

    @property
    def verdict(self) -> Verdict:
        verdicts = [each.verdict for each in self.checks if each.verdict is not None]
        return merge([*verdicts, Verdict.INCONCLUSIVE] if self.interrupted else verdicts)

    @property
    def findings(self) -> list[tuple[Answer, Finding]]:
        found = [(each, finding) for each in self.checks for finding in each.judged.findings]
        return sorted(found, key=lambda pair: not pair[1].certain)

    @property
    def why(self) -> str:
        if self.findings:
            more = len(self.findings) - 1
            return self.findings[0][1].words + (f"; and {more} more" if more else "")
        asked, not_judged = list[str](), list[str]()
        for each in self.checks:
            (not_judged if each.judged.not_judged else asked).append(each.title)
        if self.interrupted or not asked:
            return "stopped before all was looked at" if self.interrupted else "nothing was judged"
        left_open = f"; not judged: {', '.join(not_judged)}" if not_judged else ""
        return f"fit, as far as was asked: {', '.join(asked)}{left_open}"


def store(name: str, value: object, folder: pathlib.Path) -> None:
    write_files({name: msgspec.json.format(msgspec.json.encode(value), indent=1).decode() + "\n"}, folder)


def check_name(name: str) -> None:
    if not _NAME.match(name):
        raise UsageError(f"--keep {name!r}: a name has letters, digits, dots and dashes, at most 64")


def keep(name: str, found: Preflight, reports: pathlib.Path) -> None:
    """Stores a passed preflight under a name, and replaces an earlier preflight of this name. Raises `UsageError` if
    the preflight did not pass, or was made with `--faults`."""
    check_name(name)
    if found.verdict is not Verdict.PASS or found.faults:
        what = "was made with --faults" if found.faults else f"is {found.verdict.value}"
        raise UsageError(f"--keep {name}: {found.run_id} {what}, and nothing is held against such a one")
    (reports / KEPT).mkdir(parents=True, exist_ok=True)
    store(f"{name}.json", found, reports / KEPT)


def kept(name: str, reports: pathlib.Path, backend: str) -> Preflight:
    """Reads a preflight that was stored under a name. Raises `UsageError` if no preflight has this name, or if the
    stored preflight is unreadable or of another backend."""
    known = sorted(path.stem for path in (reports / KEPT).glob("*.json"))
    if name not in known:
        raise UsageError(f"no preflight was kept as {name!r}; {choice(name, known)}")
    try:
        found = read_as(reports / KEPT / f"{name}.json", Preflight)
    except ReportError as error:
        raise UsageError(str(error)) from error
    if found.backend != backend:
        raise UsageError(f"{name} was kept of backend {found.backend}, this is {backend}")
    return found


def held_against(before: Preflight, name: str, judged: Judged, one_host: bool = False) -> Iterator[Finding]:
    """Yields a finding for each figure of a check that is worse than in a stored preflight, and for each changed fact
    (such as a version). Figures that are missing in one of the two preflights are ignored. `one_host` is True if all
    nodes share one host's CPUs, which makes slower figures uncertain."""
    old = next((each.judged for each in before.checks if each.name == name), Judged())
    check = load_check(name)
    for fact, told in judged.facts.items():
        if (known := old.facts.get(fact)) not in (None, told):
            words = f"{fact} is {told}; it was {known} when the baseline was kept"
            yield Finding(words, "an update since then: keep a new baseline if it was meant")
    for figure, value in judged.figures.items():
        was = old.figures.get(figure) or 0.0
        less = check.least is not None and value < check.least * was
        more = check.most is not None and 0 < check.most * was < value
        if less or more:
            words = f"{figure}: {100 * value / was:.0f} % of what it was when the baseline was kept"
            in_name = set(re.split(r"[ ,/]+", figure))
            named = [node for node in before.nodes if node in in_name]
            certain = not one_host or value < FAR_BELOW * was
            yield Finding(words, check.cause, named, figure=value, usual=was, certain=certain)


def answers(checks: Mapping[str, Judged]) -> list[Answer]:
    return [Answer(name=n, title=load_check(n).title, verdict=each.verdict, judged=each) for n, each in checks.items()]
