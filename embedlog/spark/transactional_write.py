"""From the staging directory into the log: what the driver does when all tasks of a batch are done.

SPARKCOMMIT-1  all rows of a batch, and that it was written, are one transaction: `read_committed` readers see all of it or
    nothing
SPARKCOMMIT-2  that it was written is an offset of the group that is called as who writes: the number of the batch and one, filed
    under the partition that this group itself lies in, which nobody deletes. It rests in the log, never expires, and is read only
    after the transactional id has been taken over: whoever had it before can write no more, and what he left is decided
SPARKCOMMIT-3  everything that can be refused is looked at before anything of the batch goes to the log
SPARKCOMMIT-4  who is nobody leaves nothing behind but his rows: no group, and a transactional id that housekeeping forgets
SPARKCOMMIT-5  rows are read where they lie, in the staged files, and go to the log piece by piece: memory does not grow with the
    batch
SPARKCOMMIT-6  `overwrite` is two steps that are both kept in the log: the new rows with the place where they begin, then the
    deletion of what is before that place; who repeats the job goes on with the second
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import embedlog
from embedlog import GroupMetadata, OffsetAndMetadata, TopicPartition
from embedlog.spark.staging import Facts, Staged, StagingArea, remove_dead
from embedlog.spark.write_options import WriteSettings
from embedlog.spark.write_task import TOPIC

logger = logging.getLogger("embedlog.spark")

MINUTE_MS = 60_000
BLOCK_MS = 5 * MINUTE_MS  # for locks and disks
OPEN_MS = 15 * MINUTE_MS  # that a transaction may take at least
BYTES_PER_MS = 1000  # that even a slow disk takes
BUFFER_BYTES = 64 << 20
TIMEOUT_MOST_MS = 2**31 - 1
OFFSETS_TOPIC = "__consumer_offsets"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, "__transaction_state"})


@dataclass(frozen=True)
class WriteId:
    """Who writes which batch; `name` empty: nobody, who will not come again."""

    name: str = ""
    batch: int = 0
    query: str = ""  # the stream's id: batches of another stream are other batches

    def __str__(self) -> str:
        return f"batch {self.batch} of {self.name!r}" if self.name else "the job"


def commit(
    settings: WriteSettings, who: WriteId, staged: Sequence[Staged], area: StagingArea, *, overwrite: bool = False
) -> bool:
    """Write a batch, and remove what was staged for it; what dead drivers have left goes, too. As `write`."""
    remove_dead(settings.staging)
    written = write(settings, who, staged, overwrite=overwrite)
    area.clear(who.batch if who.query else None)
    return written


def write(settings: WriteSettings, who: WriteId, staged: Sequence[Staged], *, overwrite: bool = False) -> bool:
    """Write what the tasks have staged, as one transaction; False if this batch has been written before.

    Raises UnknownTopicOrPartitionError, InvalidTopicError, RecordTooLargeError, InvalidRecordError, PolicyViolationError and
    ConfigError for what cannot be written, StorageError if a staged file is not there; then nothing is written. FencedError if
    somebody of the same name came after, and whatever an append raises: then it is as if nothing was written, or, if the commit
    itself was on its way, a repetition finds out.
    """
    files = [each for each in sorted(staged, key=lambda each: each.task) if each.rows]
    timeout_ms = _timeout_ms(files)
    config = {"transaction.max.timeout.ms": timeout_ms, "shared": settings.shared}
    with embedlog.open(settings.directory, create=False, config=config) as log:
        topics = _check(log, settings.topic, files, overwrite)
        if not (files or who.name or overwrite):
            return False
        written = _Write(log, settings, who, files).run(topics if overwrite else [], timeout_ms)
        try:
            log.housekeep(due_only=True)  # where nobody but Spark writes, nobody else does it
        except embedlog.EmbedlogError as problem:
            logger.warning("housekeeping behind %s: %s", who, problem)
        return written


class _Write:
    """One batch on its way."""

    def __init__(self, log: embedlog.Log, settings: WriteSettings, who: WriteId, files: Sequence[Staged]) -> None:
        self._log, self._settings, self._who, self._files = log, settings, who, files
        self._first: dict[TopicPartition, int] = {}  # offset of the first new record
        self._id = who.name or f"embedlog-spark-{secrets.token_hex(16)}"

    def run(self, overwritten: Sequence[str], timeout_ms: int) -> bool:
        """False if it was written before; `overwritten`: topics that lose what they have."""
        if self._who.name:
            self._log.keep_group(self._who.name)
        with self._producer(timeout_ms) as producer:
            producer.init_transactions()
            marks = self._log.group_offsets(self._who.name) if self._who.name else {}
            if self._is_written(marks):
                logger.info("%s has been written before", self._who)
                self._delete_before(_starts(marks) if overwritten else {})
                return False
            _check_files(self._files)  # not before: of a batch that is written they may be gone by now
            starts = self._ends(overwritten)
            with producer.transaction():
                self._send(producer)
                if overwritten:
                    starts |= self._first
                if self._who.name:
                    self._mark(producer, starts)
            self._delete_before(starts)
        return True

    def _producer(self, timeout_ms: int) -> embedlog.Producer:
        largest = max((facts.largest for each in self._files for facts in each.topics.values()), default=0)
        return self._log.producer(
            {"compression.type": self._settings.compression},
            transactional_id=self._id,
            transaction_timeout_ms=timeout_ms,
            max_block_ms=BLOCK_MS,
            delivery_timeout_ms=2 * BLOCK_MS,
            linger_ms=0,
            max_request_size=TIMEOUT_MOST_MS,  # `_check` has looked at each topic's own limit
            buffer_memory=max(BUFFER_BYTES, 4 * largest),
            partitioner=self._settings.made_partitioner(),
        )

    # ---- what was written before -----------------------------------------------------------------

    def _is_written(self, marks: Mapping[TopicPartition, OffsetAndMetadata]) -> bool:
        mark = max((offset for place, offset in marks.items() if place.topic == OFFSETS_TOPIC), default=None)
        if mark is None:
            return False
        if mark.metadata != self._who.query:
            raise embedlog.ConfigError(
                f"transactionalId {self._who.name!r} belongs to another stream or job, whose last batch was {mark.offset - 1}: a"
                " new checkpoint begins a new stream, and its batches are not those of the old one. Choose another"
                f" transactionalId, or let the old one be forgotten: log.delete_group({self._who.name!r})",
                expected=f"query {mark.metadata or 'none: a job'}", found=f"query {self._who.query or 'none: a job'}",
            )  # fmt: skip
        if mark.offset <= self._who.batch:
            return False
        if not self._who.query and self._who.batch + 1 < mark.offset:
            logger.warning("%s is not written: %d was written before, and batchId rises from job to job",
                           self._who, mark.offset - 1)  # fmt: skip
        return True

    def _mark(self, producer: embedlog.Producer, starts: Mapping[TopicPartition, int]) -> None:
        offsets = {place: OffsetAndMetadata(start) for place, start in starts.items()}
        number = group_partition(self._who.name, len(self._log.describe_topic(OFFSETS_TOPIC).partitions))
        offsets[TopicPartition(OFFSETS_TOPIC, number)] = OffsetAndMetadata(self._who.batch + 1, self._who.query)
        producer.send_offsets_to_transaction(offsets, GroupMetadata(self._who.name))

    # ---- rows ------------------------------------------------------------------------------------

    def _send(self, producer: embedlog.Producer) -> None:
        """Put the rows on their way, and see what became of each piece but the last ones while the next are read."""
        under_way: list[tuple[Staged, Any]] = []
        for staged in self._files:
            for topic, batch in _pieces(staged):
                under_way.append((staged, producer.send_batch(topic, batch)))
                while len(under_way) > 1 and (under_way[0][1].done() or len(under_way) > 8):
                    self._settle(*under_way.pop(0))
        producer.flush()
        for each in under_way:
            self._settle(*each)

    def _settle(self, staged: Staged, future: Any) -> None:
        try:
            for topic, partition, base, _ in future.result(BLOCK_MS / 1000):
                place = TopicPartition(topic, partition)
                self._first[place] = min(base, self._first.get(place, base))
        except embedlog.EmbedlogError as problem:
            problem.message = f"rows of task {staged.task} cannot be written: {problem.message}"
            raise

    # ---- overwriting -----------------------------------------------------------------------------

    def _ends(self, topics: Sequence[str]) -> dict[TopicPartition, int]:
        """Where each partition of these ends now: what is below goes, where no new record says more."""
        return {
            TopicPartition(topic, here.partition): here.log_end_offset
            for topic in topics
            for here in self._log.describe_topic(topic).partitions
        }

    def _delete_before(self, starts: Mapping[TopicPartition, int]) -> None:
        if starts:
            self._log.delete_records(starts)


def group_partition(group_id: str, count: int) -> int:
    """The partition of `__consumer_offsets` that holds a group: Kafka's `abs(groupId.hashCode()) % count`."""
    code = 0
    for unit in array("H", group_id.encode("utf-16-le", "surrogatepass")):
        code = (31 * code + unit) & 0xFFFFFFFF
    smallest = 1 << 31  # Kafka's abs() of the smallest int is 0
    return 0 if code == smallest else min(code, (1 << 32) - code) % count


