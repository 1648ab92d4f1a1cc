"""Disks that a power loss may leave, simulated from a recording: E5 in small.

The recording (`system.record_to`) has every change that a process made to files, in order, with its
bytes, and the promises it gave in between. A crash state is a possible disk after any prefix of it.
Data reaches the disk by a sync of its file, names by a sync of their directory. Of the other
changes the disk has none, all, a prefix, or any subset. Data may be torn at 512 bytes, and a file
may have its size without its data.

W1  data and names persist separately; a sync of a file says nothing about its name
W2  a rename is one change of one directory, atomic, but not ordered with the data of the file
W3  mapped pages are not recorded: they come back as zeroes
"""

from __future__ import annotations

import json
import os
import random
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from embedlog._native import system
from tests.faults.harness.script import Script
from tests.faults.harness.tasks import Stage, task

HEAD = struct.Struct("=iiqqqq")
PROMISE = 1000
SECTOR_BYTES = 512


class Change(NamedTuple):
    """One record: the kind of call, its number (position, size), its names, its bytes; or a
    promise.
    """

    kind: str
    number: int
    name: str
    second: str
    data: bytes


def changes(path: Path) -> Iterator[Change]:
    with path.open("rb") as file:
        while head := file.read(HEAD.size):
            kind, _, number, *sizes = HEAD.unpack(head)
            name, second, data = (file.read(size) for size in sizes)
            word = "promise" if kind == PROMISE else system.CALLS[kind]
            yield Change(word, number, os.fsdecode(name), os.fsdecode(second), data)


@task
def recorded_script(stage: Stage, path: str, seed: int, recording_path: str) -> None:
    """Run the script and record every change, and each note as a promise between them."""
    fd = os.open(recording_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    system.record_to(fd)

    def promise(content: Any) -> None:
        if content[0] == "read":
            assert not content[1].violations, content[1]
            return
        if content[0] == "acked":
            content = ("acked", [[*here, *mark] for here, mark in content[1].items()])
        data = json.dumps(content).encode()
        os.write(fd, HEAD.pack(PROMISE, 0, 0, 0, 0, len(data)) + data)

    stage.note = promise  # type: ignore[method-assign]
    for _, step in Script(stage, path, seed).steps():
        step()
    system.record_to(-1)
    os.close(fd)


@dataclass
class Inode:
    """A file: its content on the disk for certain, and the later changes, oldest first."""

    disk: bytes = b""
    # (position, data), or (size, None) for a cut
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)

    def settle(self) -> None:
        self.disk = applied(self.disk, self.pending)
        self.pending.clear()


def applied(content: bytes, wanted: list[tuple[int, bytes | None]]) -> bytes:
    out = bytearray(content)
    for position, data in wanted:
        if data is None:
            del out[position:]
            out.extend(bytes(position - len(out)))
        else:
            out.extend(bytes(max(0, position + len(data) - len(out))))
            out[position : position + len(data)] = data
    return bytes(out)


@dataclass
class Folder:
    """A directory: the names that are on the disk, and the changes since. A change sets names to
    inodes (None: gone).
    """

    disk: dict[str, Inode] = field(default_factory=dict)
    now: dict[str, Inode] = field(default_factory=dict)
    pending: list[dict[str, Inode | None]] = field(default_factory=list)

    def change(self, names: dict[str, Inode | None]) -> None:
        self.pending.append(names)
        rename_in(self.now, names)

    def settle(self) -> None:
        self.disk = dict(self.now)
        self.pending.clear()


def rename_in(names: dict[str, Inode], change: dict[str, Inode | None]) -> None:
    for name, inode in change.items():
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode


