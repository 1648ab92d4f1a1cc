"""Damage of one directory of a set while processes use it: missing files, changed files, copies of directories."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import uuid
from pathlib import Path

DAMAGES = ("partition", "segment", "cut", "flip")
CACHES = (
    "*.index",
    "*.timeindex",
    "*.txnindex",
    "*.snapshot",
    "embedlog.page",
    "leader-epoch-checkpoint",
)  # made again from the log


def partitions_of(directory: Path) -> list[Path]:
    """The partition directories, of topics and of the decision log."""
    return sorted(path for path in directory.iterdir() if path.is_dir() and path.name.rpartition("-")[2].isdigit())


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
    """Damage an index, a snapshot, a control page or a checkpoint of one partition of a directory; what was done."""
    kinds = {kind: sorted(path for each in partitions_of(directory) for path in each.glob(kind)) for kind in CACHES}
    kind = rng.choice([kind for kind, paths in kinds.items() if paths])
    path = rng.choice(kinds[kind])
    how = rng.choice(("removed", "cut", "zeros") if kind == "embedlog.page" else ("removed", "cut", "flip"))
    return f"{path.parent.name}/{path.name} {changed(path, how, rng)}"


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
    with path.open("r+b") as file:
        if how == "zeros":
            file.write(bytes(size))
            return f"has {size} zeros"
        file.seek(at)
        byte = file.read(1) or b"\0"
        file.seek(at)
        file.write(bytes([byte[0] ^ 1 << rng.randrange(8)]))
    return f"has another bit at {at} of {size}"


def remove(directory: Path) -> None:
    """Remove a directory in which processes create and rename files: at the end it has another name, which they do not know."""
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
