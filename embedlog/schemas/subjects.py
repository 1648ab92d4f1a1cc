"""Contains the names of subjects: functions of the topic, the field ("key" or "value") and the name
of the record.

The names are those of Confluent's TopicNameStrategy, RecordNameStrategy and
TopicRecordNameStrategy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

Field: TypeAlias = Literal["key", "value"]
SubjectName: TypeAlias = Callable[[str, Field, str], str]


def topic_name(topic: str, field: Field, record: str) -> str:
    """`orders-value`: one schema for each topic and field. The default."""
    return f"{topic}-{field}"


def record_name(topic: str, field: Field, record: str) -> str:
    """`shop.Order`: one schema for each record type, in all topics."""
    return record


def topic_record_name(topic: str, field: Field, record: str) -> str:
    """`orders-shop.Order`: one schema for each record type of a topic."""
    return f"{topic}-{record}"
