"""What the harness notes of checkpoints while a job saves: what is finished, what changes, goes away, and is left."""

import os
import pathlib
import tempfile
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import small_jobs

pytest.importorskip("torch", reason="torch is missing: make setup")
from checkpoint_files import WRITERS, save, state, write

from harness.backends.contract import backend_names, load_backend
from harness.backends.local.backend import BACKEND as LOCAL
from harness.faults.contract import CheckpointPlace
from harness.log import untrusted_files
from harness.plan.run_plan import Plan
from harness.run import store_watch
from harness.run.job import execute
from harness.run.store_watch import Publications, hidden
from harness.trainers.checkpoints.contract import AUTO, Listing
from harness.trainers.checkpoints.shared import checkpoint_folder, digests

PUBLISHED, REMOVED, LEFT, UNSEEN = (f"checkpoint.{each}" for each in ("published", "removed", "left", "unseen"))


class Noted:
    """A watch whose looks are made by hand."""

    def __init__(self, run_dir: pathlib.Path, why_hidden: str | None = None):
        self.run_dir, self.events = run_dir, list[dict[str, Any]]()
        folders = ("checkpoints", "out")
        self.watch = Publications(self, CheckpointPlace(), self.emit, "a-run", why_hidden, folders)  # type: ignore[arg-type]

    def emit(self, event: str, **fields: Any) -> None:
        self.events.append({"event": event} | fields)

    def look(self, times: int = 2) -> list[Any]:
        """The steps noted now."""
        before = len(self.events)
        for _ in range(times):
            self.watch.look()
        return [event["step"] for event in self.events[before:] if event["event"] == PUBLISHED]

    def of(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == name]

    def left(self) -> dict[str, Any]:
        self.look()
        self.watch.tell_what_is_left()
        return self.of(LEFT)[-1]


@pytest.mark.parametrize("layout", WRITERS)
def test_each_is_noted_once_with_what_it_holds_until_it_goes_away(tmp_path: pathlib.Path, layout: str) -> None:
    noted, root = Noted(tmp_path), tmp_path / "checkpoints"
    assert noted.look() == [] and (noted.left()["checkpoints"], noted.left()["count"], noted.of(UNSEEN)) == ([], 0, [])
    write(root, layout, 20)
    assert noted.look(1) == [] and noted.look(1) == [20] and noted.look() == []
    write(root, layout, 100)
    assert noted.look() == [100]
    for told in noted.of(PUBLISHED):
        assert told["layout"] == layout and len(told["sha256"]) == len(told["tensors"]) == 64
        assert told["tensor_count"] == len(told["tensor_digests"]) >= 2 and told["zero_bytes"] == 0
        assert told["tensor_bytes"] == sum(int(each.split()[0]) for each in told["tensor_digests"])
    gone, stays = (event["path"] for event in noted.of(PUBLISHED))
    (tmp_path / gone).rename(tmp_path / "aside")
    noted.look(1)
    (tmp_path / "aside").rename(tmp_path / gone)
    assert noted.look() == [] and noted.of(REMOVED) == [], "away for one look is not gone"
    (tmp_path / gone).rename(tmp_path / "aside")
    noted.look()
    assert noted.of(REMOVED) == [{"event": REMOVED, "path": gone, "step": 20}]
    left = noted.left()
    assert [(each["path"], each["step"], each["whole"]) for each in left["checkpoints"]] == [(stays, 100, True)]
    assert left["count"] == 1 and left["layout"] == layout
    write(root, layout, 20)
    assert noted.look() == [20] and len(noted.of(REMOVED)) == 1