def _starts(marks: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, int]:
    return {place: offset.offset for place, offset in marks.items() if place.topic != OFFSETS_TOPIC}


# ---- looking first -------------------------------------------------------------------------------


def _check(log: embedlog.Log, topic: str, files: Sequence[Staged], overwrite: bool) -> list[str]:
    """Everything that a topic can have against the rows; the topics. Raises what `write` does."""
    asked = [(name, facts, each.task) for each in files for name, facts in each.topics.items()]
    topics = list(dict.fromkeys([*([topic] if topic else []), *(name for name, _, _ in asked)]))
    rows = {name: f"row {facts.largest_row} of task {task}" for name, facts, task in reversed(asked)}
    for name in topics:
        check_topic(log, name, rows.get(name, "no row at all"), overwrite)
    for name, facts, task in asked:
        _check_facts(log, name, facts, task)
    return topics


def check_topic(log: embedlog.Log, name: str, row: str, overwrite: bool) -> None:
    """Raises UnknownTopicOrPartitionError, InvalidTopicError, PolicyViolationError. `row`: who asks for the topic."""
    if name in INTERNAL_TOPICS:
        raise embedlog.InvalidTopicError(f"topic {name} is the log's own: nobody else writes there (asked for by {row})")
    if name not in log.topics():
        with contextlib.suppress(embedlog.UnknownTopicOrPartitionError):
            log.describe_topic(name)  # raises InvalidTopicError for a name that no topic can have
        raise embedlog.UnknownTopicOrPartitionError(
            f"no such topic: {name} (asked for by {row}); create_topic() makes one",
            path=log.path, expected=f"one of: {', '.join(log.topics()) or 'none at all'}", found=name,
        )  # fmt: skip
    if overwrite and "delete" not in (policy := log.config.topic_config(log.describe_topic(name).config).cleanup_policy):
        raise embedlog.PolicyViolationError(
            f"topic {name} cannot be overwritten: its records are not deleted but compacted",
            expected="cleanup.policy with delete", found=",".join(policy),
        )  # fmt: skip


