"""An idempotent append in doubt: the log is read, then the run is appended, or found in the log.

- The log is read before the append lock is taken, the rest under the lock; only headers are read.
- A refusal leaves log and lock as they were.
- The same run again after any error is appended once, and the result is its place in the log.
- An expected offset is compared with the log end under the lock, after the search for the run. A
  run that is in the log is never refused.
"""

from __future__ import annotations

from embedlog._native import system
from embedlog.errors import EmbedlogError, OffsetMismatchError
from embedlog.format import sequence_rules
from embedlog.format.record_columns import Stamp
from embedlog.partition.append_lock import AppendLock
from embedlog.partition.log_context import AppendProgress


class _Undone(Exception):
    """A failed append could not be undone: the lock is left as by a killed process."""


def append(lock: AppendLock, stamp: Stamp, progress: AppendProgress, deadline_ns: int) -> int:
    """Read the log, then append, or find the run there; a code of the C core.

    Raises errors of `sequence_rules`, and OffsetMismatchError.
    """
    lock.producers.catch_up()
    try:
        verdict, code = _append_checked(lock, stamp, progress, deadline_ns)
    except _Undone:
        return system.MUST_REPAIR
    if isinstance(verdict, EmbedlogError):
        raise verdict
    if verdict:
        _take_duplicates(lock, stamp, progress, verdict)
    return code


def _append_checked(
    lock: AppendLock, stamp: Stamp, progress: AppendProgress, deadline_ns: int
) -> tuple[int | EmbedlogError, int]:
    producers = lock.producers
    with lock.exclusive_mutexed(deadline_ns) as locked:
        verdict = sequence_rules.check_sequences(
            locked.producer_state(locked.published), stamp, progress.table_left
        )
        if verdict == 0:
            verdict = _find_mismatch(lock, progress, locked.published.log_end) or 0
        if verdict != 0:
            return verdict, system.APPENDED
        writer = lock.writer.native()
        if not (writer.are_settings_current() and progress.is_accepted_by(lock.state.config)):
            return 0, system.OTHER_SETTINGS
        arguments = (progress.run.buffer, progress.start, progress.table_left)
        code = writer.append_locked(*arguments)
        # as for the first append to a partition: here, the checks need not be repeated
        if code == system.MUST_REOPEN:
            try:
                lock.resolve_code_held(code)
            except EmbedlogError as problem:  # nothing was written: the lock is left in order
                return problem, code
            code = writer.append_locked(*arguments)
        if code == system.MUST_REPAIR:
            raise _Undone
        if code == system.APPENDED:
            out = writer.out
            producers.update(stamp, out.next_sequence, out.seen)
            # the next such run reads nothing then
            if stamp.transactional or progress.expected_offset is not None:
                producers.take_appended(progress.run, progress.start, writer)
            progress.take(out.base_offset, out.next_offset, out.consumed, out.append_time_ms)
        return 0, code


def _find_mismatch(
    lock: AppendLock, progress: AppendProgress, log_end: int
) -> OffsetMismatchError | None:
    """The refusal of a run that expects another offset. A run that was begun had its offset."""
    expected = progress.expected_offset
    if expected is None or progress.start or expected == log_end:
        return None
    state = lock.state
    return OffsetMismatchError.of(state.topic, state.number, expected, log_end)


def _take_duplicates(lock: AppendLock, stamp: Stamp, progress: AppendProgress, count: int) -> None:
    """Add the places of batches that are in the log already to the progress."""
    rows = progress.rows_left[:count]
    batches = lock.producers.find_batches(stamp, rows)
    has_append_time = lock.state.config.message_timestamp_type == "LogAppendTime"
    for row in rows:
        base, following, timestamp = batches[int(row["base_sequence"])]
        if not has_append_time:
            timestamp = -1
        progress.take(base, following, int(row["size"]), timestamp)
