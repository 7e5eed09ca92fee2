"""Verifies a checkpoint: the format of each file, whether files are missing, and the contents by a stored manifest.

A *damaged* checkpoint cannot be loaded as it was saved. A *suspicious* checkpoint has a flaw that an intact checkpoint
may also have. An *unknown* checkpoint was not examined. Without checksums or a manifest, only the structure of a
checkpoint is verified, not its content."""

from __future__ import annotations

import enum
import hashlib
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgspec

from harness.errors import FaultError
from harness.log import untrusted_files
from harness.preflight import manifest, missing_files, siblings
from harness.preflight.file_content import Part, Unreadable, parts
from harness.preflight.pairs import Joined, joined
from harness.trainers.checkpoints.contract import AUTO, FoundCheckpoint, Listing, layout_names, load_layout
from harness.trainers.checkpoints.shared import formats, grouping, names
from harness.trainers.checkpoints.shared.checkpoint_folder import CheckpointFolder
from harness.trainers.checkpoints.shared.formats import METADATA, Inside, Span

FINDINGS_MAX = 100  # of one save that are kept
STRUCTURE, CHECKSUMS, MANIFEST = "structure", "checksums", "manifest"


class State(enum.StrEnum):
    """The states of a verified checkpoint, from the best to the worst."""

    WHOLE = "whole"
    SUSPICIOUS = "suspicious"
    UNKNOWN = "unknown"
    UNFINISHED = "unfinished"  # being written, or abandoned
    DAMAGED = "damaged"


class Finding(NamedTuple):
    state: State
    file: str
    tensor: str
    what: str

    @property
    def words(self) -> str:
        return " ".join(part for part in (self.file and f"{self.file}:", self.tensor, self.what) if part)


@dataclass
class Save:
    """A checkpoint (or a file that points to a checkpoint), with the findings of its verification so far. Paths of
    files are relative to the folder that holds the checkpoint."""

    path: str
    step: int | None = None
    changed_ns: int = 0
    bytes: int = 0
    loss: float | None = None
    verified_by: str = ""
    loaded: str = ""  # the answer of its own framework
    findings: list[Finding] = field(default_factory=list)
    more: int = 0  # findings that are not kept
    parts: dict[str, list[Part]] = field(default_factory=dict)
    steps_told: dict[str, int] = field(default_factory=dict)
    saved_again: bool = False  # since its manifest was kept
    points: bool = False  # it only points to a save

    @property
    def state(self) -> State:
        return max((each.state for each in self.findings), key=list(State).index, default=State.WHOLE)

    def short(self, file: str) -> str:
        folder, slash, _ = self.path.rpartition("/")
        return file.removeprefix(folder + slash)

    def find(self, state: State, what: str, file: str = "", tensor: str = "") -> None:
        """Adds a finding on the checkpoint. After `FINDINGS_MAX` findings, further findings are only counted, except
        the first one of each state."""
        if len(self.findings) < FINDINGS_MAX or all(each.state is not state for each in self.findings):
            self.findings.append(Finding(state, self.short(file), tensor, what))
        else:
            self.more += 1


class Place:
    """The place where checkpoints are verified: a folder of checkpoints, one checkpoint, or one of its files. Symbolic
    links in the given path are followed."""

    def __init__(self, path: pathlib.Path, layout: str = AUTO):
        path = path.resolve()
        self.is_folder = path.is_dir()
        saves = [each for each in (path, *path.parents[:2]) if each.is_dir() and names.step_in(each.name) is not None]
        folder = path if path.is_dir() else (saves or [path.parent])[0]
        # The folder of saves has a name below it; pointers to a save lie beside that.
        self.root = [folder, *folder.parents][: 3 if folder in saves else 2][-1]
        self._folder, self._wanted = (str(each.relative_to(self.root)) for each in (folder, path))
        self._layouts = layout_names() if layout == AUTO else (layout,)

    def look(self) -> tuple[CheckpointFolder, list[Listing]]:
        """Lists the checkpoints in this place, each by the first checkpoint layout that fits. Raises `FaultError` if a
        folder cannot be read."""
        try:
            place = rest = CheckpointFolder.look(self.root, self._folder)
        except PermissionError as error:
            raise FaultError(f"{self.root / self._folder}: no right to look at {error.filename} below it") from error
        listings = []
        for name in self._layouts:
            listing = load_layout(name).list(rest)
            taken = {file for each in listing.checkpoints for file in each.files}
            rest = replace(rest, sizes={file: size for file, size in rest.sizes.items() if file not in taken})
            listing = replace(listing, checkpoints=missing_files.told(joined(listing.checkpoints)))
            if self._wanted != self._folder:
                listing = Listing(name, [each for each in listing.checkpoints if self._wanted in each.files])
            listings += [listing] if listing.checkpoints else []
        return place, listings


