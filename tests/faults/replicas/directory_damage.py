"""Damage of one directory of a set while processes use it: missing files, changed files, copies of
directories.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import uuid
from pathlib import Path

from embedlog.storage.file_names import CONTROL, PAGE, PARTITION_METADATA
from embedlog.storage.identity import id_text

DAMAGES = ("partition", "segment", "cut", "flip")
CACHES = (
    "*.index",
    "*.timeindex",
    "*.txnindex",
    "*.snapshot",
    PAGE,
    "leader-epoch-checkpoint",
)  # made again from the log


# in a control page: both copies of the published tuple, whose checksums protect them
TUPLES = range(384, 880)
USED_BYTES = 2048  # of a control page


def partitions_of(directory: Path) -> list[Path]:
    """The partition directories, of topics and of the decision log."""
    return sorted(
        path
        for path in directory.iterdir()
        if path.is_dir() and path.name.rpartition("-")[2].isdigit()
    )


def damage(directory: Path, rng: random.Random) -> str:
    """Damage one partition of a directory; what was done."""
    partition = rng.choice(partitions_of(directory))
    how = rng.choice(DAMAGES)
    if how == "partition":
        remove(partition)
        return f"{partition.name} is removed"
    segment = rng.choice(sorted(partition.glob("*.log")))
    place = f"{partition.name}/{segment.name}"
    if how == "segment":
        segment.unlink()
        return f"{place} is removed"
    return f"{place} {changed(segment, how, rng)}"


def damage_cache(directory: Path, rng: random.Random) -> str:
    """Damage an index, a snapshot, a control page or a checkpoint of one partition of a directory;
    what was done.
    """
    kinds = {
        kind: sorted(path for each in partitions_of(directory) for path in each.glob(kind))
        for kind in CACHES
    }
    kind = rng.choice([kind for kind, paths in kinds.items() if paths])
    path = rng.choice(kinds[kind])
    how = rng.choice(
        ("removed", "cut", "zeros", "tuple") if kind == PAGE else ("removed", "cut", "flip")
    )
    told = flipped(path, rng.choice(TUPLES), rng) if how == "tuple" else changed(path, how, rng)
    return f"{path.parent.name}/{path.name} {told}"


def damage_identity(directory: Path, rng: random.Random) -> str:
    """Damage the topic id of one partition of a directory; what was done."""
    return damage_topic_id(rng.choice(partitions_of(directory)) / PARTITION_METADATA, rng)


def damage_topic_id(path: Path, rng: random.Random) -> str:
    """Damage a partition.metadata; what was done."""
    how = rng.choice(("removed", "cut", "flip", "version", "topic"))
    place = f"{path.parent.name}/{path.name}"
    if not path.exists():  # it was removed before: it is not written again
        return f"{place} is missing"
    if how == "version":
        path.write_bytes(path.read_bytes().replace(b"version: 0", b"version: 1"))
        return f"{place} has version 1"
    if how == "topic":
        path.write_text(f"version: 0\ntopic_id: {id_text(rng.randbytes(16))}")
        return f"{place} has another topic id"
    return f"{place} {changed(path, how, rng)}"


def damage_page(directory: Path, rng: random.Random) -> str:
    """Change a bit of a control page which no process uses; what was done. A mapped page is memory,
    not a file.
    """
    pages = [path for each in partitions_of(directory) if (path := each / PAGE).exists()]
    path = rng.choice([*pages, directory / CONTROL])
    return f"{path.relative_to(directory)} {flipped(path, rng.randrange(USED_BYTES), rng)}"


KINDS = (damage, damage_cache, damage_identity, damage_page)  # of a closed directory
# after a crash of all, a partition waits for each log of its ISR (REPLICA-13)
AFTER_KILLS = (damage_cache, damage_page)


def changed(path: Path, how: str, rng: random.Random) -> str:
    """Change a file in place, or remove it; what was done."""
    size = path.stat().st_size
    at = rng.randrange(max(1, size))
    if how == "removed":
        path.unlink()
        return "is removed"
    if how == "cut":
        os.truncate(path, at)
        return f"is cut at {at} of {size}"
    if how == "zeros":
        with path.open("r+b") as file:
            file.write(bytes(size))
        return f"has {size} zeros"
    return flipped(path, at, rng)


def flipped(path: Path, at: int, rng: random.Random) -> str:
    """Change a bit of a file in place; what was done."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1) or b"\0"
        file.seek(at)
        file.write(bytes([byte[0] ^ 1 << rng.randrange(8)]))
    return f"has another bit at {at} of {path.stat().st_size}"


def remove(directory: Path) -> None:
    """Remove a directory in which processes create and rename files: at the end it has another
    name, which they do not know.
    """
    gone = directory.with_name(f"{directory.name}.{uuid.uuid4().hex}-delete")
    directory.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def copy(source: Path, target: Path) -> None:
    """Copy a directory in which processes create and remove files."""

    def existing(one: str, other: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.copy2(one, other)

    target.mkdir()
    for path in list(source.iterdir()):
        if not path.is_dir():
            existing(str(path), str(target / path.name))
            continue
        with contextlib.suppress(FileNotFoundError):
            shutil.copytree(path, target / path.name, copy_function=existing)