class Disk:
    """Replays a recording; `states` draws the disks that a power loss at this moment may leave."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folders: dict[str, Folder] = {}
        self.skipped: set[str] = set()

    def _place(self, name: str) -> tuple[Folder, str] | None:
        path = Path(name)
        if self.root not in path.parents:
            return None
        return self.folders.setdefault(str(path.parent), Folder()), path.name

    def _inode(self, name: str) -> Inode | None:
        place = self._place(name)
        return place[0].now.get(place[1]) if place else None

    def replay(self, change: Change) -> None:
        getattr(self, f"_{change.kind}", self._other)(change)

    def _other(self, change: Change) -> None:
        self.skipped.add(change.kind)

    def _open(self, change: Change) -> None:
        place = self._place(change.name)
        if place and place[1] not in place[0].now:
            place[0].change({place[1]: Inode()})

    def _pwrite(self, change: Change) -> None:
        inode = self._inode(change.name)
        if inode is not None:
            inode.pending.append((change.number, change.data))

    def _ftruncate(self, change: Change) -> None:
        inode = self._inode(change.name)
        if inode is not None:
            inode.pending.append((change.number, None))

    def _fallocate(self, change: Change) -> None:
        inode = self._inode(change.name)
        if inode is not None:
            inode.pending.append((change.number, None))

    def _fsync(self, change: Change) -> None:
        inode = self._inode(change.name)
        if inode is not None:
            inode.settle()
        elif change.name in self.folders:
            self.folders[change.name].settle()

    _fdatasync = _fsync

    def _unlink(self, change: Change) -> None:
        place = self._place(change.name)
        if place:
            place[0].change({place[1]: None})

    def _link(self, change: Change) -> None:
        inode = self._inode(change.name)
        place = self._place(change.second)
        if inode is not None and place:
            place[0].change({place[1]: inode})

    def _rename(self, change: Change) -> None:
        source = self._place(change.name)
        target = self._place(change.second)
        if change.name in self.folders:  # a directory: its content moves with it
            self.folders[change.second] = self.folders.pop(change.name)
        elif source and target and source[0] is target[0]:
            source[0].change({source[1]: None, target[1]: source[0].now[source[1]]})

    def _mkdir(self, change: Change) -> None:
        self.folders.setdefault(change.name, Folder())

    def _rmdir(self, change: Change) -> None:
        self.folders.pop(change.name, None)

    # -- crash states

    def state(self, rng: random.Random) -> dict[str, bytes]:
        """Path -> content of one possible disk."""
        habit = rng.choice(("none", "all", "prefix", "subset", "subset"))
        made: dict[str, bytes] = {}
        contents: dict[int, bytes] = {}
        for path, folder in self.folders.items():
            names = dict(folder.disk)
            for change in chosen(folder.pending, rng.choice((habit, "all", "none", "prefix")), rng):
                rename_in(names, change)
            for name, inode in names.items():
                if id(inode) not in contents:
                    contents[id(inode)] = self._content(inode, habit, rng)
                made[os.path.join(path, name)] = contents[id(inode)]
        return made

    def states_by_name(self, path: str) -> Iterator[dict[str, bytes]]:
        """Disks with all data, on which of the pending names of one directory some came: first,
        last, one, all but one.
        """
        pending = self.folders[path].pending
        every = range(len(pending))
        choices = {tuple(every[:at]) for at in every} | {tuple(every[at:]) for at in every}
        choices |= {(at,) for at in every} | {
            tuple(other for other in every if other != at) for at in every
        }
        elsewhere = {
            os.path.join(folder, name): inode
            for folder in self.folders
            if folder != path
            for name, inode in self.folders[folder].now.items()
        }
        for choice in sorted(choices):
            names = dict(self.folders[path].disk)
            for at in choice:
                rename_in(names, pending[at])
            made = elsewhere | {os.path.join(path, name): inode for name, inode in names.items()}
            yield {place: applied(inode.disk, inode.pending) for place, inode in made.items()}

    def _content(self, inode: Inode, habit: str, rng: random.Random) -> bytes:
        kept = chosen(inode.pending, habit, rng)
        if habit in ("prefix", "subset") and rng.random() < 0.5:
            kept = (
                [torn(write, rng) for write in kept[-1:]]
                if len(kept) == 1
                else kept[:-1] + [torn(w, rng) for w in kept[-1:]]
            )
        content = applied(inode.disk, kept)
        whole = applied(inode.disk, inode.pending)
        if habit == "subset" and len(whole) > len(content) and rng.random() < 0.3:
            # the size came, the data did not
            content += bytes(rng.randint(0, len(whole) - len(content)))
        return content


def disks(
    found: Sequence[Change],
    root: Path,
    workspace: Path,
    moments: Sequence[int],
    rng: random.Random,
    promise: Callable[[Change], None],
) -> Iterator[tuple[str, Path]]:
    """Disks that a power loss at these moments (sorted) may leave: the moment in words, and the
    directory.

    `promise` takes the promises before that moment.
    """
    disk = Disk(root)
    rest = deque(moments)
    for at, change in enumerate(found):
        if change.kind == "promise":
            promise(change)
        else:
            disk.replay(change)
        while rest and rest[0] == at:
            rest.popleft()
            number = len(moments) - len(rest) - 1
            target = workspace / f"cut-{number}"
            materialise(disk.state(rng), root, target, list(disk.folders))
            yield (
                f"power loss after change {at} ({change.kind} {Path(change.name).name}), state "
                f"{number}",
                target,
            )


def chosen(pending: list[Any], habit: str, rng: random.Random) -> list[Any]:
    match habit:
        case "none":
            return []
        case "all":
            return list(pending)
        case "prefix":
            return pending[: rng.randint(0, len(pending))]
        case _:
            return [change for change in pending if rng.random() < 0.5]


def torn(write: tuple[int, bytes | None], rng: random.Random) -> tuple[int, bytes | None]:
    """A write of which only some leading sectors came."""
    position, data = write
    if data is None or not data:
        return write
    end = rng.randint(0, len(data))
    boundary = (position + end) // SECTOR_BYTES * SECTOR_BYTES - position
    return position, data[: max(0, boundary)]


def materialise(state: dict[str, bytes], root: Path, target: Path, folders: list[str]) -> None:
    for folder in [str(root), *folders]:
        (target / os.path.relpath(folder, root)).mkdir(parents=True, exist_ok=True)
    for path, content in state.items():
        place = target / os.path.relpath(path, root)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