def test_a_change_is_noted_with_another_digest(tmp_path: pathlib.Path) -> None:
    """Of its tensors, too, if these changed: not where only the step, the files and the random state are others."""
    noted, path = Noted(tmp_path), tmp_path / "checkpoints" / "ckpt_20.pt"
    noted.look(3)
    before_ns = time.monotonic_ns()
    save(path, state(20))
    assert noted.look(1) == [] and noted.look(1) == [20]
    assert noted.of(PUBLISHED)[0]["looked_ns"] < before_ns, "the look that showed it first began later"
    save(tmp_path / "checkpoints" / "ckpt_40.pt", state(20) | {"step": 40})
    assert noted.look() == [40]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    changed_ns = time.monotonic_ns()
    assert noted.look() == [20]
    first, same, changed = noted.events
    assert before_ns < changed["looked_ns"] < changed_ns
    assert first["tensors"] == same["tensors"] != changed["tensors"]
    assert len({event["sha256"] for event in noted.events}) == 3
    kept = Counter(first["tensor_digests"]) & Counter(changed["tensor_digests"])
    assert kept.total() == first["tensor_count"] - 1


def test_what_is_not_finished_is_not_noted_and_a_busy_store_hides_nothing(tmp_path: pathlib.Path) -> None:
    noted, path = Noted(tmp_path), tmp_path / "checkpoints" / "ckpt_20.pt"
    save(path, state(20))
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    assert noted.look(4) == []
    cut = {"path": "checkpoints/ckpt_20.pt", "step": 20, "whole": False, "bytes": len(whole) - 100}
    assert noted.left()["checkpoints"] == [cut]
    path.write_bytes(whole)
    assert noted.look() == [20]
    for step in range(30, 70, 10):  # something is written between any two looks
        write(tmp_path / "checkpoints", "torch_file", step)
        assert noted.look(1) == ([step - 10] if step > 30 else [])


