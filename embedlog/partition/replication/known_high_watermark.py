"""This module finds the high watermark of a replica for retention and compaction, which must not
pass it (REPLICA-20).

- A page without a role was made from files, and shows their end. Until a decision gives it a role,
  the high watermark is that of the checkpoint: records after it may be cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedlog._native import replication
from embedlog._native.replication import ROLE_NONE

if TYPE_CHECKING:
    from embedlog._native.system import Published
    from embedlog.partition.state import PartitionState


def known_high_watermark(
    state: PartitionState, published: Published, role: int | None = None
) -> int:
    """The offset below which records are known to be committed: that of the page, if the directory
    belongs to no set.

    `role`: that in the page, if it is known.
    """
    if not state.context.in_set:
        return published.high_watermark
    if role is None:
        publication = replication.read(state.page)
        if publication is not None:
            role = publication[1].role
    if role not in (None, ROLE_NONE):
        return published.high_watermark
    checkpoint = state.context.high_watermarks
    high_watermark = 0
    if checkpoint is not None:
        high_watermark = checkpoint.of(state.topic, state.number)
    return max(published.log_start, min(high_watermark, published.log_end))


def with_known_high_watermark(state: PartitionState) -> Published:
    """The published tuple with the known high watermark. Raises StorageError."""
    published = state.published()
    return published._replace(high_watermark=known_high_watermark(state, published))
