"""Writes scenarios for a trainer as YAML text with comments, from the facts of a short run without faults."""

from __future__ import annotations

import math
import os
import pathlib
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import yaml

from harness.adopt.first_look import Facts
from harness.adopt.hints import STEPS, numbers, steps_asked
from harness.adopt.mesh_seen import in_words, victim_of
from harness.adopt.recognise import Recognised
from harness.mesh import SHARED
from harness.node.emitter import Axis

MARGIN_S = 30.0  # of the bound on recovery, beside what the first look measured
STARTS = 4  # of a job whose launcher starts it again three times
SAVE_EVERY = 10  # steps, where no checkpoint was seen
SHORT_PASS_S = 60.0  # a job has more than one pass over its data, where one takes no longer
OTHERS_MOST = 0.5  # share of the CPUs that other programs may take, as in `harness.judge.thresholds`
USUAL_SAVES = 2  # before a fault, where the job is long enough
GATE = "gate.yaml"
LONG_S = 15 * 60.0  # of one run of the job; each rehearsal is one


@dataclass(frozen=True)
class Proposed:
    """A scenario that `chaos init` may propose for a trainer. `faults` is YAML with placeholders: `{step}`, `{rank}` (a
    rank other than 0, if possible), `{place}` (a rank or mesh coordinates) and `{last}` (the last node). `saves` is the
    number of checkpoints that must exist before the fault."""

    name: str
    title: str
    why: str
    faults: str
    saves: int = 1


REHEARSALS = (
    Proposed(
        "rank-kill",
        "A worker dies by SIGKILL",
        "The most frequent failure of all: a GPU or a driver error takes one process away.",
        """
  - id: kill
    fault: rank_kill
    when: {{step: {step}}}
    target: {place}
""",
    ),
    Proposed(
        "spot-evict",
        "A node is reclaimed with a notice of 5 s, and a replacement arrives",
        "The notice is a SIGTERM. A trainer that takes no notice of it loses the steps since its last checkpoint.",
        """
  - id: evict
    fault: preemption
    when: {{step: {step}}}
    target: {{node: any}}
    notice: 5s
    replacement: {{after: 5s}}
""",
    ),
    Proposed(
        "node-loss",
        "A node dies without notice, and a replacement arrives",
        "Everything on the node ends at once: its workers, their launcher, its open connections.",
        """
  - id: loss
    fault: node_loss
    when: {{step: {step}}}
    target: {{node: {last}}}
    replacement: {{after: 5s}}
""",
    ),
    Proposed(
        "checkpoint-bit-flip",
        "One bit of the newest checkpoint has rotted when a worker dies",
        "torch.load, DCP and safetensors load it without a word. The job must notice it, or fall back.",
        """
  - id: rot
    fault: checkpoint_corruption
    when: {{step: {step}}}
    target: {{node: 0}}
    kind: bit_flip
    what: tensor
  - id: kill
    fault: rank_kill
    when: {{following: rot, event: effect}}
    target: {{rank: {rank}}}
""",
        saves=2,
    ),
    Proposed(
        "checkpoint-truncated",
        "The newest checkpoint has lost its end when a worker dies",
        "A save that a full disk or a crash cut short. The job must fall back to the checkpoint before.",
        """
  - id: cut
    fault: checkpoint_corruption
    when: {{step: {step}}}
    target: {{node: 0}}
    kind: truncate
  - id: kill
    fault: rank_kill
    when: {{following: cut, event: effect}}
    target: {{rank: {rank}}}
""",
        saves=2,
    ),
    Proposed(
        "kill-during-checkpoint",
        "The power of a node fails in the middle of a checkpoint",
        "What is on the disk by then is half a checkpoint. It must never be taken for a whole one.",
        """
  - id: tear
    fault: checkpoint_torn_write
    when: {{step: {step}}}
    target: {{node: 0}}
    after_bytes: 4KiB
    replacement: {{after: 5s}}
""",
        saves=2,
    ),
)


