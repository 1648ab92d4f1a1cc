"""Writes the staged rows of a batch into the log, in the driver, after all tasks of the batch have
finished.

- All rows of a batch and its number are one transaction: `read_committed` readers see all of it or
  nothing.
- The number is an offset of the group named as the transactional id. It is the batch number plus
  one, for the partition of `__consumer_offsets` that contains this group, which is never deleted.
  It never expires. It is read only after the transactional id was taken over: earlier producers of
  this id can no longer write, and their transactions are decided.
- Every check runs before the first byte of the batch goes to the log.
- A write without a transactional id leaves only its rows: no group, and a random id that
  housekeeping removes.
- Rows are read from the mapped staged files and sent piece by piece: memory does not grow with the
  batch.
- `overwrite` has two steps, both recorded in the log. First the new rows are written with the
  offsets where they begin, then all records before those offsets are deleted. A repeated job
  continues with the second step.
- After the commit nothing raises but the second step of `overwrite`, which a repetition makes, too.
  Closing the log, housekeeping and removing files are not worth rows that are written twice, as
  Spark repeats a job that raises: they warn.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import embedlog
from embedlog import GroupMetadata, OffsetAndMetadata, TopicPartition
from embedlog.spark.staging import (
    Staged,
    StagingArea,
    TopicRows,
    discard,
    remove_dead,
    remove_written,
)
from embedlog.spark.write_options import WriteSettings
from embedlog.spark.write_task import TOPIC

logger = logging.getLogger("embedlog.spark")

MINUTE_MS = 60_000
BLOCK_MS = 5 * MINUTE_MS  # for locks and slow disks
OPEN_MS = 15 * MINUTE_MS  # minimum timeout of a transaction
BYTES_PER_MS = 1000  # throughput of a slow disk
BUFFER_BYTES = 64 << 20
TIMEOUT_MOST_MS = 2**31 - 1
OFFSETS_TOPIC = "__consumer_offsets"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, "__transaction_state"})


@dataclass(frozen=True)
class WriteId:
    """The identity of a write: transactional id and batch; an empty `name` is a write that is never
    repeated.
    """

    name: str = ""
    batch: int = 0
    query: str = ""  # the stream's id: another stream has other batches

    def __str__(self) -> str:
        return f"batch {self.batch} of {self.name!r}" if self.name else "the job"


def commit(
    settings: WriteSettings,
    write_id: WriteId,
    staged: Sequence[Staged],
    area: StagingArea,
    *,
    overwrite: bool = False,
) -> bool:
    """Write a batch and remove its staged files and those of drivers that have ended. Returns and
    raises as `write`.
    """
    for staging_place in settings.staging_places():
        remove_dead(staging_place.staging)
    written = write(settings, write_id, staged, overwrite=overwrite)
    clear([area.path, *(each.area for each in staged)])
    owner = write_id.query or write_id.name
    if owner:
        for staging_place in settings.staging_places():
            remove_written(staging_place.staging, owner, write_id.batch)
    return written


def clear(areas: Iterable[str]) -> None:
    """Remove these directories of writers. What cannot be removed is a warning."""
    problems = discard(filter(None, areas))
    if problems:
        logger.warning(
            "staged files cannot be removed, and stay (%d of them): %s", len(problems), problems[0]
        )


def _warn_of_failure(write_id: WriteId, what: str, call: Callable[[], object]) -> None:
    """Make a call after the commit."""
    try:
        call()
    except Exception as problem:  # noqa: BLE001 (whatever it is: the rows are visible)
        logger.warning("%s is written; %s failed after it: %s", write_id, what, problem)


def write(
    settings: WriteSettings, write_id: WriteId, staged: Sequence[Staged], *, overwrite: bool = False
) -> bool:
    """Write the staged rows as one transaction; False if this batch was written before.

    Raises UnknownTopicOrPartitionError, InvalidTopicError, RecordTooLargeError, InvalidRecordError,
    PolicyViolationError and ConfigError for rows that cannot be written, StorageError if a staged
    file is missing; then nothing is written. Raises FencedError if a later producer has the same
    transactional id, and the errors of an append. Then nothing is visible, unless the commit itself
    was in progress. A repetition finds out.
    """
    files = sorted((file for file in staged if file.rows), key=lambda file: file.task)
    timeout_ms = _timeout_ms(files)
    config = {"transaction.max.timeout.ms": timeout_ms, "shared": settings.shared}
    with contextlib.ExitStack() as opened:
        log = opened.enter_context(embedlog.open(settings.directory, create=False, config=config))
        topics = _check(log, settings.topic, files, overwrite)
        if not (files or write_id.name or overwrite):
            return False
        written = _Write(log, settings, write_id, files).run(
            topics if overwrite else [], timeout_ms
        )
        opened.pop_all()
    # Spark may be the only writer of this log
    _warn_of_failure(write_id, "housekeeping", partial(log.housekeep, due_only=True))
    _warn_of_failure(write_id, "closing the log", log.close)
    return written


class _Write:
    """The write of one batch."""

    def __init__(
        self, log: embedlog.Log, settings: WriteSettings, write_id: WriteId, files: Sequence[Staged]
    ) -> None:
        self._log = log
        self._settings = settings
        self._write_id = write_id
        self._files = files
        self._first: dict[TopicPartition, int] = {}  # offset of the first new record
        self._id = write_id.name or f"embedlog-spark-{secrets.token_hex(16)}"

    def run(self, overwritten: Sequence[str], timeout_ms: int) -> bool:
        """False if it was written before; `overwritten`: topics whose present records are
        deleted.
        """
        if self._write_id.name:
            self._log.keep_group(self._write_id.name)
        with contextlib.ExitStack() as opened:
            producer = opened.enter_context(self._producer(timeout_ms))
            producer.init_transactions()
            marks = self._log.group_offsets(self._write_id.name) if self._write_id.name else {}
            if self._is_written(marks):
                logger.info("%s has been written before", self._write_id)
                starts = _starts(marks) if overwritten else {}
                written = False
            else:
                # not before: the files of a written batch may be removed already
                _check_files(self._files)
                starts = self._ends(overwritten)
                with producer.transaction():
                    self._send(producer)
                    if overwritten:
                        starts |= self._first
                    if self._write_id.name:
                        self._mark(producer, starts)
                written = True
            opened.pop_all()
        _warn_of_failure(self._write_id, "closing the producer", producer.close)
        self._delete_before(starts)
        return written

    def _producer(self, timeout_ms: int) -> embedlog.Producer:
        record_sizes = [facts.largest for file in self._files for facts in file.topics.values()]
        largest = max(record_sizes, default=0)
        return self._log.producer(
            {"compression.type": self._settings.compression},
            transactional_id=self._id,
            transaction_timeout_ms=timeout_ms,
            max_block_ms=BLOCK_MS,
            delivery_timeout_ms=2 * BLOCK_MS,
            linger_ms=0,
            max_request_size=TIMEOUT_MOST_MS,  # `_check` checks each topic's own limit
            buffer_memory=max(BUFFER_BYTES, 4 * largest),
            partitioner=self._settings.made_partitioner(),
        )

    # ---- the number of the last batch ------------------------------------------------------------

    def _is_written(self, marks: Mapping[TopicPartition, OffsetAndMetadata]) -> bool:
        batch_marks = [offset for tp, offset in marks.items() if tp.topic == OFFSETS_TOPIC]
        if not batch_marks:
            return False
        mark = max(batch_marks)
        if mark.metadata != self._write_id.query:
            name = self._write_id.name
            raise embedlog.ConfigError(
                f"transactionalId {name!r} belongs to another stream or job, whose last batch was "
                f"{mark.offset - 1}: a"
                " new checkpoint begins a new stream with other batches. Choose another "
                "transactionalId, or release the old one:"
                f" log.delete_group({name!r})",
                expected=f"query {mark.metadata or 'none: a job'}",
                found=f"query {self._write_id.query or 'none: a job'}",
            )
        if mark.offset <= self._write_id.batch:
            return False
        if not self._write_id.query and self._write_id.batch + 1 < mark.offset:
            logger.warning(
                "%s is not written: batch %d was written before, and batchId must increase from "
                "job to job",
                self._write_id,
                mark.offset - 1,
            )
        return True

    def _mark(self, producer: embedlog.Producer, starts: Mapping[TopicPartition, int]) -> None:
        offsets = {tp: OffsetAndMetadata(start) for tp, start in starts.items()}
        number = group_partition(
            self._write_id.name, len(self._log.describe_topic(OFFSETS_TOPIC).partitions)
        )
        offsets[TopicPartition(OFFSETS_TOPIC, number)] = OffsetAndMetadata(
            self._write_id.batch + 1, self._write_id.query
        )
        producer.send_offsets_to_transaction(offsets, GroupMetadata(self._write_id.name))

    # ---- rows ------------------------------------------------------------------------------------

    def _send(self, producer: embedlog.Producer) -> None:
        """Send the rows; check the results of earlier pieces while later ones are read."""
        under_way: list[tuple[Staged, Any]] = []
        for staged in self._files:
            for topic, batch in _pieces(staged):
                under_way.append((staged, producer.send_batch(topic, batch)))
                while len(under_way) > 1 and (under_way[0][1].done() or len(under_way) > 8):
                    self._await_result(*under_way.pop(0))
        producer.flush()
        for staged, future in under_way:
            self._await_result(staged, future)

    def _await_result(self, staged: Staged, future: Any) -> None:
        try:
            for topic, partition, base, _ in future.result(BLOCK_MS / 1000):
                tp = TopicPartition(topic, partition)
                self._first[tp] = min(base, self._first.get(tp, base))
        except embedlog.EmbedlogError as problem:
            problem.message = f"rows of task {staged.task} cannot be written: {problem.message}"
            raise

    # ---- overwriting -----------------------------------------------------------------------------

    def _ends(self, topics: Sequence[str]) -> dict[TopicPartition, int]:
        """The current end of each partition of these topics: the limit of the deletion for
        partitions without a new record.
        """
        return {
            TopicPartition(topic, partition.partition): partition.log_end_offset
            for topic in topics
            for partition in self._log.describe_topic(topic).partitions
        }

    def _delete_before(self, starts: Mapping[TopicPartition, int]) -> None:
        if starts:
            self._log.delete_records(starts)


def group_partition(group_id: str, count: int) -> int:
    """The partition of `__consumer_offsets` that holds a group: Kafka's
    `abs(groupId.hashCode()) % count`.
    """
    code = 0
    for unit in array("H", group_id.encode("utf-16-le", "surrogatepass")):
        code = (31 * code + unit) & 0xFFFFFFFF
    smallest = 1 << 31  # Kafka's abs() of the smallest int is 0
    return 0 if code == smallest else min(code, (1 << 32) - code) % count


def _starts(marks: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, int]:
    return {tp: offset.offset for tp, offset in marks.items() if tp.topic != OFFSETS_TOPIC}


# ---- checks before the write ---------------------------------------------------------------------


def _check(log: embedlog.Log, topic: str, files: Sequence[Staged], overwrite: bool) -> list[str]:
    """Check the rows against the settings of their topics; return the topics. Raises as `write`."""
    names = [topic] if topic else []
    rows: dict[str, str] = {}  # the first one of each topic, for messages
    for file in files:
        for name, facts in file.topics.items():
            names.append(name)
            rows.setdefault(name, f"row {facts.largest_row} of task {file.task}")
    topics = list(dict.fromkeys(names))
    for name in topics:
        check_topic(log, name, rows.get(name, "no row at all"), overwrite)
    for file in files:
        for name, facts in file.topics.items():
            _check_facts(log, name, facts, file.task)
    return topics


def check_topic(log: embedlog.Log, name: str, row: str, overwrite: bool) -> None:
    """Raises UnknownTopicOrPartitionError, InvalidTopicError, PolicyViolationError. `row`: the
    source of the topic's name.
    """
    if name in INTERNAL_TOPICS:
        raise embedlog.InvalidTopicError(
            f"topic {name} is one of the log's own topics and cannot be written (named by {row})"
        )
    if name not in log.topics():
        with contextlib.suppress(embedlog.UnknownTopicOrPartitionError):
            log.describe_topic(name)  # raises InvalidTopicError for a name that no topic can have
        raise embedlog.UnknownTopicOrPartitionError(
            f"no such topic: {name} (named by {row}); create it with create_topic()",
            path=log.path,
            expected=f"one of: {', '.join(log.topics()) or 'no topic'}",
            found=name,
        )
    if overwrite and "delete" not in (
        policy := log.config.topic_config(log.describe_topic(name).config).cleanup_policy
    ):
        raise embedlog.PolicyViolationError(
            f"topic {name} cannot be overwritten: it is compacted, and its records are never "
            "deleted",
            expected="cleanup.policy with delete",
            found=",".join(policy),
        )


def _check_facts(log: embedlog.Log, name: str, facts: TopicRows, task: int) -> None:
    topic = log.describe_topic(name)
    config = log.config.topic_config(topic.config)
    count = topic.partition_count
    if facts.partition >= count:
        raise embedlog.UnknownTopicOrPartitionError(
            f"row {facts.partition_row} of task {task}: topic {name} has no partition "
            f"{facts.partition}",
            path=log.path,
            expected=f"0 to {count - 1}",
            found=facts.partition,
        )
    config.check_batch(
        facts.largest,
        f"row {facts.largest_row} of task {task} for topic {name}, before compression,",
    )
    if config.compacted and facts.keyless_row >= 0:
        raise embedlog.InvalidRecordError(
            f"row {facts.keyless_row} of task {task} has no key, and topic {name} is compacted: "
            "every record needs one"
        )


def _check_files(files: Sequence[Staged]) -> None:
    """Raises StorageError if a file is missing or does not have the size that its task reported."""
    for staged in files:
        try:
            size = os.stat(staged.path).st_size
        except OSError as problem:
            raise embedlog.StorageError(
                f"the driver cannot see the file that task {staged.task} staged on {staged.host}: "
                "stagingDirectory must be"
                f" visible to every machine ({problem.strerror})",
                path=staged.path,
            ) from problem
        if size != staged.size:
            raise embedlog.StorageError(
                f"the file that task {staged.task} staged on {staged.host} is incomplete",
                path=staged.path,
                expected=f"{staged.size} bytes",
                found=size,
            )


def _pieces(staged: Staged) -> Iterator[tuple[str, Any]]:
    """The file's batches, mapped and not copied, each with its topic. Raises StorageError."""
    import pyarrow

    try:
        with pyarrow.memory_map(staged.path) as source:
            reader = pyarrow.ipc.open_file(source)
            for number in range(reader.num_record_batches):
                batch, metadata = reader.get_batch_with_custom_metadata(number)
                yield metadata[TOPIC].decode(), batch
    except (OSError, pyarrow.ArrowInvalid) as problem:
        message = f"the file that task {staged.task} staged cannot be read: {problem}"
        raise embedlog.StorageError(message, path=staged.path) from problem


def _timeout_ms(files: Sequence[Staged]) -> int:
    """The timeout of a transaction whose process hangs (an ended one is detected at once): enough
    for the slowest disk.
    """
    size_bytes = sum(file.size for file in files)
    return min(TIMEOUT_MOST_MS, OPEN_MS + size_bytes // BYTES_PER_MS)
