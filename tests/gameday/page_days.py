"""Views of days that never ran, for tests of the page."""

from collections.abc import Sequence

from harness.gameday.day_view import ActView, DayView, FaultView, NewsView, RanksView, RankView, SceneView

EVIL = '<img src=x onerror="document.title=1"><script>document.title=2</script>\u202e'


def scenes() -> list[SceneView]:
    done = FaultView("rank-kill-kill", "SIGKILL to the worker of rank 1", "healed", False)
    now = FaultView("silent-hang-silence", f"rank 1: everything stopped {EVIL}", "effect", True)
    later = FaultView("spot-evict-evict", "node 0 reclaimed with a 3s notice", "waiting", False)
    return [
        SceneView("scenario", "rank-kill", "over", [ActView("rank-kill", "over", "settled", "", [done])]),
        SceneView("rest", "rest for 5s or longer", "over"),
        SceneView(
            "scenario",
            "silent-hang",
            "now",
            [ActView("silent-hang", "now", "", "https://example.org/runbooks/hang", [now])],
        ),
        SceneView("pause", "Is everybody back at their desk?", "next"),
        SceneView("scenario", "spot-evict", "next", [ActView("spot-evict", "next", "", "", [later])]),
    ]


def view(count: int = 4, feed: Sequence[NewsView] = (), **more: object) -> DayView:
    listed = [RankView(rank, f"node{rank // 8}", 1000 - 3 * (rank == 9), 80.0 + rank % 7, 0.1) for rank in range(count)]
    whole = count <= 64
    given: dict[str, object] = {
        "run_id": "pre-launch-20260301-120000-1a2b",
        "title": "The first week of a run, in a few minutes",
        "role": "master",
        "elapsed_s": 84.2,
        "state": "acting",
        "saying": "Rehearsing: silent-hang.",
        "blocked": False,
        "outcome": "",
        "phase": f"checkpoint.write {EVIL}",
        "step": 1000,
        "furthest_step": 1000,
        "steps": 3000,
        "loss": 3.2173,
        "committed_step": 950,
        "idle_s": 0.1,
        "standing": False,
        "steps_go": True,
        "ranks": RanksView(count, listed if whole else listed[:8], whole, [997, 1000, 1000], [80.0, 83.0, 86.0]),
        "scenes": scenes(),
        "at_work": 1,
        "outage": [("detect", 1.2), ("startup", 0.8), ("recompute", 0.3), (EVIL, 1.1)],
        "outage_open": True,
        "wasted": "21.3 GPU-s",
        "wasted_words": "by faults; in all 38.4 GPU-s of 168.0 GPU-s (22.9 %) · $0.03",
        "wasted_in_all": "38.4 GPU-s",
        "counted_s": 4.2,
        "budget": [("38.4 GPU-s of 0.1 GPU-hours", 0.107)],
        "steps_per_s": 12.1,
        "feed": feed
        or [
            NewsView(80.1, "alert", f"TrainingStalled firing: {EVIL}"),
            NewsView(61.0, "person", "Ada: note: loss is flat"),
        ],
        "nodes": ["node0", "node1"],
        "fault_free": True,
    }
    return DayView(**{**given, **more})  # type: ignore[arg-type]
