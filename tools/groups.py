"""Which tests run beside each other, and in which order.

`make test` has six workers for two cores, as most real jobs wait more than they compute. Tests of one group go one
after the other: those of faults on virtual nodes of this machine, of the conformance of such nodes, and of each other
engine. A group is a file otherwise, and some tests of minutes are taken alone. What takes longest comes first,
then the other files that start jobs, then all others, by whoever is free.
"""

import re
from typing import Any

import pytest

GROUPS = {
    "nodes": ("backends/local/", "faults/"),
    "docker": ("backends/docker/", "monitoring/test_prometheus"),
    "slurm": ("backends/slurm/", "e2e/test_bring_your_own_trainer.py::test_on_slurm"),
    "places": (),
    "kubernetes": ("backends/kubernetes/",),
}
# Where the node of a conformance test is.
PLACES = {"local": "places"} | {engine: engine for engine in ("docker", "slurm", "kubernetes")}
LONGEST = (  # the longest first: groups, and how the names of files begin
    "e2e/test_bring",
    "slurm",
    "docker",
    "e2e/test_scenarios",
    "nodes",
    "preflight/test_real",
    "mutants/test_real",
    "e2e/",
    "places",
    "tools/test_kills",
    "observer/",
    "kubernetes",
    "preflight/test_hostile",
    "forecast/test_campaigns",
    "matrix/",
    "explore/",
    "fuzz/",
    "run/",
    "cli/test_wheel",
    "gate/test_comparison",
)
# Where tests share no fixture, or one that is soon made beside what they take.
TAKEN_ALONE = ("matrix/test_resume_matrix", "matrix/test_checkpoint_matrix", "e2e/test_bring_your_own_trainer")


def group_of(nodeid: str) -> str:
    """Tests of one group run in one worker, in their order."""
    test = nodeid.removeprefix("tests/")
    file, _, name = test.partition("::")
    if file.startswith("conformance/test_conformance_"):
        place = re.search(r"\[(\w+)", name)
        return PLACES.get(place[1], file) if place else file
    alone = nodeid if file.startswith(TAKEN_ALONE) else file
    return next((group for group, places in GROUPS.items() if test.startswith(places)), alone)


def rank(group: str, slow: bool) -> int:
    """The place of a group in the order of work."""
    name = group.removeprefix("tests/")
    return next((at for at, begin in enumerate(LONGEST) if name.startswith(begin)), len(LONGEST) + (not slow))


def sort(items: list[pytest.Item]) -> None:
    of = {item: group_of(item.nodeid) for item in items}
    slow = {of[item] for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: rank(of[item], of[item] in slow))


def scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

        def _assign_work_unit(self, node: Any) -> None:
            """A worker is told its next group while it is at the last tests of one. If these take long, the group that
            waits behind them is the last of all, and not the longest that is left."""
            at_work = [group for group, tests in self.assigned_work.get(node, {}).items() if not all(tests.values())]
            if at_work and self.workqueue and rank(at_work[0], False) < len(LONGEST):
                self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
            super()._assign_work_unit(node)

    return Groups(config, log)
