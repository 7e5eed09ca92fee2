"""Defines the command `chaos init`, which makes scenarios from the command that starts a training."""

from __future__ import annotations

import os
import pathlib
import shlex
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any

import typer
import yaml
from typer.core import TyperCommand

from harness.adopt.copying import moved, original, working_in_copy
from harness.adopt.first_look import Facts, look
from harness.adopt.hints import another_launcher, resume_option, sizes_asked, steps_asked
from harness.adopt.mesh_seen import in_words, victim_of
from harness.adopt.proposal import (
    GATE,
    LONG_S,
    REHEARSALS,
    gate_of,
    propose,
    run_s,
    steps_enough,
    strikes_late,
    with_steps_left,
    workload_of,
)
from harness.adopt.recognise import THREADS, Recognised, recognise
from harness.backends.contract import load_backend
from harness.campaign.experiment import new_run_id
from harness.cli import path_arguments
from harness.cli.display import Display
from harness.cli.output import out, safe, say
from harness.cli.shared_options import REPORTS, BackendOption, ReportsOption, SeedOption
from harness.errors import UsageError
from harness.evidence.reported import BY_FAULT, ITEMS, stood_in_for
from harness.plan.making import make_plan
from harness.plan.run_plan import FIRST_LOOK
from harness.report.commands import pages_here
from harness.report.words import seconds
from harness.run.stop import stop
from harness.spec.scenario import parse_scenario
from harness.trainers.shared.rendezvous_settings import USUAL_RESTARTS
from harness.units import counted


