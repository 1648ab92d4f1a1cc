"""Contains `ExportDirectory`: exported files whose names are the ranges of offsets that they
contain.

- A file is complete or absent: temporary name, fsync, rename, fsync of its directory.
- The names show what is exported. The manifest has the settings, which all files share, and the ids
  of the topics.
- The range of a file includes offsets without records, so that the ranges of a partition have no
  holes.
- One process exports to a directory at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Self
from uuid import uuid4

import embedlog
from embedlog import TopicDescription
from embedlog.tools.cli.transfer.received_files import check_folder, open_received

MANIFEST = "embedlog-export.json"
VERSION = 1
MANIFEST_BYTES_MAX = 64 << 20  # that of 100,000 topics has about half of it
PART = ".part"
SUFFIXES = {"delta": "parquet"}  # of the files, if it is not the name of the format

_FILE = re.compile(r"([0-9]{1,10})-([0-9]{20})-([0-9]{20})\.(parquet|arrow|jsonl|csv)")
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class ExportedFile(NamedTuple):
    """One complete file: records of a partition with offsets from `start` up to `end`
    (exclusive).
    """

    partition: int
    start: int
    end: int
    path: Path


class StoredFile(NamedTuple):
    """A new file."""

    path: Path
    records: int


@dataclass(frozen=True)
class ExportSettings:
    """What all files of an export have in common."""

    layout: str
    isolation_level: str
    start_ms: int | None
    end_ms: int | None


class ExportDirectory:
    """The directory of an export, locked by this process until `close`."""

    def __init__(self, path: Path, settings: ExportSettings) -> None:
        self.path = path
        self._settings = settings
        is_new = not path.exists()
        path.mkdir(parents=True, exist_ok=True)
        if is_new:
            _sync_directory(path.parent)
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise embedlog.DirectoryInUseError(
                    "another process exports to this directory", path=path
                ) from None
            self._manifest = self._agree_on_manifest()
            self._remove_parts()
        except BaseException:
            os.close(self._fd)
            raise

    def _agree_on_manifest(self) -> dict[str, Any]:
        """The manifest, made by the first export. Raises ConfigError for other settings than those
        of the first export.
        """
        own = {
            "format": self._settings.layout,
            "isolation_level": self._settings.isolation_level,
            "start_ms": self._settings.start_ms,
            "end_ms": self._settings.end_ms,
        }
        if not (self.path / MANIFEST).exists():
            strangers = [name for name in os.listdir(self.path) if not name.startswith(".")]
            if strangers:
                raise embedlog.ForeignDirectoryError(
                    "not an export",
                    path=self.path,
                    expected=f"an empty directory, or {MANIFEST}",
                    found=min(strangers),
                )
            return {"version": VERSION, "export_id": uuid4().hex, **own, "topics": {}}
        manifest = read_manifest(self.path)
        for name, value in own.items():
            if manifest[name] != value:
                raise embedlog.ConfigError(
                    f"{name} of this export",
                    expected=json.dumps(manifest[name]),
                    found=json.dumps(value),
                )
        return manifest

    def _remove_parts(self) -> None:
        """Remove what a killed export left."""
        for path in [*self.path.glob(f".*{PART}"), *self.path.glob(f"*/.*{PART}")]:
            path.unlink()

    def add_topic(self, topic: TopicDescription) -> None:
        """Note a topic before its first file. Raises ForeignDirectoryError if another topic of this
        name was exported.
        """
        topics = self._manifest["topics"]
        facts = {
            "id": topic.topic_id,
            "partitions": topic.partition_count,
            "config": dict(topic.config),
        }
        if topic.name in topics and topics[topic.name]["id"] != facts["id"]:
            raise embedlog.ForeignDirectoryError(
                f"the topic {topic.name} was created again after its export",
                path=self.path,
                expected=topics[topic.name]["id"],
                found=facts["id"],
            )
        if topics.get(topic.name) != facts:
            topics[topic.name] = facts
            data = json.dumps(self._manifest, indent=2).encode()
            store(self.path / MANIFEST, lambda file: file.write(data))
        folder = self.path / topic.name
        if not folder.exists():  # after the manifest, which makes the directory an export
            folder.mkdir()
            _sync_directory(self.path)

    def find_missing(
        self, topic: str, partition: int, first: int, last: int
    ) -> Iterator[tuple[int, int]]:
        """The ranges between two offsets that no file contains."""
        for file in files_of(self.path, topic):
            if file.partition == partition:
                if first < file.start and first < last:
                    yield first, min(file.start, last)
                first = max(first, file.end)
        if first < last:
            yield first, last

    def find_end(self, topic: str, partition: int) -> int | None:
        """The offset after the last exported one; None without a file."""
        return max(
            (file.end for file in files_of(self.path, topic) if file.partition == partition),
            default=None,
        )

    def store(
        self, topic: str, partition: int, start: int, end: int, write: Callable[[BinaryIO], int]
    ) -> StoredFile | None:
        """Write one file; `write` returns the number of records. None, and no file, if it has no
        records.
        """
        suffix = SUFFIXES.get(self._settings.layout, self._settings.layout)
        path = self.path / topic / f"{partition}-{start:020}-{end:020}.{suffix}"
        count = store(path, write)
        return StoredFile(path, count) if count else None

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def files_of(directory: Path, topic: str) -> list[ExportedFile]:
    """The files of a topic by partition and offset."""
    folder = directory / topic
    check_folder(folder)
    matches = (_FILE.fullmatch(name) for name in os.listdir(folder))
    return sorted(
        ExportedFile(int(match[1]), int(match[2]), int(match[3]), folder / match[0])
        for match in matches
        if match
    )


def is_export(path: Path) -> bool:
    return os.path.lexists(path / MANIFEST)


def read_manifest(directory: Path) -> dict[str, Any]:
    """The checked manifest. Raises ForeignDirectoryError, UnsupportedFormatError."""
    path = directory / MANIFEST
    problem = "the manifest of an export is damaged"
    try:
        with open_received(path) as file:
            data = file.read(MANIFEST_BYTES_MAX + 1)
        if len(data) > MANIFEST_BYTES_MAX:
            raise ValueError(f"more than {MANIFEST_BYTES_MAX} bytes")
        manifest = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise embedlog.ForeignDirectoryError(
            problem, path=path, expected="JSON", found=str(error)
        ) from error
    if (
        isinstance(manifest, dict)
        and type(manifest.get("version")) is int
        and manifest["version"] > VERSION
    ):
        raise embedlog.UnsupportedFormatError(
            "made by a newer version", path=path, expected=VERSION, found=manifest["version"]
        )
    if not isinstance(manifest, dict) or not _is_manifest(manifest):
        raise embedlog.ForeignDirectoryError(
            problem, path=path, expected="the keys of a manifest", found="others"
        )
    return manifest


def _is_manifest(manifest: dict[str, Any]) -> bool:
    keys = {"version", "export_id", "format", "isolation_level", "start_ms", "end_ms", "topics"}
    return (
        keys <= manifest.keys()
        and isinstance(manifest["export_id"], str)
        and isinstance(manifest["topics"], dict)
        and all(
            _TOPIC.fullmatch(name)
            and name not in (".", "..")
            and isinstance(topic, dict)
            and isinstance(topic.get("id"), str)
            and type(topic.get("partitions")) is int
            and isinstance(topic.get("config"), dict)
            for name, topic in manifest["topics"].items()
        )
    )


# ---- files ---------------------------------------------------------------------------------------


def store(path: Path, write: Callable[[BinaryIO], int]) -> int:
    """Write a file that is complete or absent; what `write` returns. The file is kept if that is
    not 0.
    """
    part = path.with_name(f".{path.name}{PART}")
    try:
        with part.open("wb") as file:
            count = write(file)
            file.flush()
            os.fsync(file.fileno())
        if count:
            os.rename(part, path)
        else:
            part.unlink()
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise
    if count:
        _sync_directory(path.parent)
    return count


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
