"""Defines and checks the options of the Spark sink, in the same way as those of the source.

- All checks that need only the options run before Spark starts a task.
- Staged files are never inside a log directory: a broker refuses to start with unknown files.
- Only a write with a transactional id can be repeated and still be written once.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import embedlog
from embedlog.spark.option_names import check_names
from embedlog.spark.read_options import (
    OPTIONS,
    Directory,
    SourceOption,
    all_of,
    boolean,
    directory_of,
    first_of,
    missing_path,
    one_of,
    plain,
    refuse,
)
from embedlog.spark.staging import StagingPlace

META_PROPERTIES = "meta.properties"  # every log directory of Kafka contains this file

PARTITIONERS: Mapping[str, Callable[[], Any]] = {
    "murmur2": lambda: None,
    "roundrobin": embedlog.partitioners.RoundRobinPartitioner,
    "random": embedlog.partitioners.RandomPartitioner,
}


def _whole(name: str, text: str) -> int:
    word = text.strip()
    if not word.isdecimal() or int(word) >= 2**62:
        raise refuse(name, "a whole number from 0", text)
    return int(word)


def _partitioner(name: str, text: str) -> str:
    if text.strip().lower() in PARTITIONERS:
        return text.strip().lower()
    module, _, attribute = text.strip().partition(":")
    if not module or not attribute:
        raise refuse(name, f"{', '.join(PARTITIONERS)} or module:callable", text)
    return text.strip()


def _name(name: str, text: str) -> str:
    if not 1 <= len(text.encode()) <= 2**15 - 1:
        raise refuse(name, "1 to 32767 bytes", text[:100])
    return text


WRITE_OPTIONS: dict[str, SourceOption] = {
    "path": SourceOption(
        plain,
        True,
        True,
        "",
        "The log directory, the argument of `save(…)` or `start(…)`. A set: a list in JSON.",
    ),
    "topic": SourceOption(
        plain,
        True,
        True,
        "",
        "The topic of all rows; without it the column `topic` of each row is used.",
    ),
    "transactionalId": SourceOption(
        _name,
        True,
        True,
        "none; in a stream `embedlog-spark-<query id>`",
        "The identity of the writer. The log records what was written under this name, so that a "
        "repetition writes nothing.",
    ),
    "batchId": SourceOption(
        _whole,
        True,
        False,
        "0",
        "The number of the job of this `transactionalId`; it must increase from job to job. A "
        "number"
        " not above the last one is a repetition and writes nothing.",
    ),
    "includeHeaders": SourceOption(
        boolean, True, True, "true", "Whether the column `headers` is written if it exists."
    ),
    "timestamp": SourceOption(
        boolean,
        True,
        True,
        "false, with a warning if there is the column",
        "Whether the column `timestamp` gives the records their time, as in a copy of a topic; "
        "null is the time of the write.",
    ),
    "partitioner": SourceOption(
        _partitioner,
        True,
        True,
        "murmur2",
        "Chooses partitions of rows without a number in the column: `murmur2` of the key"
        " as Kafka's clients do, `roundrobin`, `random`, or `module:callable` of (key, all "
        "partitions, available partitions).",
    ),
    "compression.type": SourceOption(
        one_of(*embedlog.CODECS),
        True,
        True,
        "none",
        "Codec; also as `kafka.compression.type`.",
    ),
    "shared": SourceOption(
        one_of("no", "locks"),
        True,
        True,
        "no",
        "`locks`: the directory is on a network file system (as in `embedlog.open`).",
    ),
    "stagingDirectory": SourceOption(
        plain,
        True,
        True,
        "the log directory's name with `.staging`; of a set, the first one that is available",
        "Directory for rows until the job commits; visible to driver and executors, outside of "
        "any log directory.",
    ),
}
_SOURCE = {name.lower() for name in OPTIONS} | {"kafka.isolation.level", "kafka.group.id"}
SPARKS_OWN = ("checkpointLocation", "queryName")  # options that Spark passes on to the sink
_BY_LOWER = {name.lower(): name for name in (*WRITE_OPTIONS, *SPARKS_OWN)} | {
    "kafka.compression.type": "compression.type"
}


@dataclass(frozen=True)
class WriteSettings:
    """The options of one write, checked."""

    directory: Directory
    staging: str = ""  # empty: beside the log directory
    topic: str = ""
    transactional_id: str = ""
    batch_id: int = 0
    headers: bool = True
    timestamp: bool | None = None  # None: not given
    partitioner: str = "murmur2"
    compression: str = "none"
    shared: str = "no"

    def members(self) -> list[str]:
        """The log directories that are available. Where a disk of a set is not mounted, there may
        be an empty directory.
        """
        directories = all_of(self.directory)
        if len(directories) == 1:
            return list(filter(os.path.isdir, directories))
        return [path for path in directories if os.path.isfile(os.path.join(path, META_PROPERTIES))]

    def staging_places(self) -> list[StagingPlace]:
        """Where rows can be staged, in the order of preference: beside each log directory that is
        available.
        """
        members = self.members()
        if self.staging:
            return [StagingPlace(self.staging, log) for log in members[:1]]
        return [StagingPlace(beside(log), log) for log in members]

    def made_partitioner(self) -> Any:
        """The partitioner for the producer. Raises ConfigError."""
        if self.partitioner in PARTITIONERS:
            return PARTITIONERS[self.partitioner]()
        module, _, attribute = self.partitioner.partition(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as problem:
            raise refuse(
                "partitioner",
                "an object that the driver can import",
                f"{self.partitioner}: {problem}",
            ) from None


def _value(name: str, text: str) -> Any:
    return text if name in SPARKS_OWN else WRITE_OPTIONS[name].read(name, text)


def parse_write(options: Mapping[str, str], *, stream: bool) -> WriteSettings:
    """Checked settings from Spark's options. Raises ConfigError."""
    values = check_names(options, _BY_LOWER, _SOURCE, "sink", _value)
    numbers = [name for name in values if name in WRITE_OPTIONS and not WRITE_OPTIONS[name].stream]
    if stream and numbers:
        raise embedlog.ConfigError(f"{', '.join(numbers)}: Spark numbers the batches of a stream")
    if not values.get("path", "").strip():
        raise missing_path(
            ".save(directory) or .start(directory)",
            "INSERT INTO name WITH (path = '…', topic = '…') …",
        )
    if "batchId" in values and "transactionalId" not in values:
        raise embedlog.ConfigError("batchId needs a transactionalId")
    directory = directory_of(values["path"])
    return WriteSettings(
        directory=directory,
        staging=_staging(values.get("stagingDirectory", ""), directory),
        topic=values.get("topic", ""),
        transactional_id=values.get("transactionalId", ""),
        batch_id=values.get("batchId", 0),
        headers=values.get("includeHeaders", True),
        timestamp=values.get("timestamp"),
        partitioner=values.get("partitioner", "murmur2"),
        compression=values.get("compression.type", "none"),
        shared=values.get("shared", "no"),
    )


def beside(log: str) -> str:
    """The staging directory beside a log directory."""
    return f"{log}.staging"


def _staging(path: str, directory: Directory) -> str:
    """The staging directory of the option; empty if there is none. Raises ConfigError if one is
    inside of a log directory.
    """
    if path:
        return _outside(first_of(directory_of(path)), directory)
    for log in all_of(directory):
        _outside(beside(log), directory)
    return ""


def _outside(staging: str, directory: Directory) -> str:
    """The staging directory, if it is outside of all log directories. Raises ConfigError."""
    logs = {os.path.realpath(log) for log in all_of(directory)}
    path = os.path.realpath(staging)
    while True:
        if path in logs or os.path.exists(os.path.join(path, META_PROPERTIES)):
            raise refuse(
                "stagingDirectory", f"a directory outside of the log directory {path}", staging
            )
        parent = os.path.dirname(path)
        if parent == path:
            return staging
        path = parent
