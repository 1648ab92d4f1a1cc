"""E6 of loading: damage to a closed log, in every way of opening it and in every state of its
files.

The fields are those that Kafka's checksum leaves out (base offset, size, leader epoch, magic), in
batches after the last interval digest. Whole files are missing, empty or cut in half, too. All
records are on stable storage, so only the right rows or a typed error are allowed: no damage may
count as a torn tail.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import embedlog
from embedlog import EmbedlogError
from embedlog._native import system
from embedlog.storage import file_names
from tests.faults.damage.damage import Flips, Rows
from tests.faults.harness import tasks
from tests.faults.harness.content import Row, value_of
from tests.faults.harness.tasks import TOPIC, Stage, task

CONFIG: Final = {"segment.bytes": 3_000, "index.interval.bytes": 1_000, "flush.messages": 1}
BATCHES: Final = 40
PARTITION: Final = f"{TOPIC}-0"
STATES: Final = ("closed", "killed", "rebooted")
WAYS: Final = (
    "writer",
    "reader",
    "copy, writer",
    "copy, reader",
    "backup, writer",
    "backup, reader",
)
FIELDS: Final = {"base offset": (0, 8), "size": (8, 4), "leader epoch": (12, 4), "magic": (16, 1)}


@task
def build_durable(stage: Stage, path: str, state: str) -> None:
    """A log of some segments, all of it on stable storage, with a transaction index and a log start
    inside a segment.
    """
    tasks.open_(stage, path)
    tasks.create_topic(stage, TOPIC, 1, CONFIG)
    for batch in range(BATCHES):
        tasks.append(
            stage, [value_of(1, 3 * batch + at, 40 + batch % 5) for at in range(batch % 3 + 1)]
        )
    stage.opened.delete_records({embedlog.TopicPartition(TOPIC, 0): 5})
    stage.opened.flush()
    if state == "closed":
        stage.opened.backup(path + "-backup")
        tasks.close(stage)
    else:
        os.kill(os.getpid(), 9)


class Kept:
    """A directory that is put back as it was after each damage: the same files, with the same
    inodes.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._stash = root.with_name(root.name + "-stash")
        self.files = {
            str(each.relative_to(root)): each.read_bytes()
            for each in sorted(root.rglob("*"))
            if each.is_file()
        }
        self._stash.mkdir(exist_ok=True)
        self._gone: list[str] = []

    def remove(self, name: str) -> None:
        (self.root / name).rename(self._stash / name.replace("/", "~"))
        self._gone.append(name)

    def restore(self) -> None:
        for name in self._gone:
            (self._stash / name.replace("/", "~")).replace(self.root / name)
        self._gone.clear()
        for each in self.root.rglob("*"):
            if each.is_file() and str(each.relative_to(self.root)) not in self.files:
                each.unlink()
        for name, data in self.files.items():
            path = self.root / name
            if not path.exists() or path.read_bytes() != data:
                with path.open("r+b" if path.exists() else "wb") as file:
                    file.write(data)
                    file.truncate(len(data))


class Damage(NamedTuple):
    """A change of a directory, and its name."""

    what: str
    strike: Callable[[Kept], None]


def heads(data: bytes) -> list[int]:
    found = []
    at = 0
    while at < len(data):
        found.append(at)
        at += 12 + int(struct.unpack_from(">i", data, at + 8)[0])
    return found


def last_interval(kept: Kept) -> tuple[str, list[int]]:
    """The last segment, and the batches in it after its last index entry."""
    name = max(name for name in kept.files if name.endswith(file_names.LOG))
    entries = kept.files[name.removesuffix(file_names.LOG) + file_names.INDEX]
    start = struct.unpack_from(">ii", entries, len(entries) - 8)[1] if entries.strip(b"\0") else 0
    return name, [at for at in heads(kept.files[name].rstrip(b"\0")) if at >= start]


def flips(kept: Kept) -> Iterator[Damage]:
    name, found = last_interval(kept)
    for number, head in enumerate(found):
        for field, (at, size) in FIELDS.items():
            for bit in range(8 * size):
                where = head + at + bit // 8
                yield Damage(
                    f"bit {bit} of {field}, batch {number} of {len(found)}",
                    partial(flip, name, where, bit % 8),
                )


def flip(name: str, position: int, bit: int, kept: Kept) -> None:
    with (kept.root / name).open("r+b") as file:
        file.seek(position)
        file.write(bytes([kept.files[name][position] ^ 1 << bit]))


def whole_files(kept: Kept) -> Iterator[Damage]:
    for name, data in kept.files.items():
        yield Damage(f"{name} missing", partial(remove, name))
        if data:
            yield Damage(f"{name} empty", partial(cut, name, 0))
            yield Damage(f"{name} cut in half", partial(cut, name, len(data) // 2))
            yield Damage(f"{name} without its last byte", partial(cut, name, len(data) - 1))


def remove(name: str, kept: Kept) -> None:
    kept.remove(name)


def cut(name: str, size: int, kept: Kept) -> None:
    os.truncate(kept.root / name, size)


def look(path: Path, *, read_only: bool) -> Rows | str:
    """The rows, or the name of the typed error."""
    stage = Stage(None)  # type: ignore[arg-type]  # it answers to nobody
    try:
        with embedlog.open(
            path, read_only=read_only, config={} if read_only else {"housekeeping": False}
        ) as stage.log:
            return tasks.read(stage)
    except EmbedlogError as problem:
        return type(problem).__name__


def rebooted(root: Path) -> None:
    """The control page belongs to another page cache: after a restart, or another mount."""
    with (root / PARTITION / file_names.PAGE).open("r+b") as file:
        page = system.Page(file.fileno(), True)
        page.set(system.WORD_CACHE, page.word(system.WORD_CACHE) ^ 1)
        page.close()


def logs(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*" + file_names.LOG)}


@task
def damage_at_rest(
    stage: Stage,
    path: str,
    state: str,
    way: str,
    seed: int,
    most: int,
    piece: int = 0,
    pieces: int = 1,
) -> tuple[dict[str, int], list[str]]:
    """Each damage in turn, `most` drawn by the seed; a damaged log must survive the error as it
    is.
    """
    root = Path(path + "-backup" if way.startswith("backup") else path)
    read_only = way.endswith("reader")
    if state == "rebooted":
        rebooted(root)
    kept = Kept(root)
    copy = root.with_name(root.name + "-copy")
    right = look(root, read_only=True)
    assert isinstance(right, dict), right
    assert [row.offset for row in right[0]] == list(
        range(5, sum(batch % 3 + 1 for batch in range(BATCHES)))
    )
    judge = Flips({0: [Row(*row) for row in right[0]]})
    cases = [*flips(kept), *whole_files(kept)]
    for case in random.Random(f"{seed} {state} {way}").sample(cases, min(most, len(cases)))[
        piece::pieces
    ]:
        case.strike(kept)
        opened = root
        if way.startswith("copy"):
            shutil.rmtree(copy, ignore_errors=True)
            opened = Path(shutil.copytree(root, copy))
        before = logs(opened)
        found = look(opened, read_only=read_only)
        judge.judge(found, f"{state}, {way}: {case.what}")
        if isinstance(found, str) and logs(opened) != before:
            judge.bad.append(
                f"{state}, {way}: {case.what}: refused with {found}, but the segments were changed"
            )
        kept.restore()
    assert look(root, read_only=True) == right, "all is put back, yet it reads otherwise"
    return judge.report()
