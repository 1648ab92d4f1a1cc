"""Reads and writes the JSON files of kafka-reassign-partitions and kafka-leader-election.

REASSIGNMENTFILE-1  a file with another form is a usage error that names the file
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from embedlog import TopicPartition

FORM = 'expected {"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2]}]}'


def _entries(path: str, key: str) -> list[dict[str, Any]]:
    try:
        found = json.loads(Path(path).read_text())[key]
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            raise TypeError(key)
    except (ValueError, KeyError, TypeError):
        raise click.UsageError(f"{path}: no list {key!r}: {FORM}") from None
    return found


def partitions_in(path: str) -> list[TopicPartition]:
    """The partitions of a file."""
    try:
        return [
            TopicPartition(str(each["topic"]), int(each["partition"]))
            for each in _entries(path, "partitions")
        ]
    except (KeyError, TypeError, ValueError):
        raise click.UsageError(f"{path}: {FORM}") from None


def assignment_in(path: str) -> dict[TopicPartition, list[int]]:
    """The nodes of each partition of a file."""
    try:
        return {
            TopicPartition(str(each["topic"]), int(each["partition"])): [
                int(node) for node in each["replicas"]
            ]
            for each in _entries(path, "partitions")
        }
    except (KeyError, TypeError, ValueError):
        raise click.UsageError(f"{path}: {FORM}") from None


def topics_in(path: str) -> list[str]:
    """The topics of a file {"topics":[{"topic":"t"}],"version":1}."""
    try:
        return [str(each["topic"]) for each in _entries(path, "topics")]
    except (KeyError, TypeError):
        raise click.UsageError(
            f'{path}: expected {{"version":1,"topics":[{{"topic":"t"}}]}}'
        ) from None


def described(assignment: Mapping[TopicPartition, Sequence[int]]) -> dict[str, Any]:
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
