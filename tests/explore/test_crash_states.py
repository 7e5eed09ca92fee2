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
from harness.explore.recorded_job import first_removal

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


def recorded(*savers: Save) -> Recording:
    recording = Recording()
    for step, saver in enumerate(savers if len(savers) > 1 else savers * 2, 1):
        saver(recording, step)
    return recording


def numbered_parts(save: Recording, step: int) -> None:
    """Model, optimizer and random state in files that differ in a number alone, and then a marker that is flushed."""
    save.create(f"step-{step}", Kind.MKDIR)
    for number in range(4):
        save.file(f"step-{step}/{number}.bin", step, flush=False)
    save.file(f"step-{step}/done", step)
    save.add(Kind.FSYNC_DIR, f"step-{step}")
    save.done(step)


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


@pytest.mark.parametrize("profile", ["posix", "ext4"])
def test_each_file_of_a_save_is_lost_alone(profile: str) -> None:
    recording = recorded(*[numbered_parts] * 3)
    changes = changes_of(profile, recording.operations)
    found = set[str]()
    for state in Crashes(changes, list(recording.finished.values())).chosen_states(recording.names):
        disk = disk_of(changes, state.kept)
        due = max(step for step, number in recording.finished.items() if number <= state.during)
        own = [path for path in recording.names.values() if path.startswith(f"step-{due}/")]
        newer = [path for path in disk.files if path.startswith(f"step-{due + 1}/")]
        lost = [path for path in own if recording.content(disk, path) != bytes([due]) * 3]
        found |= set(lost) if len(lost) == 1 and not newer else set()
    assert found == {f"step-{step}/{number}.bin" for step in (2, 3) for number in range(4)}


def keeps_all(save: Recording, step: int) -> None:
    """A folder a save, a log that grows, and a pointer that is replaced each time."""
    numbered_parts(save, step)
    if "log" not in save.inodes:
        save.create("log")
    save.add(Kind.WRITE, "log", offset=9 * step, size=9, data=0)
    save.file("new", step)
    save.rename("new", "latest")
    save.done(step)


def keeps_three(save: Recording, step: int) -> None:
    numbered_parts(save, step)
    save.done(step)
    if step > 3:
        for name in ("0.bin", "1.bin", "2.bin", "3.bin", "done"):
            save.add(Kind.UNLINK, f"step-{step - 3}/{name}")
        save.add(Kind.RMDIR, f"step-{step - 3}")


@pytest.mark.parametrize(
    ("saver", "kind", "step"),
    [
        (keeps_all, None, 0),
        (keeps_three, Kind.UNLINK, 4),
        (careful, Kind.RENAME, 1),
        (removed_first, Kind.UNLINK, 1),
        (in_place, Kind.TRUNCATE, 1),
    ],
)
def test_the_first_removal_of_a_save_is_found(saver: Save, kind: Kind | None, step: int) -> None:
    recording = recorded(*[saver] * 6)
    ends = list(recording.finished.values())
    found = first_removal(recording.operations, ends)
    assert (None if found is None else recording.operations[found].kind) is kind
    assert found is None or sum(end <= found for end in ends) == step


@given(st.sampled_from(list(PROFILES)), st.lists(st.sampled_from([*SAVERS, numbered_parts]), min_size=2, max_size=3))
def test_a_kept_set_is_told_once_and_open_changes_are_counted(profile: str, savers: list[Save]) -> None:
    recording = recorded(*savers)
    changes = changes_of(profile, recording.operations)
    crashes = Crashes(changes, list(recording.finished.values()), len(recording.operations))
    states = list(crashes.chosen_states(recording.names))
    assert len({state.kept for state in states}) == len(states)
    assert crashes.open_max == max(len(left) for _, left in crashes.left_open())


def test_the_work_grows_with_the_flushes_and_not_with_their_square() -> None:
    """A log in the checkpoint folder, each of whose lines is flushed."""
    recording = Recording()
    recording.create("log")
    for _ in range(4000):
        recording.write("log", 1)
        recording.add(Kind.FSYNC, "log")
    crashes = Crashes(changes_of("ext4", recording.operations))
    assert sum(len(left) for _, left in crashes.left_open()) <= 3 * 4000
    assert sum(len(state.lost) for state in crashes.chosen_states(recording.names)) <= 4 * 4000


@pytest.mark.parametrize("profile", [name for name in PROFILES if name != "s3"])
def test_a_sync_makes_all_earlier_changes_durable(profile: str) -> None:
    def synced(save: Recording, step: int) -> None:
        save.file("new", step, flush=False)
        save.add(Kind.SYNC, "")
        save.rename("new", "model")
        save.add(Kind.SYNC, "")
        save.done(step)

    recording = recorded(synced)
    changes = changes_of(profile, recording.operations)
    assert outcomes(recording, changes, Crashes(changes).chosen_states(recording.names)) == {"ok"}


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
