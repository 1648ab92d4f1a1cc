"""E6 and E7: damaged files. Each read gives the right records or a typed error; never a wrong one,
a gap, or a signal.

The directory under damage is small and cleanly closed, so nothing in it may count as a torn tail.
Fewer records without an error are a violation, too. Damage to caches (indexes, manifest, page, some
checkpoints) must lose no record. Everything runs inside a victim: a signal ends that process, not
the tests.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import embedlog
from embedlog import EmbedlogError
from embedlog._native import system
from embedlog.coordination import directory
from embedlog.storage import file_names
from tests.faults.harness import tasks
from tests.faults.harness.content import Row, value_of
from tests.faults.harness.tasks import TOPIC, Stage, task

CONFIG = {"segment.bytes": 5_000, "index.interval.bytes": 400, "retention.bytes": -1}
Rows = dict[int, list[Row]]


@task
def build(
    stage: Stage, path: str, batches: int = 24, codec: str = "none", clean: bool = True
) -> None:
    """A directory of a few small segments, written in batches of one to three records."""
    tasks.open_(stage, path)
    tasks.create_topic(
        stage, TOPIC, 1, CONFIG | {"compression.type": "uncompressed" if codec == "none" else codec}
    )
    number = 0
    for batch in range(batches):
        count = batch % 3 + 1
        tasks.append(
            stage, [value_of(1, number + at, 100 + 37 * batch % 400) for at in range(count)]
        )
        number += count
    if clean:
        tasks.close(stage)
    else:
        os.kill(os.getpid(), 9)


def look(stage: Stage, path: str) -> Rows | str:
    """The rows that a fresh open of the directory reads, or the name of the typed error."""
    try:
        return tasks.read_directory(stage, path)
    except EmbedlogError as problem:
        return type(problem).__name__


class Flips:
    """Counts of the outcomes; `bad` describes the forbidden ones."""

    def __init__(self, right: Rows) -> None:
        self.right = right
        self.counts: Counter[str] = Counter()
        self.bad: list[str] = []

    def judge(self, found: Rows | str, what: str, *, cache: bool = False) -> None:
        if found == self.right:
            self.counts["right"] += 1
        elif isinstance(found, str):
            self.counts[found] += 1
            if cache:
                self.bad.append(f"{what}: {found}, though it is only a cache")
        else:
            fewer = all(rows == self.right[n][: len(rows)] for n, rows in found.items())
            self.counts["silently fewer" if fewer else "WRONG"] += 1
            read = sum(map(len, found.values()))
            self.bad.append(
                f"{what}: {'silently fewer' if fewer else 'wrong'}: {read} of "
                f"{sum(map(len, self.right.values()))}"
            )

    def report(self) -> tuple[dict[str, int], list[str]]:
        return dict(self.counts), self.bad


def bits(size: int, step: int, dense: int) -> Iterator[tuple[int, int]]:
    """(byte, bit): every bit of the first `dense` bytes, then one bit of every `step`th byte."""
    for position in range(min(size, dense)):
        for bit in range(8):
            yield position, bit
    for position in range(dense, size, step):
        yield position, position // step % 8


def flip(fd: int, position: int, bit: int) -> None:
    before = os.pread(fd, 1, position)
    os.pwrite(fd, bytes([before[0] ^ 1 << bit]), position)


@task
def flip_log(
    stage: Stage, path: str, step: int, dense: int, piece: int = 0, pieces: int = 1
) -> tuple[dict[str, int], list[str]]:
    """Flip bits of every segment under an open log; each time everything is read again through
    it.
    """
    with embedlog.open(path) as log:
        stage.log = log
        flips = Flips(tasks.read(stage))
        for file in sorted((Path(path) / f"{TOPIC}-0").glob("*.log")):
            fd = os.open(file, os.O_RDWR)
            for position, bit in islice(
                bits(os.fstat(fd).st_size, step, dense), piece, None, pieces
            ):
                flip(fd, position, bit)
                try:
                    found: Rows | str = tasks.read(stage)
                except EmbedlogError as problem:
                    found = type(problem).__name__
                flip(fd, position, bit)
                flips.judge(found, f"{file.name} byte {position} bit {bit}")
            os.close(fd)
        assert tasks.read(stage) == flips.right, "all bits are back, yet it reads otherwise"
    return flips.report()


def restore(source: Path, target: Path) -> None:
    """A copy that embedlog takes for the directory itself: its clean mark is the one in the control
    page.
    """
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, symlinks=True)
    mark = (target / file_names.CLEAN_MARK).stat()
    fd = os.open(target / file_names.CONTROL, os.O_RDWR)
    page = system.Page(fd, True)
    page.set(directory.MARK_INODE, mark.st_ino)
    page.set(directory.MARK_NS, mark.st_mtime_ns)
    page.close()
    os.close(fd)


CACHES = (
    ".index",
    ".timeindex",
    ".txnindex",
    ".snapshot",
    "embedlog.page",
    "embedlog.manifest",
    "embedlog.lock",
    "embedlog.control",
    "embedlog.sync",
    "embedlog.door",
    "embedlog.directory",
    "embedlog.housekeeper",
    "replication-offset-checkpoint",
)


def is_cache(name: str) -> bool:
    return name.endswith(CACHES) or file_names.DIGESTS in name


@task
def flip_files(
    stage: Stage,
    source: str,
    path: str,
    names: list[str],
    most: int,
    piece: int = 0,
    pieces: int = 1,
    most_bytes: int = 1 << 30,
) -> tuple[dict[str, int], list[str]]:
    """Flip bits of small files, at most `most` a file; a fresh open each time, out of a fresh
    copy.
    """
    flips = Flips(look_fresh(stage, Path(source), Path(path)))
    for name in names:
        size = min((Path(source) / name).stat().st_size, most_bytes)
        step = max(1, size * 8 // most)
        for at in range(piece * step, size * 8, step * pieces):
            restore(Path(source), Path(path))
            fd = os.open(Path(path) / name, os.O_RDWR)
            flip(fd, at // 8, at % 8)
            os.close(fd)
            flips.judge(
                look(stage, path), f"{name} byte {at // 8} bit {at % 8}", cache=is_cache(name)
            )
    return flips.report()


def look_fresh(stage: Stage, source: Path, path: Path) -> Rows:
    restore(source, path)
    found = look(stage, str(path))
    assert not isinstance(found, str), f"the undamaged copy does not open: {found}"
    return found


# -- whole blocks and files
# -------------------------------------------------------------------------

# name of the change, whether the file is a cache, the change
Case = tuple[str, bool, Callable[[Path], None]]


def truncations(name: str, size: int, step: int) -> Iterator[Case]:
    for length in range(0, size, step):
        yield (
            f"{name} cut to {length}",
            is_cache(name),
            lambda d, n=name, to=length: os.truncate(d / n, to),
        )


def blocks(name: str, size: int, rng: random.Random) -> Iterator[Case]:
    """Zeroed, duplicated, swapped and stale blocks of 512 and 4,096 bytes."""
    cache = is_cache(name)
    for block in (512, 4096):
        for at in range(0, size, block):
            other = rng.randrange(0, max(1, size - block))
            length = min(block, size - at)
            yield (
                f"{name} zeroes at {at}+{block}",
                cache,
                lambda d, a=at, b=length: put(d / name, a, bytes(b)),
            )
            yield (
                f"{name} block {other} copied to {at}+{block}",
                cache,
                lambda d, a=at, b=length, o=other: put(d / name, a, cut(d / name, o, b)),
            )
            yield (
                f"{name} blocks {at} and {other} swapped",
                cache,
                lambda d, a=at, b=block, o=other: swap(d / name, a, o, b),
            )


def cut(path: Path, at: int, size: int) -> bytes:
    with path.open("rb") as file:
        return os.pread(file.fileno(), size, at)


def put(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), data, at)


def swap(path: Path, one: int, other: int, size: int) -> None:
    size = min(size, abs(one - other), path.stat().st_size - max(one, other))
    first = cut(path, one, size)
    second = cut(path, other, size)
    put(path, one, second)
    put(path, other, first)


def whole_files(source: Path, name: str, rng: random.Random) -> Iterator[Case]:
    cache = is_cache(name)
    data = (source / name).read_bytes()
    noise = rng.randbytes(len(data) or 16)
    yield f"{name} missing", cache, lambda d: (d / name).unlink()
    yield f"{name} empty", cache, lambda d: os.truncate(d / name, 0)
    yield f"{name} noise", cache, lambda d: put_whole(d / name, noise)
    yield f"{name} with a tail of noise", cache, lambda d: put_whole(d / name, data + noise[:64])
    yield f"{name} with a tail of zeroes", cache, lambda d: put_whole(d / name, data + bytes(4096))


def put_whole(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def between_segments(source: Path) -> Iterator[Case]:
    logs = sorted(path.name for path in (source / f"{TOPIC}-0").glob("*.log"))
    for one, other in ((logs[0], logs[1]), (logs[0], logs[-1])):
        yield (
            f"{one} in place of {other}",
            False,
            lambda d, a=one, b=other: copy_over(d / f"{TOPIC}-0", a, b),
        )
    extra = f"{TOPIC}-0/{10**9:020d}.log"
    yield (
        "an extra segment far after the end",
        False,
        lambda d: shutil.copy(d / f"{TOPIC}-0" / logs[-1], d / extra),
    )
    yield "an extra empty segment far after the end", True, lambda d: (d / extra).touch()
    for name in (
        "stray.txt",
        "00000000000000000007.log.deleted",
        "00000000000000000007.log.cleaned",
        "x.swap",
    ):
        yield (
            f"a stray {name}",
            True,
            lambda d, n=name: (d / f"{TOPIC}-0" / n).write_bytes(b"stray"),
        )


def copy_over(folder: Path, source: str, target: str) -> None:
    shutil.copy(folder / source, folder / target)


@task
def damage(
    stage: Stage, source_path: str, path: str, seed: int, most: int
) -> tuple[dict[str, int], list[str]]:
    """Every kind of damage to every file, `most` cases drawn by the seed; the damaged segments must
    survive an error.
    """
    rng = random.Random(seed)
    source = Path(source_path)
    target = Path(path)
    flips = Flips(look_fresh(stage, source, target))
    cases: list[Case] = list(between_segments(source))
    names = sorted(str(found.relative_to(source)) for found in source.rglob("*") if found.is_file())
    for name in names:
        size = (source / name).stat().st_size
        cases += whole_files(source, name, rng)
        cases += truncations(name, min(size, 4096), max(1, size // 64))
        cases += blocks(name, min(size, 8192), rng)
    for what, cache, strike in rng.sample(cases, min(most, len(cases))):
        restore(source, target)
        strike(target)
        before = contents(target)
        found = look(stage, path)
        flips.judge(found, what, cache=cache)
        if isinstance(found, str) and contents(target) != before:
            flips.bad.append(f"{what}: refused with {found}, but the segments were changed")
    return flips.report()


def contents(root: Path) -> dict[str, bytes]:
    """The segments as they lie there: an open that fails leaves them alone."""
    return {str(path): path.read_bytes() for path in root.rglob("*.log")}