def begun(place: CheckpointFolder, found: FoundCheckpoint) -> Save:
    changed_ns = max((place.changed_ns(file) for file in found.files), default=0)
    return Save(found.path, found.step, changed_ns, sum(place.sizes.get(file, 0) for file in found.files))


def verify(place: CheckpointFolder, layout: str, found: FoundCheckpoint) -> Save:
    save = begun(place, found)
    if place.is_temporary(found.path):
        save.find(State.UNFINISHED, "by its name it is being written, or was left")
    else:
        _Verification(place, layout, found, save).run()
    return save


class _Verification:
    def __init__(self, place: CheckpointFolder, layout: str, found: FoundCheckpoint, save: Save):
        self.place, self.layout, self.found, self.save = place, load_layout(layout), found, save
        self.manifest = f"{found.path}/{self.layout.mark}" if self.layout.manifest else ""
        self.insides: dict[str, Inside] = {}
        self.shards: dict[str, list[formats.Place]] = {}  # by file
        self.told: dict[str, formats.File] = {}  # by file, of a manifest of the trainer's own
        self.kept: manifest.Manifest | None = None

    def run(self) -> None:
        save, files = self.save, self.found.files
        try:
            self.kept = manifest.read(self.place.root, save.path)
        except ValueError as error:
            save.find(State.UNKNOWN, str(error))
        for folder in {file.rpartition("/")[0] for file in files if file.endswith((".distcp", f"/{METADATA}"))}:
            if (path := f"{folder}/{METADATA}") not in files:
                what = "is missing; it is written last: the save was not finished, or lost it"
                save.find(State.DAMAGED, what, path)
        for file in sorted(files, key=lambda file: (file != self.manifest, not file.endswith(f"/{METADATA}"))):
            self._read(file)
        self._ask_all()
        tensors = [span for inside in self.insides.values() for span in inside.spans]
        summed = bool(tensors) and all(span.crc32 is not None for span in tensors)
        save.verified_by = MANIFEST if self.kept else CHECKSUMS if summed or self.told else STRUCTURE
        if self.kept:
            self._hold_against(self.kept)
        for file in files:  # a job that runs may have written meanwhile
            status = untrusted_files.status_of(self.place.root, file)
            now = (status.st_size, status.st_mtime_ns) if status else None
            if now != (self.place.sizes[file], self.place.times_ns[file]):
                save.findings = [Finding(State.UNFINISHED, save.short(file), "", "changes while it is read")]

    def _expect_shards(self, metadata: str, places: Mapping[str, list[formats.Place]]) -> None:
        folder, find = metadata.removesuffix(METADATA), self.save.find
        shards = {folder + name: each for name, each in places.items()}
        self.shards |= shards
        for file in shards.keys() - set(self.found.files):
            for tensor in dict.fromkeys(place[0] for place in shards[file]):
                find(State.DAMAGED, "is lost: the file is missing", file[: formats.WORDS_MAX], tensor)
        for file in grouping.within(self.found.files, folder.removesuffix("/")) if shards else ():
            if file.endswith(".distcp") and file not in shards:
                find(State.SUSPICIOUS, "is not named by .metadata", file)

    def _expect_files(self, top: Mapping[str, Any]) -> None:
        folder, mark, find = self.found.path + "/", self.layout.mark, self.save.find
        try:
            told = msgspec.convert(top, formats.Files).files
        except msgspec.ValidationError as error:
            return find(State.UNKNOWN, f"does not tell what the files hold: {error}", self.manifest)
        self.told = {folder + name: each for name, each in told.items()}
        for file in self.told.keys() - set(self.found.files):
            find(State.DAMAGED, f"is missing, and {mark} names it", file[: formats.WORDS_MAX])
        for file in set(self.found.files) - self.told.keys() - {self.manifest}:
            find(State.SUSPICIOUS, f"is not named by {mark}", file)

    def _read(self, file: str) -> None:
        save, places = self.save, self.shards.get(file) if self.place.sizes[file] else None
        read = save.parts[save.short(file)] = list[Part]()
        try:
            with self.place.open(file) as opened:
                inside = self.insides[file] = formats.shard(opened, places) if places else formats.look(opened, file)
                for tensor, what in inside.wrong:
                    save.find(State.DAMAGED, what, file, tensor)
                for what in inside.unclear:
                    save.find(State.UNKNOWN, what, file)
                self._expect_shards(file, inside.places)
                if file == self.manifest and not inside.wrong:
                    self._expect_files(inside.top)
                whole = hashlib.sha256() if file in self.told else None
                read.extend(parts(opened, self._spans(file, inside.spans), whole))
        except (OSError, FaultError, Unreadable) as error:
            save.find(State.UNKNOWN, f"cannot be read: {error}", file)
            return
        if whole and self.told[file] != formats.File(self.place.sizes[file], whole.hexdigest()):
            save.find(State.DAMAGED, f"is not what {self.layout.mark} tells of it", file)
        for part in read:
            if not part.sound:
                save.find(State.DAMAGED, "has another checksum than it was saved with", file, part.span.name)
        save.loss = inside.loss if save.loss is None else save.loss
        if inside.step is not None:
            save.steps_told[save.short(file)] = inside.step

    def _spans(self, file: str, spans: Sequence[Span]) -> Sequence[Span]:
        kept = self.kept.files.get(self.save.short(file)) if self.kept else None
        if kept and kept.bytes == self.place.sizes[file]:
            known = {(span.start, span.end): span for span in spans}
            spans = [known.get((start, end), Span(name, start, end)) for name, start, end, _ in kept.parts]
        return spans

    def _ask_all(self) -> None:
        find = self.save.find
        files, insides = self.found.files, self.insides
        parts = self.found.lacks if isinstance(self.found, Joined) else ()
        own = [*siblings.numbered(files), *siblings.told(insides), *siblings.indexed(insides)]
        known = {f"{self.found.path}/{self.layout.mark}", *(lack.file for lack in own)}
        for lack in (*own, *(lack for lack in parts if lack.file not in known)):
            find(State.DAMAGED if lack.sure else State.SUSPICIOUS, lack.what, lack.file, lack.tensor)
        for file, inside in self.insides.items():
            self._ask_shape(file, inside)
            told = inside.top.get(self.layout.step_key)
            if type(told) is int and self.found.step not in (None, told):
                find(State.DAMAGED, f"is of step {told}, and the save of step {self.found.step}", file)
        if not any(inside.known for inside in self.insides.values()):
            find(State.UNKNOWN, "no file of it has a format that is known")
        states = (State.WHOLE, State.SUSPICIOUS) if self.layout.mark else (State.WHOLE,)
        if not self.found.whole and self.save.state in states:
            folder, mark = self.found.path.rpartition("/")[0], self.layout.mark
            if not self.layout.marked_beside:
                find(State.DAMAGED, f"lacks what is written last: {mark or 'its end'}")
            elif not self.place.read(f"{folder}/{mark}", 1):
                find(State.SUSPICIOUS, f"{mark} is not beside it, which is written last")

    def _ask_shape(self, file: str, inside: Inside) -> None:
        for end, shape in self.layout.shapes:
            if file.endswith(end) and not inside.wrong and not inside.unclear:
                try:
                    msgspec.convert(inside.top, shape)
                except msgspec.ValidationError as error:
                    self.save.find(State.DAMAGED, f"cannot be used: {error}", file)

    def _hold_against(self, kept: manifest.Manifest) -> None:
        """Compares a checkpoint with its manifest. If most tensors differ, the checkpoint is not damaged but
        suspicious, because the job has probably saved the same step again."""
        save = self.save
        sizes = {save.short(file): self.place.sizes[file] for file in self.found.files}
        changed, tensors, sound = list[Finding](), 0, save.state is not State.DAMAGED
        for file, was in kept.files.items():
            now = {(part.span.start, part.span.end): part.sha256 for part in save.parts.get(file, ())}
            same = sizes.get(file) == was.bytes
            tensors += sum(bool(part[0]) for part in was.parts)
            if not same:
                what = (
                    f"has {sizes[file]:,} bytes, and had {was.bytes:,} when it was kept"
                    if file in sizes
                    else "is missing"
                )
                changed.append(Finding(State.DAMAGED, file, "", what))
            for name, start, end, digest in was.parts:
                if now.get((start, end)) != digest if same else name and end > sizes.get(file, 0):
                    changed.append(Finding(State.DAMAGED, file, name, "is not what it was when it was kept"))
        if sound and 2 <= sum(bool(each.tensor) for each in changed) > tensors / 2:
            save.saved_again = True
            save.find(State.SUSPICIOUS, "most of it is other than when its manifest was kept: was it saved again?")
        else:
            save.findings += changed[:FINDINGS_MAX]
            save.more += len(changed[FINDINGS_MAX:])
            for file in sorted(sizes.keys() - kept.files.keys()):
                save.find(State.SUSPICIOUS, "is not in its manifest, so nothing tells whether it changed", file)
