"""Judges the bus bandwidth of all-reduce (2(N−1)/N × bytes / time for N ranks), within and between nodes."""

from __future__ import annotations

from harness.preflight.checks.contract import Check, Judged, Reduced, Seen, doubt, rate

SLOW = 0.65
LARGE = 2**22  # bytes: what is smaller is a matter of latency
WORDS = {"all": "all ranks", "within": "ranks of one node", "between": "one rank of each node"}


class AllReduce(Check):
    title = "All-reduce"
    order = 6
    probe = "all_reduce"
    least = SLOW
    cause = "a slow link or a slow rank, other settings of NCCL, or traffic of others"

    def judge(self, seen: Seen) -> Judged:
        if seen.plan.workload.world_size < 2:
            return Judged(not_judged="one rank reduces with nobody")
        told = seen.of("all_reduce", Reduced)
        apart = ("within", "between")[: seen.plan.workload.nodes] if seen.plan.workload.ranks_per_node > 1 else ()
        kinds = ["all", *apart]
        lacking = [WORDS[kind] for kind in kinds if kind not in {values.which for _, values in told}]
        findings = seen.silent("an all-reduce", seen.nodes if told else ())
        if told and lacking:
            findings.append(doubt(f"no all-reduce of {' and of '.join(lacking)} was told"))
        figures, small = dict[str, float](), dict[str, float]()
        for each, values in told:
            who = f" on {each.node}" if values.which == "within" else ""
            for size, speed in values.bus_bandwidths():
                name = f"bus bandwidth, {WORDS[values.which]}{who}, {size:,} bytes (bytes/s)"
                (figures if size >= LARGE else small)[name] = speed
        widths = dict.fromkeys(f"{WORDS[values.which]} {rate(values.bus_bandwidth)}" for _, values in told)
        words = f"bus bandwidth at the largest size: {'; '.join(widths) or 'none'}"
        return Judged(words, findings, figures, small)


CHECK = AllReduce()
