"""Shows the result of an exploration as JSON values, on a page and on the terminal, with a timeline for each bad
state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.explore.answers import BAD, OPEN, TOLERANCE
from harness.explore.exploration import Exploration, Profile, State, Tried
from harness.explore.operations import Kind
from harness.report import markdown
from harness.report.words import one_line
from harness.units import counted

JSON, PAGE = "explore.json", "report.md"
HEAD = ("file system", "open changes", "chosen", "equal", "tried", "answers")
LINES_MAX = 40  # of a timeline
SHOWN = 8  # operations before the crash, if none was lost
NO_CHANGE = "—"


def plain(found: Exploration) -> dict[str, Any]:
    """Returns an exploration of crash states as JSON values. The value `kept` lists the numbers of the changes that
    reached the disk, for each state with a bad or uncertain result."""
    told: dict[str, Any] = {"schema": 1, "run_id": found.run_id, "trainer": found.trainer, "form": found.form}
    told |= {"verdict": found.verdict.value, "why": reason(found), "complete": not (found.left or found.interrupted)}
    told |= {"saves_recorded": found.recorded.recorded, "removal_explored": found.recorded.removed}
    told |= {"saves": [save.step for save in found.recorded.saves], "operations": len(found.recorded.operations)}
    told |= {"restores_s": round(found.seconds, 3), "left": found.left}
    told["followed"] = [each.state.id for each in found.tried if each.followed]
    told["profiles"] = [
        {
            "profile": each.name,
            "open_changes_max": each.open_changes,
            "moments": each.moments,
            "chosen": each.chosen,
            "equal": each.equal,
            "tried": sum(found.came(each.name).values()),
            "answers": {came.value: count for came, count in found.came(each.name).items()},
        }
        for each in found.profiles
    ]
    told["states"] = [_state(each) for each in found.tried]
    told["worst"] = [
        {"id": each.state.id, "command": command(found, each.state), "timeline": list(timeline(found, each.state))}
        for each in found.worst()
    ]
    return told


def _state(each: Tried) -> dict[str, Any]:
    crash = each.state.crash
    told = {
        "id": each.state.id,
        "profile": each.state.profile,
        "crash_during": crash.during,
        "due_step": each.state.due,
    }
    told |= {"state": crash.why, "came": each.answer.came.value, "step": each.answer.step, "detail": each.answer.detail}
    if each.answer.came in (*BAD, *OPEN):
        told["kept"] = sorted(crash.kept)
    return told | {"seconds": round(each.seconds, 3)}


def reason(found: Exploration) -> str:
    bad = {came.value: count for came, count in found.came().items() if came in BAD}
    if bad:
        return f"of {counted(len(found.tried), 'state')}: " + ", ".join(
            f"{count} {came}" for came, count in bad.items()
        )
    if found.why:
        return found.why
    unsure = [f"{count} {came.value}" for came, count in found.came().items() if came in OPEN]
    left = [f"{found.left} of {counted(found.planned, 'state')} not tried"] if found.left else []
    left += [f"{each.name}: not all states could be chosen in time" for each in found.profiles if each.cut]
    left += [f"{each.name}: {each.together}" for each in found.profiles if each.together]
    if unsure or left:
        return ", ".join([*unsure, *left])
    return f"the job survives all {counted(len(found.tried), 'chosen state')}"


def facts(found: Exploration) -> list[str]:
    steps = ", ".join(str(save.step) for save in found.recorded.saves)
    tried = len(found.tried) + found.controls
    followed = sum(each.followed for each in found.tried)
    pace = f", {tried / found.seconds:.1f} a second" if found.seconds and found.tried else ""
    return [
        f"{found.trainer}; saves of steps {steps}; {counted(len(found.recorded.operations), 'operation')}",
        *([f"{counted(tried, 'restore')} in {found.seconds:.0f} s{pace}: {found.form}"] if found.form else []),
        f"for each set of file names, a restore went on until the next save was finished: {counted(followed, 'state')}",
        *_repeats(found),
        *_not_seen(found),
        reason(found),
    ]


def _not_seen(found: Exploration) -> list[str]:
    count = counted(found.recorded.recorded, "recorded save")
    return [] if found.recorded.removed else [f"no save was removed in {count}: crashes of a removal were not tried"]


def _repeats(found: Exploration) -> list[str]:
    if found.tolerance is None:
        return []
    how = f"within {found.tolerance / TOLERANCE:.2g} of their size" if found.tolerance else "bit for bit"
    return [f"restarts from undamaged saves repeat the losses {how}"]


def cells(found: Exploration) -> list[tuple[str, ...]]:
    rows = list[tuple[str, ...]]()
    for each in found.profiles:
        came = found.came(each.name)
        told = ", ".join(f"{count} {kind.value}" for kind, count in came.most_common()) or "none"
        legal = f"{each.open_changes} (at most 2^{each.open_changes} states, {counted(each.moments, 'moment')})"
        rows.append((each.name, legal, str(each.chosen), str(each.equal), str(came.total()), told))
    return rows


def command(found: Exploration, state: State) -> str:
    return f"chaos explore checkpoint --state {found.run_id}/{state.id} --into FOLDER"


def timeline(found: Exploration, state: State) -> Iterator[str]:
    """Yields a line for each file operation from the first lost change to the crash: kept, lost or in part."""
    profile, operations = found.profile(state.profile), found.recorded.operations
    last = min(state.crash.during, len(operations) - 1)
    fates = [_fate(profile, state, number) for number in range(last + 1)]
    first = next((number for number, fate in enumerate(fates) if fate in ("lost", "in part")), max(last - SHOWN, 0))
    rows: list[tuple[int, str, str]] = []
    for number in range(first, last + 1):
        each, fate = operations[number], fates[number]
        if each.kind is Kind.WRITE and rows and rows[-1][1:] == (fate, f"write {each.path}"):
            continue
        rows.append((number, fate, f"write {each.path}" if each.kind is Kind.WRITE else each.in_words()))
    if first:
        yield f"{counted(first, 'operation')} before: kept"
    if len(rows) > LINES_MAX:
        rows = [*rows[: LINES_MAX // 2], (-1, "…", f"{len(rows) - LINES_MAX} more"), *rows[-LINES_MAX // 2 :]]
    yield from (f"{number if number >= 0 else '':>6}  {fate:7}  {words}" for number, fate, words in rows)
    yield f"crash; the save of step {state.due} was finished"


def _fate(profile: Profile, state: State, number: int) -> str:
    made = [change.number not in state.crash.lost for change in profile.by_operation.get(number, ())]
    if not made:
        return NO_CHANGE
    return "kept" if all(made) else "in part" if any(made) else "lost"


def bad_states(found: Exploration) -> Iterator[tuple[str, list[str]]]:
    """For each kind of file system and of bad restore, yields a title, and a timeline of the state that lost the fewest
    changes."""
    for each in found.worst():
        count = found.came(each.state.profile)[each.answer.came]
        step = "" if each.answer.step is None else f" (step {each.answer.step})"
        which = f"{counted(count, 'state')}; {each.state.id} is the smallest"
        words = f"{each.state.profile}: {each.answer.came}{step} in {which}:"
        lines = [f"{each.state.crash.why}; {each.answer.detail}", *timeline(found, each.state)]
        yield words, [*lines, command(found, each.state)]


def page(found: Exploration) -> str:
    lines = ["# Crash states of the checkpoint folder", "", f"Verdict: **{found.verdict.value}**.", ""]
    lines += [*(f"* {markdown.text(fact)}" for fact in facts(found)), "", markdown.table(HEAD, cells(found))]
    for words, told in bad_states(found):
        lines += ["", f"## {markdown.text(words)}", "", "```", *map(_visible, told), "```"]
    unsure = [each for each in found.tried if each.answer.came in OPEN]
    if unsure:
        lines += ["", "## Not judged", ""]
        lines += [
            f"* {each.state.id}: {each.answer.came}: {markdown.text(each.answer.detail)}" for each in unsure[:LINES_MAX]
        ]
    return "\n".join(lines) + "\n"


def _visible(text: str) -> str:
    return " " * (len(text) - len(text.lstrip())) + one_line(text.strip()).replace("```", "")