def test_what_changes_while_it_is_read_is_noted_later(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted, path, content = Noted(tmp_path), tmp_path / "checkpoints" / "ckpt_20.pt", digests.content
    save(path, state(20))

    def changing(*given: Any) -> digests.Content:
        found = content(*given)
        save(path, state(21))
        monkeypatch.undo()
        return found

    monkeypatch.setattr(digests, "content", changing)
    assert noted.look() == [] and noted.look() == [20]
    saved = checkpoint_folder.CheckpointFolder.look(tmp_path, "checkpoints")
    assert noted.events[0]["sha256"] == digests.content(saved, saved.files).sha256


def test_one_that_fewer_ranks_save_again_is_published_and_one_that_is_being_removed_is_not(
    tmp_path: pathlib.Path,
) -> None:
    noted, folder = Noted(tmp_path / "ranks"), tmp_path / "ranks" / "checkpoints"
    for ranks in (3, 2):
        for rank in range(ranks):
            save(folder / f"ckpt_20_rank{rank}.pt", state(20 + ranks))
        assert noted.look() == [20]
        (folder / "ckpt_20_rank2.pt").unlink(missing_ok=True)
    noted = Noted(tmp_path)
    write(tmp_path / "checkpoints", "reference", 20)
    assert noted.look() == [20]
    (tmp_path / "checkpoints" / "step-00000020" / "__0_0.distcp").unlink()
    assert noted.look(4) == [] and noted.of(REMOVED) == []
    assert [each["whole"] for each in noted.left()["checkpoints"]] == [False]


# What cannot be seen


def test_what_is_not_looked_into_is_told(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of no known layout, a look that fails, and more saves or files than are looked at."""
    noted, root = Noted(tmp_path), tmp_path / "checkpoints"
    root.mkdir()
    (root / "state.json").write_text("{}")
    assert noted.left()["count"] == 0
    noted.look(4)
    noted.watch.begin()
    write(root, "torch_file", 1, 2, 3)
    with monkeypatch.context() as fails:
        fails.setattr(store_watch, "list_checkpoints", lambda *_: dict[str, str]()["what"])
        noted.watch.end()
    assert [event["why"] for event in noted.of(UNSEEN)] == [
        "checkpoints/ holds files, and none looks like a checkpoint that is known",
        "looking at checkpoints/ failed: KeyError: 'what'",
    ]
    for part, limit, most in ((store_watch, "PUBLISHED_MAX", 2), (checkpoint_folder, "ENTRIES_MAX", 3)):
        more = Noted(tmp_path)
        with monkeypatch.context() as less:
            less.setattr(part, limit, most)
            less.setattr(store_watch, "LISTED_MAX", 3)
            more.look(4)
        held = ["tensor_digests" in event for event in more.of(PUBLISHED)]
        assert (held == [True, False] or limit == "ENTRIES_MAX") and len(more.of(UNSEEN)) == 1


@pytest.fixture
def open_folder() -> Iterator[pathlib.Path]:
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder).chmod(0o755)
        yield pathlib.Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("hides", ["ckpt_40.pt", "inner"])
def test_what_the_harness_may_not_read_is_told(open_folder: pathlib.Path, hides: str) -> None:
    noted, root = Noted(open_folder), open_folder / "checkpoints"
    write(root, "torch_file", 20, 40)
    (root / "inner").mkdir()
    (root / hides).chmod(0)
    os.seteuid(65534)
    try:
        noted.look(4)
    finally:
        os.seteuid(0)
    assert [event["path"] for event in noted.of(UNSEEN)] == [f"checkpoints/{hides}"]
    assert [event["step"] for event in noted.of(PUBLISHED)] == ([20] if hides == "ckpt_40.pt" else [20, 40])


@pytest.mark.parametrize("backend", backend_names())
@pytest.mark.parametrize("store", ["directory", "s3"])
def test_a_hidden_store_is_told_at_the_begin_and_never_looked_at(
    tmp_path: pathlib.Path, backend: str, store: str
) -> None:
    plan = small_jobs.job("saves", ["true"])
    plan = Plan.from_json(plan.to_json() | {"workload": {"trainer": "reference", "checkpoint": {"store": store}}})
    why = hidden(plan, load_backend(backend))
    assert bool(why) == (store == "s3" or backend == "kubernetes") and (not why or "kubernetes" in why or "s3" in why)
    noted = Noted(tmp_path, why)
    write(tmp_path / "checkpoints", "torch_file", 20)
    noted.watch.begin()
    noted.watch.end()
    assert [event["event"] for event in noted.events] == ([UNSEEN] if why else [PUBLISHED, LEFT, "files.left"])
    assert not why or noted.events == [{"event": UNSEEN, "why": why}]


def test_a_look_that_does_not_end_holds_nothing_up(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted, released = Noted(tmp_path), threading.Event()
    monkeypatch.setattr(store_watch, "END_S", 0.2)
    monkeypatch.setattr(store_watch, "list_checkpoints", lambda *_: released.wait() and Listing(AUTO, ()))
    write(tmp_path / "checkpoints", "torch_file", 20)
    noted.watch.begin()
    noted.watch.end()
    assert [event["event"] for event in noted.events] == [UNSEEN]
    released.set()


# A real job

TRAINER = textwrap.dedent("""
    import json, pathlib, struct, sys, time
    from harness.node.emitter import Emitter
    folder = pathlib.Path(sys.argv[1]) / "checkpoints"
    emit = Emitter.open("trainer", rank=0, local_rank=0, world_size=1)
    emit("started")
    emit("rendezvous", world_size=1)
    emit("restored", step=0, source="x", fallback=[])
    def save(step, path, content):
        header = json.dumps({"a": {"dtype": "U8", "shape": [len(content)], "data_offsets": [0, len(content)]}}).encode()
        path.with_suffix(".tmp").write_bytes(struct.pack("<Q", len(header)) + header + content)
        path.with_suffix(".tmp").rename(path)
    for step in range(1, 31):
        begin = time.monotonic_ns()
        time.sleep(0.05)
        emit("step", step=step, begin_ns=begin, loss=1.0)
        if step % 10 == 0:
            save(step, folder / f"step-{step}.safetensors", bytes(90) if step == 20 else b"%d" % step * 50)
        if step == 28:
            (folder / "step-10.safetensors").unlink()
    emit("exiting", code=0, reason="completed", step=30)
""")


@pytest.mark.slow
@pytest.mark.usefixtures("plain")
def test_a_job_is_watched_to_its_last_save(tmp_path: pathlib.Path) -> None:
    (tmp_path / "trainer.py").write_text(TRAINER)
    plan = small_jobs.job("saves", ["{python}", "-S", str(tmp_path / "trainer.py"), "{run_dir}"], steps=30)
    assert execute(plan, tmp_path / "run", LOCAL).outcome == "completed"
    *seen, last = small_jobs.told(tmp_path / "run", PUBLISHED, REMOVED, LEFT, UNSEEN, "run.finished", role="harness")
    kinds = [event["event"] for event in seen]
    assert kinds[0] == PUBLISHED and kinds[-1] == LEFT and Counter(kinds) == {PUBLISHED: 3, REMOVED: 1, LEFT: 1}
    published = {event["step"]: event for event in seen if event["event"] == PUBLISHED}
    assert [published[step]["zero_bytes"] for step in (10, 20, 30)] == [0, 90, 0]
    assert len({event["tensors"] for event in published.values()}) == 3
    assert [event["step"] for event in seen if event["event"] == REMOVED] == [10]
    assert [each["step"] for each in seen[-1]["checkpoints"]] == [30, 20]
    assert last["event"] == "run.finished"


def test_what_lies_beside_the_saves_at_the_end_is_told(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its name is; not the saves themselves, nor one that is being written, nor what no node may write."""
    noted = Noted(tmp_path)
    write(tmp_path / "checkpoints", next(iter(WRITERS)), 20)
    unfinished = "checkpoints/.tmp-step-30/a.distcp"
    mine = "out/eval/of-a-run.json"
    for name in ("checkpoints/best.json", "out/eval/1.json", mine, "logs/node0.log", "out/" + "x" * 255, unfinished):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    pathlib.Path(os.fsdecode(os.fsencode(tmp_path) + b"/out/\xff\n.txt")).write_text("1")
    noted.left()
    told = ["checkpoints/best.json", "out/eval/1.json", "out/eval/of-{run_id}.json", "out/" + "x" * 255]
    told += ["out/\\udcff\n.txt"]
    assert noted.of("files.left")[-1] == {"event": "files.left", "files": told, "count": 5}
    with monkeypatch.context() as closed:
        closed.setattr(os, "access", lambda name, *_, **__: name != "eval")
        noted.left()
    assert len(noted.of("files.left")) == 1, "a folder that may not be read hides what is in it"
    monkeypatch.setattr(store_watch, "BESIDE_MAX", 2)
    noted.left()
    last = noted.of("files.left")[-1]
    assert (len(last["files"]), last["count"]) == (2, 5)
    for part, limit, most in ((checkpoint_folder, "ENTRIES_MAX", 1), (untrusted_files, "DEPTH_MAX", 0)):
        with monkeypatch.context() as less:
            less.setattr(part, limit, most)
            noted.left()
        assert len(noted.of("files.left")) == 2, "nor is a folder told of which only a part was looked at"


def test_files_beside_the_saves_that_hold_tensors_are_looked_into(tmp_path: pathlib.Path) -> None:
    """An export; a text of that name holds none."""
    noted = Noted(tmp_path)
    write(tmp_path / "checkpoints", next(iter(WRITERS)), 20)
    save(tmp_path / "out" / "of-a-run.pt", state(20)["model"])
    (tmp_path / "out" / "notes.pt").write_text("no tensors")
    noted.left()
    (held,) = noted.of("files.left")[-1]["holding_tensors"]
    assert held["file"] == "out/of-{run_id}.pt"
    assert {*held["tensor_digests"]} <= {*noted.of(PUBLISHED)[-1]["tensor_digests"]}