class InitCommand(TyperCommand):
    """Refuses a training command that has options, unless the user writes `--` before the command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.allow_interspersed_args = False
        separated = "--" in args
        left = super().parse_args(ctx, args)
        command = ctx.params.get("command") or []
        if not separated and any(word.startswith("-") for word in command):
            raise UsageError(f"write -- before your command: chaos init -- {shlex.join(command)}")
        return list(left)


PARSED_BY = {"init": InitCommand}
PAGE = "docs/bring-your-own-trainer.md"
SCENARIOS = "docs/writing-a-scenario.md"
DAY = "docs/gameday.md"
WRITTEN = "mesh: {pp: 2, dp: 2}"


def init(
    command: Annotated[list[str], typer.Argument(help="What starts your training, after --.", metavar="COMMAND…")],
    folder: Annotated[
        pathlib.Path,
        typer.Option("--folder", help="Where the scenarios are written.", callback=path_arguments.folder("--folder")),
    ] = pathlib.Path("chaos"),
    steps: Annotated[int, typer.Option(min=2, help="How many steps are watched.")] = 20,
    backend: BackendOption = "local",
    seed: SeedOption = 1,
    reports: ReportsOption = REPORTS,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing scenarios.")] = False,
) -> None:
    """Watch your own training, unchanged, and write scenarios for it.

    The training runs unchanged for some steps in a copy of the working directory, on two virtual nodes, or on one if
    the command starts its ranks itself. Write {checkpoints} in place of the command's checkpoint folder: every run gets
    an empty folder.

    Example: chaos init -- torchrun --nproc-per-node 2 train.py --out {checkpoints}
    """
    found = recognise(command)
    if not force:
        _refuse_to_write_over(folder, (*(f"{each.name}.yaml" for each in REHEARSALS), GATE))
    ranks = counted(found.ranks, "rank") if found.nodes > 1 else "with ranks of its own"
    said = f"{found.launcher} starts {found.named or 'your training'}, {ranks}, {found.framework}"
    say(f"{said}; set by the harness instead: {', '.join(found.left_out)}" if found.left_out else said)
    if advice := "" if found.nodes > 1 else another_launcher(command, found.script):
        say(f"{advice}.")
    if found.no_restarts:
        say("Your command names no --max-restarts. By default it is 0: the first dead worker ends your job for good.")
        say(f"The scenarios use --max-restarts {USUAL_RESTARTS}. Give your real job the same.")
    here = pathlib.Path.cwd()
    run_dir = reports.resolve() / new_run_id("init")
    with working_in_copy(reports.resolve()) as copy:
        shown = recognise([command[0], *(moved(word, here, copy) for word in command[1:])])
        workload = workload_of(shown, copy)
        if found.nodes > 1:
            each = counted(workload["ranks_per_node"], "rank")
            say(f"It runs on {found.nodes} virtual nodes, {each} on each: LOCAL_RANK begins with 0 on each of them.")
        if THREADS in workload["trainer"].get("env", {}):
            say(f"Each rank has {THREADS}=1, as torchrun gives it to several ranks of one node.")
        facts = _look(workload, copy, run_dir, backend, seed, steps)
    files = tuple(original(name, copy, here) for name in facts.files)
    facts = replace(facts, elastic=found.framework == "torchft", files=files)
    _print_facts(facts, run_dir)
    asked = steps_asked(found.words)
    if facts.steps_total is None and asked > facts.steps_seen:
        facts = replace(facts, steps_total=asked)
    if facts.ranks < workload["nodes"] * workload["ranks_per_node"] and not facts.elastic:
        say(f"  each of the {found.nodes} starts was a job of its own, and all of them wrote into one folder.")
        found = replace(found, nodes=1)
    _say_who_starts_again(found, facts)
    found, remark = with_steps_left(found, facts)
    if remark:
        say(f"  {remark}.")
    _say_what_to_do(found, facts)
    if not strikes_late(facts):
        say("  the faults strike in the first pass over the data: no end of it was seen. Many resumes go wrong later.")
        say(f"  Call chaos matrix resume, or chaos init --steps N (now {steps}), so many that a second pass begins:")
        say("  more than len(loader), the batches of one rank in a pass. A step of several batches makes it fewer.")
    folder.mkdir(parents=True, exist_ok=True)
    texts = propose(workload_of(found, folder, facts.ranks), facts)
    _write(folder, texts | ({GATE: gate_of(list(texts))} if texts else {}), force)


def _say_who_starts_again(found: Recognised, facts: Facts) -> None:
    if found.launcher == "deepspeed":
        say("  deepspeed starts no rank again: a job that loses one is over. torchrun does, with the same script:")
        again = shlex.join([found.script, *found.words])
        say(f"  chaos init --force -- torchrun --nproc-per-node {facts.ranks} {again}")
        say(f"  ({pages_here(f'{PAGE}#deepspeed-and-ray')})")
    if found.nodes == 1:
        say(f"  one start brought {counted(facts.ranks, 'rank')}: the job is one start of your command, on one node.")
        if found.framework == "Ray":
            say(
                "  Ray starts a dead rank again if your script asks for it: RunConfig(failure_config=FailureConfig(3))."
            )
        else:
            say("  Nothing but your command starts a dead rank again. If a scheduler starts it again, write so:")
            say(f"  sh -c 'until YOUR COMMAND; do sleep 1; done' ({pages_here(PAGE)})")


def _say_what_to_do(found: Recognised, facts: Facts) -> None:
    if facts.mesh and not facts.elastic:
        struck = victim_of(facts.mesh)
        kills = f" rank-kill.yaml kills the one at {in_words(struck)}." if struck else ""
        say(f"  ranks told their places in the mesh {in_words(facts.mesh)}.{kills}")
    elif facts.ranks > 1 and not facts.elastic:
        sizes = sizes_asked(found.words)
        asks = f" The command asks for {in_words(sizes)}; their order is not known." if sizes else ""
        say(f"  no mesh in the scenarios: {facts.no_mesh}.{asks}")
        say(f"  To strike places such as {{pp: last}}, write it below workload:, outermost axis first: {WRITTEN}")
        say(f"  ({pages_here(SCENARIOS)})")
    if facts.began_anew:
        say(f"  it was started again, and began at its first step beside the save of step {facts.began_anew}.")
    if option := resume_option(found.script, found.words):
        say(f"  {found.script} takes {option}, which the command lacks.")
    if facts.began_anew or option:
        say("  If a resume needs a flag, let a small script find the newest save:")
        say(f"  {pages_here(PAGE)}#a-resume-that-needs-a-flag")
    if facts.steps_total is None:
        say("  the end of the job was not seen, and no option such as --steps names it. Each scenario does all of it,")
        say(
            f"  or is stopped after its wall_clock. If that is too short: about {steps_enough(facts)} steps are enough."
        )
    elif (whole_s := run_s(facts)) > LONG_S:
        say(f"  one run takes about {seconds(whole_s)}, and each scenario is a run.")
        say(f"  About {steps_enough(facts)} steps are enough. Or strike a job that runs: chaos gameday --attach")
        say(f"  ({pages_here(DAY)})")


def _look(
    workload: dict[str, object], folder: pathlib.Path, run_dir: pathlib.Path, backend: str, seed: int, steps: int
) -> Facts:
    about = {"version": 1, "name": "init", "title": "A first look, without faults", "tags": [FIRST_LOOK]}
    text = yaml.safe_dump({**about, "workload": workload})
    scenario = parse_scenario(text, str(folder / "init.yaml"))
    plan = make_plan(scenario, seed, backend, run_dir.name)
    engine = load_backend(backend)
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    with Display(out) as display:
        return look(plan, run_dir, engine, steps, display, stop)


def _print_facts(facts: Facts, run_dir: pathlib.Path) -> None:
    end = "the job was still running" if facts.steps_total is None else "then the job ended by itself"
    times = f"{facts.step_s * 1e3:.0f} ms each, the first after {facts.start_s:.1f} s"
    say(f"Seen: {counted(facts.steps_seen, 'step')}, {times}; {end}.")
    judged, unseen, later = seen_and_unseen(facts)
    say(f"  judged from: {', '.join(judged)}")
    if later:
        say(f"  to be seen only at its end or at a restart: {', '.join(later)}")
    if unseen:
        say(f"  not seen, so not judged: {', '.join(unseen)}")
    if facts.same_loss is not None:
        say(f"  the loss is {facts.same_loss:.9g} at every step, so it shows nothing of what a resume lost.")
    if facts.saves:
        say(f"  checkpoints at step{'' if len(facts.saves) == 1 else 's'} {', '.join(map(str, facts.saves[:5]))}")
    else:
        say("  no checkpoint was seen. A job that never saves starts again from nothing after every fault.")
    if stray := [
        name for name in facts.files if os.path.isabs(name) and not pathlib.Path(name).is_relative_to(run_dir)
    ]:
        say(f"  its checkpoints go to {stray[0]}, which all runs would share: one run would go on with another's.")
        raise UsageError(
            "nothing was written: call chaos init again with {checkpoints} in the place of that folder. If the command"
            " names none, let your script take it as an argument, or start a small script that does and passes it on: "
            + pages_here(PAGE)
        )


def seen_and_unseen(facts: Facts) -> tuple[list[str], list[str], list[str]]:
    """Returns three lists of kinds of evidence (such as loss): kinds in the log, kinds missing from the log, and kinds
    that a short run without faults cannot show."""
    seen = stood_in_for(facts.told)
    untold = [kind for kind in ITEMS if kind not in seen and kind not in BY_FAULT]
    due = {"restores"} if facts.steps_total is not None else {"restores", "exits"}
    judged = dict.fromkeys(ITEMS[kind] for kind in ITEMS if kind in seen)
    unseen = dict.fromkeys(ITEMS[kind] for kind in untold if kind not in due)
    return list(judged), list(unseen), [ITEMS[kind] for kind in untold if kind in due]


def _refuse_to_write_over(folder: pathlib.Path, names: Iterable[str]) -> None:
    if taken := [name for name in names if os.path.lexists(folder / name)]:
        raise UsageError(
            f"{folder}: {', '.join(taken)} exists already; use --force to overwrite it or --folder for another place"
        )


def _write(folder: pathlib.Path, texts: dict[str, str], force: bool) -> None:
    for name, text in texts.items():
        if force:
            (folder / name).unlink(missing_ok=True)
        try:
            with (folder / name).open("x") as file:
                file.write(text)
        except FileExistsError:
            _refuse_to_write_over(folder, [name])
        say(f"Wrote {folder / name}")
    if texts:
        first = folder / next(iter(texts))
        out.print(f"Next: [bold]chaos run {safe(str(first))}[/]", soft_wrap=True)
        out.print(f"Is its resume right?  [bold]chaos matrix resume {safe(str(first))}[/]", soft_wrap=True)
        out.print(f"Then: [bold]chaos gate {safe(str(folder / GATE))}[/]", soft_wrap=True)
