"""Reads and writes the JSON files of kafka-reassign-partitions and kafka-leader-election.

A file with another form is a usage error that names the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from embedlog import TopicPartition

FORM = 'expected {"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2]}]}'


def _read_entries(path: str, key: str) -> list[dict[str, Any]]:
    try:
        entries = json.loads(Path(path).read_text())[key]
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise TypeError(key)
    except (ValueError, KeyError, TypeError):
        raise click.UsageError(f"{path}: no list {key!r}: {FORM}") from None
    return entries


def read_partitions(path: str) -> list[TopicPartition]:
    """The partitions of a file."""
    try:
        return [
            TopicPartition(str(entry["topic"]), int(entry["partition"]))
            for entry in _read_entries(path, "partitions")
        ]
    except (KeyError, TypeError, ValueError):
        raise click.UsageError(f"{path}: {FORM}") from None


def read_assignment(path: str) -> dict[TopicPartition, list[int]]:
    """The nodes of each partition of a file."""
    try:
        return {
            TopicPartition(str(entry["topic"]), int(entry["partition"])): [
                int(node) for node in entry["replicas"]
            ]
            for entry in _read_entries(path, "partitions")
        }
    except (KeyError, TypeError, ValueError):
        raise click.UsageError(f"{path}: {FORM}") from None


def read_topics(path: str) -> list[str]:
    """The topics of a file {"topics":[{"topic":"t"}],"version":1}."""
    try:
        return [str(entry["topic"]) for entry in _read_entries(path, "topics")]
    except (KeyError, TypeError):
        raise click.UsageError(
            f'{path}: expected {{"version":1,"topics":[{{"topic":"t"}}]}}'
        ) from None


def document_of(assignment: Mapping[TopicPartition, Sequence[int]]) -> dict[str, Any]:
    """An assignment in Kafka's form."""
    entries = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "replicas": list(nodes),
            "log_dirs": ["any"] * len(nodes),
        }
        for tp, nodes in assignment.items()
    ]
    return {"version": 1, "partitions": entries}