def workload_of(found: Recognised, folder: pathlib.Path, ranks: int = 0) -> dict[str, Any]:
    """Returns the `workload` section, for the launch command `found`, of a scenario file in `folder`. `ranks` is the
    observed number of ranks, for a command that starts all ranks itself."""
    trainer = dict(found.trainer)
    if found.script:
        script = found.script if os.path.isabs(found.script) else os.path.relpath(found.script, folder)
        for key, value in trainer.items():
            at = value.index(found.script) if isinstance(value, list) and found.script in value else None
            if value == found.script:
                trainer[key] = script
            elif at is not None and key == "command":
                trainer[key] = [*value[:at], "{scenario_dir}/" + script, *value[at + 1 :]]
    ranks = ranks or found.ranks if found.nodes == 1 or "command" in trainer else found.ranks
    return {"trainer": trainer, "nodes": found.nodes, "ranks_per_node": max(1, math.ceil(ranks / found.nodes))}


def with_steps_left(found: Recognised, facts: Facts) -> tuple[Recognised, str]:
    """If a checkpoint falls on the job's last step, returns the command with more steps (if possible) and the reason. A
    restart from a checkpoint of the last step would have no steps left to do, and would therefore show nothing."""
    words = found.words
    places = list(numbers(words, STEPS))
    asked = {int(match["number"]) for _, match in places}
    total = facts.steps_total or steps_asked(words)
    every = facts.save_every or 0
    if every < 2 or total <= facts.saves[0] or (total - facts.saves[0]) % every:
        return found, ""
    more = total + every // 2
    why = f"the job saves its last step, {total}, so a restart from its last save would have nothing to do"
    if asked != {total}:
        return found, f"{why}. Let it do {more} steps"
    for at, match in places:
        words = [*words[:at], words[at].removesuffix(match["number"]) + str(more), *words[at + 1 :]]
    key = "args" if "args" in found.trainer else "command"
    return replace(found, trainer={**found.trainer, key: words}), f"{why}. The scenarios ask for {more} steps"


def propose(workload: Mapping[str, Any], facts: Facts) -> dict[str, str]:
    """Maps file names to the texts of the proposed scenarios. A scenario is left out if the job ends before the step of
    the scenario's fault."""
    world = workload["nodes"] * workload.get("ranks_per_node", 1)
    if facts.elastic:
        workload = {**workload, "min_nodes": 1}
    elif math.prod(facts.mesh.values()) == world > 1:
        workload = {**workload, "mesh": dict(facts.mesh)}
    fitting = [each for each in REHEARSALS if facts.steps_total is None or _step(each, facts) < facts.steps_total]
    return {f"{each.name}.yaml": _text(each, workload, facts) for each in fitting}


def gate_of(names: Sequence[str]) -> str:
    listed = "\n".join(f"  - {name}" for name in names)
    return f"""\
# All of them as one gate: `chaos gate` and the path of this file.
version: 1
name: proposed
title: The scenarios that were proposed, and a restart from each save that matters
scenarios:
{listed}
  # Without a fault: the job is started again from each of these saves, and must do what it did.
  - {{matrix: resume, scenario: {names[0]}}}
"""


def _text(rehearsal: Proposed, workload: Mapping[str, Any], facts: Facts) -> str:
    saves = "no checkpoint was seen; choose steps after the first one"
    if facts.saves:
        saves = f"a checkpoint was seen at step {', '.join(map(str, facts.saves[:5]))}"
    again_s = (facts.save_every or SAVE_EVERY) * facts.step_s
    start_s = facts.start_s * max(1.0, (1 - facts.others) / (1 - OTHERS_MOST))
    recovery_s = math.ceil((2 * start_s + again_s + MARGIN_S) / 10) * 10  # rounded up to ten
    no_step_s = max(120, math.ceil(2 * STARTS * facts.start_s / 10) * 10)
    wall_clock_s = max(600, math.ceil(4 * run_s(facts) / 60) * 60)
    last = workload["nodes"] - 1
    rank = "{not_rank: 0}" if last or workload.get("ranks_per_node", 1) > 1 else "0"
    place = victim_of(workload.get("mesh", {}))
    described = yaml.safe_dump(dict(workload), sort_keys=False, default_flow_style=None, width=100)
    return f"""\
# {rehearsal.why}
version: 1
name: {rehearsal.name}
title: {rehearsal.title}
tags: [proposed]
workload:  # {_who_starts_again(workload["trainer"])}
{textwrap.indent(described.rstrip(), "  ")}
faults:  # {saves}
{rehearsal.faults.strip(chr(10)).format(step=_step(rehearsal, facts), rank=rank, last=last, place=_target(place, rank))}
expect:
  # Twice the start-up ({facts.start_s:.0f} s; {start_s:.0f} s while others take {OTHERS_MOST:.0%} of the CPUs),
  # the steps since a checkpoint once more, and {MARGIN_S:.0f} s.
  recovery_time: {{max: {recovery_s}s}}
{_continuity(facts)}
abort:  # {_longest(facts)}
  if_no_step_for: {no_step_s}s  # long enough for {STARTS} starts that fail one after the other, on a busy host, too
  wall_clock: {wall_clock_s}s
"""


