"""Mutants of the engine, administration, producers and consumers."""

from __future__ import annotations

import contextlib

from tests.support.mutants.registry import replaces

# ---- engine and administration -----------------------------------------------------------------------


@replaces("close_own_only", "embedlog.engine.log_directory:LogDirectory._close_all")
def _nothing_is_closed_in_order(original, self):
    return None


@replaces("keep_offsets", "embedlog.coordination.groups.offset_commits:Offsets.forget_topics")
def _offsets_outlive_the_topic(original, self, topics, deadline_ns, is_deleted=lambda name: True):
    return None


@replaces("many_housekeepers", "embedlog.admin.directory_jobs:DirectoryJobs.hold")
def _without_the_lock(original, self, deadline_ns):
    return contextlib.nullcontext()


# ---- producers ---------------------------------------------------------------------------------------


@replaces("no_stamp", "embedlog.producer.idempotence:IdempotentAppender.prepare")
def _unprepared(original, self, target):
    return None


@replaces("retry_unstamped", "embedlog.producer.idempotence:IdempotentAppender.append")
def _repeated_without_the_stamp(original, self, target, attempt, deadline_ns):
    stamp = attempt.stamp
    if attempt.tries > 1:
        attempt.stamp = None
    try:
        return original(self, target, attempt, deadline_ns)
    finally:
        attempt.stamp = stamp


# ---- consumers ---------------------------------------------------------------------------------------


@replaces("no_lease_check", "embedlog.consumer.coordinator:ConsumerCoordinator._good_until_ns")
def _good_for_ever(original, self):
    return 1 << 62


@replaces("leave_to_housekeeper", "embedlog.consumer.waiter:Waiter._end_blocking_transactions")
def _no_help(original, self, now):
    return False
