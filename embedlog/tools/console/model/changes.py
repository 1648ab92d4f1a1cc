"""Changes a log for the console: each change opens the log for writing, and closes it again.

- A log is created nowhere: only one that exists is opened.
- The console itself does no housekeeping; the open log of a change does none but its own.
- The wait for a record that is sent has a deadline of `DEADLINE_S`, all others have those of the
  settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import embedlog
from embedlog import Log, TopicPartition
from embedlog.tools.console.model.filters import FilterError, parse_moment

DEADLINE_S = 30.0
# what a form asks for: whoever makes one changes nothing before `apply_change`
Change = Callable[[Log], str]


def apply_change(paths: Sequence[str], change: Change) -> str:
    """Open the log, change it; returns a sentence about the result. Raises EmbedlogError."""
    path = paths[0] if len(paths) == 1 else list(paths)
    with embedlog.open(path, create=False, housekeeping=False) as log:
        return change(log)


def create_topic(name: str, partitions: int, settings: Mapping[str, str]) -> Change:
    """A change that creates a topic."""

    def change(log: Log) -> str:
        log.create_topic(name, partitions, dict(settings))
        return f"created topic {name}"

    return change


def delete_topic(name: str) -> Change:
    """A change that deletes a topic and its records."""

    def change(log: Log) -> str:
        log.delete_topic(name)
        return f"deleted topic {name}"

    return change


def delete_records(topic: str, partition: int, offset: int) -> Change:
    """A change that deletes the records below an offset."""

    def change(log: Log) -> str:
        starts = log.delete_records({TopicPartition(topic, partition): offset})
        return f"{topic}-{partition} begins at {starts[TopicPartition(topic, partition)]}"

    return change


def reset_group(group: str, topic: str, to: Any) -> Change:
    """A change that commits other offsets for a group."""

    def change(log: Log) -> str:
        offsets = log.reset_group_offsets(group, topic or None, to=to)
        positions = ", ".join(
            f"{tp.topic}-{tp.partition} to {committed.offset}"
            for tp, committed in sorted(offsets.items())
        )
        return f"reset {group}: {positions}"

    return change


def send(
    topic: str,
    partition: int | None,
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes]],
) -> Change:
    """A change that sends a record."""

    def change(log: Log) -> str:
        with log.producer() as producer:
            sent = producer.send(topic, value, key, partition=partition, headers=headers).result(
                timeout=DEADLINE_S
            )
        return f"sent {sent.topic}-{sent.partition} offset {sent.offset}"

    return change


def abort_transaction(transactional_id: str) -> Change:
    """A change that takes a transactional id over, which aborts its transaction and fences its
    producer.
    """

    def change(log: Log) -> str:
        with log.producer(transactional_id=transactional_id) as producer:
            outcome = producer.init_transactions()
        if outcome is None:
            return f"{transactional_id} had no transaction"
        if outcome.kind == "commit":  # its decision was there, and is completed
            return f"the last transaction of {transactional_id} is committed"
        return f"aborted the transaction of {transactional_id}"

    return change


# ---- texts of forms ------------------------------------------------------------------------------


def settings_of(text: str) -> dict[str, str]:
    """Settings as they are typed: name=value, separated by spaces. Raises FilterError."""
    return dict(_split_pairs("settings", text))


def headers_of(text: str) -> list[tuple[str, bytes]]:
    """Headers as they are typed: name=value, separated by spaces; several may have one name. Raises
    FilterError.
    """
    return [
        (name, value.encode("utf-8", "surrogateescape"))
        for name, value in _split_pairs("headers", text)
    ]


def _split_pairs(field: str, text: str) -> list[tuple[str, str]]:
    pairs = []
    for part in text.split():
        name, sign, value = part.partition("=")
        if not sign or not name:
            raise FilterError(f"{field}: expected name=value, found {part!r:.60}")
        pairs.append((name, value))
    return pairs


def number_of(name: str, text: str, least: int = 0) -> int:
    """A number as it is typed. Raises FilterError."""
    if not text.strip().isdecimal() or len(text) > 18 or int(text) < least:
        raise FilterError(f"{name}: expected a number of at least {least}, found {text!r:.60}")
    return int(text)


def target_of(text: str, now_ms: int) -> Any:
    """The `to` of a reset: earliest, latest, an offset, +n or -n, or @time. Raises FilterError."""
    target = text.strip()
    if target in ("earliest", "latest"):
        return target
    if target.startswith("@"):
        time_ms = parse_moment("to", target[1:], now_ms)
        if time_ms is not None:
            return datetime.fromtimestamp(time_ms / 1000, UTC)
    elif target[:1] in ("+", "-") and target[1:].isdecimal() and len(target) <= 18:
        return {"shift": int(target)}
    elif target.isdecimal() and len(target) <= 18:
        return int(target)
    raise FilterError(
        f"to: expected earliest, latest, an offset, +n, -n or @time, found {text!r:.60}"
    )
