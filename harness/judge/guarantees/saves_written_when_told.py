"""A process reports a checkpoint as committed only after the process has written the checkpoint.

The run fails if at least two saves are reported as committed before their phase `checkpoint.write` begins.
"""

import itertools
from operator import attrgetter

from harness.judge.facts.store import Save
from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach
from harness.judge.thresholds import EARLY_MIN
from harness.timeline.lookups import NEVER, first_from, grouped
from harness.timeline.save_events import COMMITTED


def breaches(evidence: Analysis) -> Breaches:
    begins = grouped((event["process"], event["at"]) for event in evidence.run.writes)
    saves = grouped((save.process, save) for save in evidence.saves.all if save.begun is not None)
    early = list[tuple[Save, int]]()  # each with the begin of its write
    for process, moments in begins.items():
        mine = saves.get(process, [])
        for save, after in itertools.zip_longest(mine, mine[1:]):
            began = first_from(moments, save.at)
            if save.how == COMMITTED and save.last_at < began < (after.at if after else NEVER):
                early.append((save, began))
    if len(early) >= EARLY_MIN:
        steps = evidence.run.steps
        ends = grouped(zip(steps.process.tolist(), steps.end.tolist(), strict=True))
        at_once = [save for save, began in early if first_from(ends.get(save.process, []), save.last_at) >= began]
        first = min((save for save, _ in early), key=attrgetter("at"))
        often = f"{len(early)} times, first that of step {first.step}"
        text = f"checkpoints were told as committed before they were written ({often})"
        if len(at_once) >= EARLY_MIN:
            yield breach(text, *at_once)
        yield breach(text, first.word)


GUARANTEE = Guarantee(breaches, rests_on=("checkpoints",), explained_by=("saves.whole",))