def _who_starts_again(trainer: Mapping[str, Any]) -> str:
    if "deepspeed" in trainer:
        return "deepspeed starts no rank again: a job that loses one is over."
    goes_on = "it must go on from its newest checkpoint by itself."
    if "command" in trainer:
        return f"Only this command can start a dead rank again. A replaced node starts the command again: {goes_on}"
    return f"After a fault the same script is started again: {goes_on}"


def _step(rehearsal: Proposed, facts: Facts) -> int:
    """Returns a step half-way between two checkpoints. If possible, the restart after the fault comes in the second
    pass over the data, because many trainers resume correctly only in the first pass."""
    every, saves = facts.save_every or SAVE_EVERY, max(rehearsal.saves, USUAL_SAVES)
    first = facts.saves[0] if facts.saves else SAVE_EVERY
    half = max(1, every // 2)
    least, usual = (first + (number - 1) * every + half for number in (rehearsal.saves, saves))
    step = usual
    if has_second_pass(facts):
        taken = (facts.pass_steps + older * every for older in (rehearsal.saves - 1, 0))  # the newest one is damaged
        later = [usual + every * max(0, (save + half - usual) // every + 1) for save in taken]
        step = next((each for each in later if each < (facts.steps_total or math.inf) - every), usual)
    return step if facts.steps_total is None or step < facts.steps_total else least


def _target(place: Mapping[Axis, int | str], rank: str) -> str:
    if not place:
        return f"{{rank: {rank}}}"
    axis = next(axis for axis, index in place.items() if index == "last")
    return f"{in_words(place)}  # one rank; along {axis} ranks share {SHARED[axis]}"


def run_s(facts: Facts) -> float:
    """Estimates how many seconds the whole job takes without faults. If the job's number of steps is unknown, counts
    only the steps that `chaos init` watched."""
    return facts.start_s + (facts.steps_total or facts.steps_seen) * facts.step_s


def _longest(facts: Facts) -> str:
    if facts.steps_total is None:
        return "the end of the job was not seen; a run that is stopped here is inconclusive"
    return "ten minutes, or four times what the job needs without a fault"


def steps_enough(facts: Facts) -> int:
    """Returns how many steps a job needs for two checkpoints after each proposed fault, and some steps after the last
    checkpoint."""
    every = facts.save_every or SAVE_EVERY
    latest = max(_step(each, replace(facts, steps_total=None)) for each in REHEARSALS)
    first = facts.saves[0] if facts.saves else every
    return first + (math.ceil((latest - first) / every) + 1) * every + max(1, every // 2)


def strikes_late(facts: Facts) -> bool:
    return 0 < facts.pass_steps < _step(REHEARSALS[0], facts)


def has_second_pass(facts: Facts) -> bool:
    """Returns True if a fault is to act in the second pass over the data. Returns False if the length of the first pass
    is unknown, or if the job may consist of one long pass."""
    seen = facts.steps_seen > facts.pass_steps or facts.pass_steps * facts.step_s <= SHORT_PASS_S
    return facts.pass_steps > 0 and (facts.steps_total is not None or seen)


def _continuity(facts: Facts) -> str:
    if "loss" not in facts.told:
        return "  # The loss could not be observed, so nothing is expected of it."
    if facts.elastic:
        text = "  # With fewer replicas a step has fewer samples, and another loss: the last ones are compared.\n"
        text += "  # 5% is a first guess. Set it from how far runs without a fault differ.\n"
        text += "  # A replica that comes back begins its data again: samples are reported, not judged.\n"
        text += "  # Leave out samples: reported, if your loader keeps its place.\n"
        return f"{text}  loss_continuity: {{mode: final, max_final_gap: 5%, samples: reported}}"
    return (
        "  # Bit for bit that of a run without faults. On GPUs, or where the world shrinks, use mode: envelope.\n"
        "  loss_continuity: {mode: exact}"
    )
