"""This module finds the high watermark of a replica for retention and compaction, which must not
pass it (REPLICA-20).

KNOWNHIGH-1  a page without a role was made from files, and shows their end. Until a decision gives
    it a role, the high watermark is that of the checkpoint: records after it may be cut
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedlog._native import replication
from embedlog._native.replication import ROLE_NONE

if TYPE_CHECKING:
    from embedlog._native.system import Published
    from embedlog.partition.state import PartitionState


def known_high_watermark(state: PartitionState, now: Published, role: int | None = None) -> int:
    """The offset below which records are known to be committed: that of the page, if the directory
    belongs to no set.

    `role`: that in the page, if it is known.
    """
    if not state.context.in_set:
        return now.high_watermark
    if role is None and (found := replication.read(state.page)) is not None:
        role = found[1].role
    if role not in (None, ROLE_NONE):
        return now.high_watermark
    noted = state.context.high_watermarks
    known = 0 if noted is None else noted.of(state.topic, state.number)
    return max(now.log_start, min(known, now.log_end))


def as_known(state: PartitionState) -> Published:
    """The published tuple with the known high watermark. Raises StorageError."""
    now = state.published()
    return now._replace(high_watermark=known_high_watermark(state, now))
