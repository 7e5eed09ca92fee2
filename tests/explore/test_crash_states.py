"""The legal states after a crash, and whether the chosen ones show all that the others show."""

import io
from collections.abc import Callable, Iterable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from harness.errors import ChaosError
from harness.explore.crash_states import Crashes, CrashState
from harness.explore.disk import Disk, disk_of
from harness.explore.file_systems import PROFILES, Change, changes_of
from harness.explore.operations import Kind, Operation

Save = Callable[["Recording", int], None]


class Recording:
    """Operations as a saver makes them. A file's content is one byte that tells its step, repeated."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.data = bytearray()
        self.inodes: dict[str, int] = {}
        self.names: dict[int, str] = {}
        self.finished: dict[int, int] = {}  # step → number of the operation after which it is finished

    def add(self, kind: Kind, path: str, **more: int | str) -> None:
        self.operations.append(Operation(kind, path, self.inodes.get(path, 0), **more))  # type: ignore[arg-type]

    def create(self, path: str, kind: Kind = Kind.CREATE) -> None:
        self.inodes[path] = len(self.names) + 1
        self.names[self.inodes[path]] = path
        self.add(kind, path)

    def write(self, path: str, step: int, size: int = 3) -> None:
        self.add(Kind.WRITE, path, size=size, data=len(self.data))
        self.data += bytes([step]) * size

    def file(self, path: str, step: int, *, flush: bool = True) -> None:
        if path in self.inodes:
            self.add(Kind.TRUNCATE, path)
        else:
            self.create(path)
        self.write(path, step)
        if flush:
            self.add(Kind.FSYNC, path)
        self.add(Kind.CLOSE, path)

    def rename(self, old: str, new: str) -> None:
        self.add(Kind.RENAME, old, other=new)
        self.inodes[new] = self.inodes.pop(old)

    def done(self, step: int) -> None:
        self.finished[step] = len(self.operations)

    def content(self, disk: Disk, path: str) -> bytes | None:
        return disk.read(path, io.BytesIO(self.data)) if path in disk.files else None


def careful(save: Recording, step: int) -> None:
    """A file beside the old one, flushed, renamed over it, and its folder flushed."""
    save.file("new", step)
    save.rename("new", "model")
    save.add(Kind.FSYNC_DIR, "")
    save.done(step)


def not_flushed(save: Recording, step: int) -> None:
    save.file("new", step, flush=False)
    save.rename("new", "model")
    save.add(Kind.FSYNC_DIR, "")
    save.done(step)


def removed_first(save: Recording, step: int) -> None:
    save.file("new", step)
    if "model" in save.inodes:
        save.add(Kind.UNLINK, "model")
    save.rename("new", "model")
    save.add(Kind.FSYNC_DIR, "")
    save.done(step)


def in_place(save: Recording, step: int) -> None:
    save.file("model", step)
    save.add(Kind.FSYNC_DIR, "")
    save.done(step)


def two_shards_in_place(save: Recording, step: int) -> None:
    save.file("a", step)
    save.file("b", step)
    save.add(Kind.FSYNC_DIR, "")
    save.done(step)


SAVERS: list[Save] = [careful, not_flushed, removed_first, in_place, two_shards_in_place]


def recorded(saver: Save) -> Recording:
    recording = Recording()
    saver(recording, 1)
    saver(recording, 2)
    return recording


def outcome(recording: Recording, changes: list[Change], state: CrashState) -> str:
    """What a simple trainer makes of a state: it loads `model`, or the shards `a` and `b`, without a check."""
    disk = disk_of(changes, state.kept)
    due = max((step for step, number in recording.finished.items() if number <= state.during), default=0)
    parts = [recording.content(disk, path) for path in ("model", "a", "b")]
    loaded = [part for part in parts if part is not None]
    if not loaded:
        return "nothing there" if due else "ok"
    steps = {byte for part in loaded for byte in part}
    if any(len(part) != 3 for part in loaded):
        return "broken"
    if len(steps) > 1 or 0 in steps:
        return "mixed"
    return "ok" if steps.pop() >= due else "older"


def outcomes(recording: Recording, changes: list[Change], states: Iterable[CrashState]) -> set[str]:
    return {outcome(recording, changes, state) for state in states}


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("saver", SAVERS)
def test_the_chosen_states_show_all_that_every_legal_state_shows(profile: str, saver: Save) -> None:
    recording = recorded(saver)
    changes = changes_of(profile, recording.operations)
    crashes = Crashes(changes)
    every, chosen = list(crashes.every_state()), list(crashes.chosen_states(recording.names))
    assert outcomes(recording, changes, chosen) == outcomes(recording, changes, every)
    assert {state.kept for state in chosen} <= {state.kept for state in every}


@pytest.mark.parametrize(
    ("profile", "saver", "found"),
    [
        *((profile, careful, {"ok"}) for profile in PROFILES if profile != "s3"),
        ("posix", not_flushed, {"ok", "broken", "mixed"}),
        ("ext4", not_flushed, {"ok", "broken"}),
        ("nfs", not_flushed, {"ok"}),
        ("nfs", removed_first, {"ok", "nothing there"}),
        ("posix", in_place, {"ok", "broken", "mixed"}),
        ("nfs", two_shards_in_place, {"ok", "broken", "mixed"}),
        ("s3", two_shards_in_place, {"ok", "mixed"}),
    ],
)
def test_a_file_system_keeps_what_it_promises(profile: str, saver: Save, found: set[str]) -> None:
    recording = recorded(saver)
    changes = changes_of(profile, recording.operations)
    assert outcomes(recording, changes, Crashes(changes).chosen_states(recording.names)) == found


@given(st.sampled_from(list(PROFILES)), st.sampled_from(SAVERS), st.data())
def test_a_crash_keeps_a_legal_set(profile: str, saver: Save, data: st.DataObject) -> None:
    recording = recorded(saver)
    changes = changes_of(profile, recording.operations)
    states = list(Crashes(changes).chosen_states(recording.names))
    assume(states)
    state = data.draw(st.sampled_from(states))
    for change in changes:
        if change.durable < state.during:
            assert change.number in state.kept
        if change.number in state.kept:
            assert change.operation <= state.during
            assert change.after <= state.kept


@pytest.mark.parametrize("profile", PROFILES)
def test_a_file_that_is_replaced_is_old_or_new_in_a_bucket_and_nothing_between(profile: str) -> None:
    recording = recorded(in_place)
    changes = changes_of(profile, recording.operations)
    found = {
        recording.content(disk_of(changes, state.kept), "model")
        for state in Crashes(changes).chosen_states(recording.names)
    }
    assert {b"\1\1\1", b"\2\2\2"} <= found
    assert (found <= {None, b"\1\1\1", b"\2\2\2"}) == (profile == "s3")


def test_a_long_write_is_torn_at_sectors_and_pages() -> None:
    recording = Recording()
    recording.create("model")
    recording.write("model", 1, size=3 * 4096)
    cuts = {change.parts[0].offset for change in changes_of("nfs", recording.operations) if change.inode}  # type: ignore[union-attr]
    assert cuts == {0, 512, 4096, 8192, 3 * 4096 - 512}


def test_a_folder_of_a_bucket_moves_object_by_object() -> None:
    recording = Recording()
    recording.create("tmp", Kind.MKDIR)
    for name in ("tmp/a", "tmp/b"):
        recording.file(name, 1)
    recording.rename("tmp", "step-1")
    recording.done(1)
    changes = changes_of("s3", recording.operations)
    seen = [
        sorted(disk_of(changes, state.kept, empty_folders=False).files)
        for state in sorted(Crashes(changes).every_state(), key=lambda state: len(state.kept))
    ]
    unique = [row for number, row in enumerate(seen) if row not in seen[:number]]
    assert unique == [
        [],
        ["tmp/a"],
        ["tmp/a", "tmp/b"],
        ["step-1/a", "tmp/a", "tmp/b"],
        ["step-1/a", "step-1/b", "tmp/a", "tmp/b"],
        ["step-1/a", "step-1/b", "tmp/b"],
        ["step-1/a", "step-1/b"],
    ]


def test_a_link_that_is_renamed_keeps_its_target_and_a_bucket_has_none() -> None:
    recording = Recording()
    recording.create("new", Kind.SYMLINK)
    recording.operations[-1] = Operation(Kind.SYMLINK, "new", 1, other="step-1")
    recording.rename("new", "latest")
    changes = changes_of("posix", recording.operations)
    assert disk_of(changes, range(len(changes))).links == {"latest": "step-1"}
    with pytest.raises(ChaosError, match="symbolic link new"):
        changes_of("s3", recording.operations)
