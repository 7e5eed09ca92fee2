"""Models the crash guarantees of four kinds of file systems: the smallest changes of the disk, and their order.

A profile models one kind of file system: it turns a job's file operations into changes of the disk. A crash during
operation `j` keeps all changes that were durable before `j`, and any other changes of the operations up to `j`. A
change is kept only together with the changes in its field `after`.

- The profile `posix` models what POSIX alone promises. POSIX sets no order for changes of names and data. In POSIX,
  `fsync` of a file makes its data durable, and `fsync` of a folder makes its names durable. A POSIX file can grow
  before its new data reaches the disk; the gap reads as zeros. A rename in POSIX is one change. As on Linux, `sync` and
  `syncfs` make all earlier changes durable in the profile `posix`.
- The profile `ext4` models ext4 with Linux's defaults: `data=ordered`, delayed allocation and `auto_da_alloc`. On ext4,
  changes of names become durable in their order, and an `fsync` of any file makes all earlier changes of names durable.
  On ext4, the data of a growing file reaches the disk in order. On ext4, a rename over an existing file reaches the
  disk after the data of the new file; a rename to a new name may come earlier. See Documentation/admin-guide/ext4.rst
  in Linux, and the commits afd4672d and 06bd3c36.
- The profile `nfs` models the crash of an NFS client. On NFS, names are durable at once, and data is durable after
  `close` or `fsync`.
- The profile `s3` models a mounted S3 bucket. In an S3 bucket, a file appears whole when it is closed. A rename in an
  S3 bucket copies each object, then deletes the old one.
"""

from __future__ import annotations

import contextlib
import itertools
import posixpath
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from harness.errors import ChaosError
from harness.explore.operations import ROOT, Kind, Operation

PAGE_BYTES, SECTOR_BYTES = 4096, 512
NEVER = 2**62  # number of an operation that never comes


@dataclass(frozen=True)
class Entry:
    """A changed name on the disk: `name` in `folder` now refers to the file `inode`, or to no file if `inode` is
    `None`."""

    folder: int
    name: str
    inode: int | None
    link: str | None = None  # target of a symbolic link
    is_folder: bool = False


@dataclass(frozen=True)
class Size:
    """A changed file size: the file now ends at byte `size`. If the file grows, the added bytes read as zeros."""

    inode: int
    size: int


@dataclass(frozen=True)
class Data:
    """Changed data in a file: `size` bytes at `offset`, copied from the recorded data at byte `data`. The file grows if
    the bytes reach beyond its end."""

    inode: int
    offset: int
    size: int
    data: int


Part = Entry | Size | Data


@dataclass
class Change:
    """The smallest change of the disk, which a crash keeps or loses as a whole.

    `operation` is the number of the file operation that made the change. `after` holds the numbers of the changes
    without which this change never reaches the disk. The change is durable once the operation with number `durable` is
    over.
    """

    number: int
    operation: int
    parts: tuple[Part, ...]
    after: frozenset[int]
    durable: int = NEVER

    @property
    def inode(self) -> int | None:
        """Returns the file whose content a change concerns, or `None` if the change concerns names."""
        first = self.parts[0]
        return None if any(isinstance(each, Entry) for each in self.parts) else first.inode


@dataclass
class _File:
    size: int = 0
    last_size: int | None = None  # number of the last change of its size
    last: int | None = None  # number of the last change of its data
    pages: dict[int, set[int]] = field(default_factory=dict)  # page → changes of its data that came last
    pending: list[int] = field(default_factory=list)  # changes of its content that no fsync made durable
    emptied: bool = False  # cut to nothing while it had content, and not closed since
    data: list[Data] = field(default_factory=list)  # all writes, for a store of whole objects
    written: bool = False  # since the last close