def _check_facts(log: embedlog.Log, name: str, facts: Facts, task: int) -> None:
    topic = log.describe_topic(name)
    config, count = log.config.topic_config(topic.config), topic.partition_count
    if facts.partition >= count:
        raise embedlog.UnknownTopicOrPartitionError(
            f"row {facts.partition_row} of task {task}: topic {name} has no partition {facts.partition}",
            path=log.path, expected=f"0 to {count - 1}", found=facts.partition,
        )  # fmt: skip
    config.check_batch(facts.largest, f"row {facts.largest_row} of task {task} for topic {name}, before compression,")
    if config.compacted and facts.keyless_row >= 0:
        raise embedlog.InvalidRecordError(
            f"row {facts.keyless_row} of task {task} has no key, and topic {name} is compacted: every record needs one"
        )


def _check_files(files: Sequence[Staged]) -> None:
    """Raises StorageError if a file is not what the task has left."""
    for staged in files:
        try:
            found = os.stat(staged.path).st_size
        except OSError as problem:
            raise embedlog.StorageError(
                f"the driver does not see what task {staged.task} has staged on {staged.host}: stagingDirectory has to be one"
                f" that every machine sees ({problem.strerror})", path=staged.path,
            ) from problem  # fmt: skip
        if found != staged.size:
            raise embedlog.StorageError(
                f"what task {staged.task} has staged on {staged.host} is not whole", path=staged.path,
                expected=f"{staged.size} bytes", found=found,
            )  # fmt: skip


def _pieces(staged: Staged) -> Iterator[tuple[str, Any]]:
    """The file's batches, each with its topic; they lie in the file, and nowhere else. Raises StorageError."""
    import pyarrow

    try:
        with pyarrow.memory_map(staged.path) as source:
            reader = pyarrow.ipc.open_file(source)
            for number in range(reader.num_record_batches):
                batch, told = reader.get_batch_with_custom_metadata(number)
                yield told[TOPIC].decode(), batch
    except (OSError, pyarrow.ArrowInvalid) as problem:
        message = f"what task {staged.task} has staged cannot be read: {problem}"
        raise embedlog.StorageError(message, path=staged.path) from problem


def _timeout_ms(files: Sequence[Staged]) -> int:
    """A transaction that is dead is seen at once, so this is for one that hangs: long enough for the slowest disk."""
    return min(TIMEOUT_MOST_MS, OPEN_MS + sum(each.size for each in files) // BYTES_PER_MS)
