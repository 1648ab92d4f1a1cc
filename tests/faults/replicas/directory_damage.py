"""Damage of one directory of a set while processes use it: missing files, changed files, copies of directories."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import uuid
from pathlib import Path

DAMAGES = ("partition", "segment", "cut", "flip")


def damage(directory: Path, rng: random.Random) -> str:
    """Damage one partition of a directory; what was done."""
    partition = rng.choice(
        sorted(path for path in directory.iterdir() if path.is_dir() and path.name.rpartition("-")[2].isdigit())
    )
    how = rng.choice(DAMAGES)
    if how == "partition":
        remove(partition)
        return f"{partition.name} is removed"
    segment = rng.choice(sorted(partition.glob("*.log")))
    place = f"{partition.name}/{segment.name}"
    if how == "segment":
        segment.unlink()
        return f"{place} is removed"
    size = segment.stat().st_size
    at = rng.randrange(max(1, size))
    if how == "cut":
        os.truncate(segment, at)
        return f"{place} is cut at {at} of {size}"
    with segment.open("r+b") as file:
        file.seek(at)
        byte = file.read(1) or b"\0"
        file.seek(at)
        file.write(bytes([byte[0] ^ 1 << rng.randrange(8)]))
    return f"a bit of {place} at {at} of {size} is changed"


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