class _Profile:
    """Turns a job's file operations into changes of the disk, as one kind of file system makes them. A subclass defines
    the order of the changes, and what makes a change durable."""

    prunes_empty_folders = False

    def __init__(self, split: bool = True) -> None:
        self.changes: list[Change] = []
        self.number = -1  # of the operation
        self._split = split
        self._files: dict[int, _File] = {}
        self._live: dict[tuple[int, str], tuple[int, bool]] = {}  # (folder, name) → inode, is it a folder
        self._names: dict[tuple[int, str], int] = {}  # (folder, name) → the last change of it
        self._pending_names: list[int] = []
        self._links: dict[int, str] = {}  # inode of a symbolic link → its target
        self._synced = 0  # changes that `sync` made durable

    def take(self, operation: Operation) -> None:
        """Adds the changes of the disk that the next operation makes. Raises `KeyError` if the operation names a file
        that does not exist."""
        self.number += 1
        getattr(self, f"_{operation.kind}")(operation)

    # Names

    def _place(self, path: str) -> tuple[int, str]:
        folder, inode = posixpath.dirname(path), ROOT
        for name in folder.split("/") if folder else ():
            inode = self._live[inode, name][0]
        return inode, posixpath.basename(path)

    def _find(self, path: str) -> tuple[int, bool] | None:
        with contextlib.suppress(KeyError):  # a folder above it is gone
            return self._live[self._place(path)] if path else (ROOT, True)
        return None

    def _file(self, inode: int) -> _File:
        return self._files.setdefault(inode, _File())

    def _add(self, parts: Iterable[Part], after: Iterable[int | None]) -> Change:
        known = frozenset(each for each in after if each is not None)
        change = Change(len(self.changes), self.number, tuple(parts), known)
        self.changes.append(change)
        return change

    def _rename_names(self, entries: Sequence[Entry], after: Iterable[int | None] = ()) -> Change:
        before = [self._names.get((each.folder, each.name)) for each in entries]
        change = self._add(entries, [*before, *after, *self._names_after()])
        for each in entries:
            self._names[each.folder, each.name] = change.number
            if each.inode is None:
                self._live.pop((each.folder, each.name), None)
            else:
                self._live[each.folder, each.name] = each.inode, each.is_folder
        self._pending_names.append(change.number)
        self._name_changed(change)
        return change

    def _names_after(self) -> Iterable[int | None]:
        return ()

    def _name_changed(self, change: Change) -> None:
        pass

    def _create(self, operation: Operation, **more: object) -> None:
        folder, name = self._place(operation.path)
        self._rename_names([Entry(folder, name, operation.inode, **more)])  # type: ignore[arg-type]

    def _mkdir(self, operation: Operation) -> None:
        self._create(operation, is_folder=True)

    def _symlink(self, operation: Operation) -> None:
        self._links[operation.inode] = operation.other
        self._create(operation, link=operation.other)

    def _link(self, operation: Operation) -> None:
        self._create(Operation(Kind.CREATE, operation.other, operation.inode))

    def _unlink(self, operation: Operation) -> None:
        place = self._place(operation.path)
        del self._live[place]
        self._rename_names([Entry(*place, None)])

    _rmdir = _unlink

    def _rename(self, operation: Operation) -> None:
        old, new = self._place(operation.path), self._place(operation.other)
        if old == new:
            return
        inode, is_folder = self._live[old]
        target = self._live.get(new)
        entries = [Entry(*old, None), Entry(*new, inode, self._links.get(inode), is_folder)]
        self._rename_names(entries, self._rename_after(inode, target is not None and not is_folder))

    def _rename_after(self, inode: int, replaces: bool) -> Iterable[int]:
        return ()

    # Content

    def _pieces(self, operation: Operation) -> list[tuple[int, int]]:
        """Splits a write where a crash may cut the write: at the first and last sector, and at the first, middle and
        last page."""
        begin, end = operation.offset, operation.offset + operation.size
        if not self._split:
            return [(begin, end)]
        first, last = begin - begin % PAGE_BYTES + PAGE_BYTES, (end - 1) - (end - 1) % PAGE_BYTES
        middle = (begin + end) // 2
        middle -= middle % PAGE_BYTES
        cuts = {begin, begin + SECTOR_BYTES, first, middle, middle + PAGE_BYTES, last, end - SECTOR_BYTES, end}
        kept = sorted(each for each in cuts if begin <= each <= end)
        return list(itertools.pairwise(kept))

    def _write(self, operation: Operation) -> None:
        if not operation.size:
            return
        file = self._file(operation.inode)
        touched: dict[int, set[int]] = {}
        self._grow(operation, file)
        for begin, end in self._pieces(operation):
            pages = range(begin // PAGE_BYTES, -(-end // PAGE_BYTES))
            before = {number for page in pages for number in file.pages.get(page, ())}
            part = Data(operation.inode, begin, end - begin, operation.data + begin - operation.offset)
            change = self._add([part], [*before, file.last_size, *self._data_after(file, begin)])
            file.pending.append(change.number)
            file.last = change.number
            for page in pages:
                touched.setdefault(page, set()).add(change.number)
        file.pages |= touched
        file.size = max(file.size, operation.offset + operation.size)

    def _grow(self, operation: Operation, file: _File) -> None:
        pass

    def _data_after(self, file: _File, begin: int) -> Iterable[int | None]:
        return ()

    def _truncate(self, operation: Operation) -> None:
        file = self._file(operation.inode)
        file.emptied |= not operation.size and file.size > 0
        self._resize(operation.inode, operation.size, file)
        file.pages.clear()  # later data comes after this change
        file.last = None

    def _resize(self, inode: int, size: int, file: _File) -> Change:
        change = self._add([Size(inode, size)], [file.last_size])
        file.last_size, file.size = change.number, size
        file.pending.append(change.number)
        return change

    def _fsync(self, operation: Operation) -> None:
        file = self._file(operation.inode)
        self._durable(file.pending)
        file.pending.clear()

    def _fsync_dir(self, operation: Operation) -> None:
        found = self._find(operation.path)
        folder = operation.inode if found is None else found[0]
        own, others = list[int](), list[int]()
        for number in self._pending_names:
            names = [part for part in self.changes[number].parts if isinstance(part, Entry)]
            (own if any(each.folder == folder for each in names) else others).append(number)
        self._durable(own)
        self._pending_names = others

    def _sync(self, operation: Operation) -> None:
        self._durable(range(self._synced, len(self.changes)))
        self._synced = len(self.changes)

    def _close(self, operation: Operation) -> None:
        pass

    def _durable(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.changes[number].durable = min(self.changes[number].durable, self.number)


class Posix(_Profile):
    def _grow(self, operation: Operation, file: _File) -> None:
        end = operation.offset + operation.size
        if end > file.size:
            self._resize(operation.inode, end, file)


class Ext4(_Profile):
    def __init__(self, split: bool = True) -> None:
        super().__init__(split)
        self._journal: int | None = None  # the last change of names and sizes
        self._allocated: list[int] = []  # data that the next change of the journal comes after

    def _names_after(self) -> Iterable[int | None]:
        return [self._journal, *self._allocated]

    def _name_changed(self, change: Change) -> None:
        self._journal = change.number
        self._allocated.clear()

    def _resize(self, inode: int, size: int, file: _File) -> Change:
        change = self._add([Size(inode, size)], [file.last_size, self._journal, *self._allocated])
        file.last_size, file.size = change.number, size
        self._pending_names.append(change.number)
        self._name_changed(change)
        return change

    def _data_after(self, file: _File, begin: int) -> Iterable[int | None]:
        return [file.last] if begin >= file.size else ()

    def _rename_after(self, inode: int, replaces: bool) -> Iterable[int]:
        return list(self._file(inode).pending) if replaces else ()

    def _close(self, operation: Operation) -> None:
        file = self._file(operation.inode)
        if file.emptied:
            self._allocated.extend(file.pending)
            file.emptied = False

    def _fsync(self, operation: Operation) -> None:
        super()._fsync(operation)
        self._commit()

    def _fsync_dir(self, operation: Operation) -> None:
        self._commit()

    def _commit(self) -> None:
        self._durable(self._pending_names)
        self._pending_names.clear()


class Nfs(_Profile):
    def _name_changed(self, change: Change) -> None:
        self._durable([change.number])

    def _resize(self, inode: int, size: int, file: _File) -> Change:
        change = super()._resize(inode, size, file)
        self._durable([change.number])
        return change

    def _close(self, operation: Operation) -> None:
        self._fsync(operation)


class S3(_Profile):
    """Changes of an S3 bucket. A folder of a bucket is only a part of the objects' names, and exists only as long as
    its objects."""

    prunes_empty_folders = True

    def __init__(self, split: bool = True) -> None:
        super().__init__(split)
        self._objects = 2**32  # inodes of objects; each upload makes a new one
        self._uploaded: dict[int, int] = {}  # inode of a file → inode of its object
        self._where: dict[int, set[str]] = {}  # inode of a file → its paths

    def _request(self, parts: Sequence[Part]) -> None:
        before = len(self.changes) - 1
        change = self._add(parts, [before] if before >= 0 else [])
        self._durable([change.number])

    def _put(self, path: str, file: int) -> list[Part]:
        parts, inode = list[Part](), ROOT
        *folders, name = path.split("/")
        for each in folders:
            child = self._live[inode, each][0]
            parts.append(Entry(inode, each, child, is_folder=True))
            inode = child
        return [*parts, Entry(inode, name, self._uploaded[file])]

    def _create(self, operation: Operation, **more: object) -> None:
        folder, name = self._place(operation.path)
        self._live[folder, name] = operation.inode, bool(more.get("is_folder"))
        if not more:
            self._file(operation.inode).written = True
            self._where.setdefault(operation.inode, set()).add(operation.path)

    def _symlink(self, operation: Operation) -> None:
        raise ChaosError(f"s3: the job makes the symbolic link {operation.path}, and a mount of a bucket has none")

    def _link(self, operation: Operation) -> None:
        super()._link(operation)
        if operation.inode in self._uploaded:
            self._request(self._put(operation.other, operation.inode))

    def _write(self, operation: Operation) -> None:
        file = self._file(operation.inode)
        file.data.append(Data(operation.inode, operation.offset, operation.size, operation.data))
        file.size = max(file.size, operation.offset + operation.size)
        file.written = True

    def _truncate(self, operation: Operation) -> None:
        file = self._file(operation.inode)
        kept = ((each, min(each.size, operation.size - each.offset)) for each in file.data)
        file.data = [Data(each.inode, each.offset, size, each.data) for each, size in kept if size > 0]
        file.size, file.written = operation.size, True

    def _close(self, operation: Operation) -> None:
        file = self._file(operation.inode)
        if not file.written or not self._where.get(operation.inode):
            return
        file.written = False
        self._objects += 1
        self._uploaded[operation.inode] = self._objects
        parts: list[Part] = [Data(self._objects, each.offset, each.size, each.data) for each in file.data]
        parts.append(Size(self._objects, file.size))
        for path in sorted(self._where[operation.inode]):
            parts += self._put(path, operation.inode)
        self._request(parts)

    def _fsync(self, operation: Operation) -> None:
        """Does nothing, because a mount of a bucket uploads only on close."""

    def _fsync_dir(self, operation: Operation) -> None:
        pass

    def _sync(self, operation: Operation) -> None:
        pass

    def _unlink(self, operation: Operation) -> None:
        place = self._place(operation.path)
        inode, _ = self._live.pop(place)
        self._where.get(inode, set()).discard(operation.path)
        if inode in self._uploaded:
            self._request([Entry(*place, None)])

    def _rmdir(self, operation: Operation) -> None:
        self._live.pop(self._place(operation.path))

    def _rename(self, operation: Operation) -> None:
        if operation.path == operation.other:
            return
        place = self._place(operation.path)
        moved = self._live.pop(place)
        old_entries: list[Part] = []
        if moved[1]:
            # The objects keep their folders' inodes here, so the copies get folders of their own.
            old_entries = self._copy_folder(operation, moved[0])
        else:
            self._live[self._place(operation.other)] = moved
            self._where[moved[0]].discard(operation.path)
            self._where[moved[0]].add(operation.other)
            if moved[0] in self._uploaded:
                self._request(self._put(operation.other, moved[0]))
                old_entries = [Entry(*place, None)]
        for entry in old_entries:
            self._request([entry])

    def _copy_folder(self, operation: Operation, inode: int) -> list[Part]:
        self._objects += 1
        self._live[self._place(operation.other)] = self._objects, True
        old: list[Part] = []
        for (folder, name), (child, is_folder) in sorted(self._live.items()):
            if folder != inode:
                continue
            del self._live[folder, name]
            before, after = f"{operation.path}/{name}", f"{operation.other}/{name}"
            if is_folder:
                old += self._copy_folder(Operation(Kind.RENAME, before, child, after), child)
                continue
            self._live[self._place(after)] = child, False
            self._where[child].discard(before)
            self._where[child].add(after)
            if child in self._uploaded:
                self._request(self._put(after, child))
                old.append(Entry(folder, name, None))
        return old


PROFILES: dict[str, type[_Profile]] = {"posix": Posix, "ext4": Ext4, "nfs": Nfs, "s3": S3}


def changes_of(profile: str, operations: Iterable[Operation], split: bool = True) -> list[Change]:
    """Returns the changes of the disk that the operations make on the file system `profile`, in order. If `split` is
    False, each write is one change, which a crash keeps or loses as a whole. Raises `ChaosError` for an operation that
    is impossible after the earlier operations."""
    made = PROFILES[profile](split)
    for operation in operations:
        try:
            made.take(operation)
        except KeyError as error:
            raise ChaosError(
                f"{profile}: operation {made.number}, {operation.in_words()}, fits no earlier one"
            ) from error
    return made.changes
