"""Each rank restores its own part of a checkpoint that ranks save in parts.

A restore is judged only if as many ranks restart as the checkpoint has parts, and if the tensors of the parts differ.
If all ranks saved the same tensors, a rank may restore any part.
"""

from harness.judge.guarantee import Analysis, Breaches, Guarantee, breach


def breaches(evidence: Analysis) -> Breaches:
    for restart in evidence.restarts[1:]:
        for each, step in restart.states:
            parts = evidence.saves.parts.get(step, {})
            mine, taken = parts.get(each.rank, {}), each.parts or (each.source,)
            if len(parts) != restart.epoch.size or len(parts) < 2 or set(taken) & mine.keys():
                continue
            owners = {rank: paths[place] for place in taken for rank, paths in parts.items() if place in paths}
            if owners and "" not in {*mine.values(), *owners.values()} and not set(owners.values()) & {*mine.values()}:
                whose = " and ".join(f"rank {rank}'s" for rank in sorted(owners))
                yield breach(f"rank {each.rank} restored {whose} part of the checkpoint of step {step}", each)


def nothing(evidence: Analysis) -> str:
    several = any(len(ranks) > 1 for ranks in evidence.saves.parts.values())
    return evidence.no_restart() or ("" if several else "no checkpoint was saved in parts")


GUARANTEE = Guarantee(breaches, rests_on=("checkpoints", "restores"), nothing=nothing)
