"""This module compares a follower with what its leader has deleted or compacted (REPLICA-20).

- `purged_to` can be above all that was removed (`swap`). Compaction ends at the high
  watermark. That of a leader is above all that was removed once it has reached the start of the
  epoch. The active segment is no bound: a cut can make a compacted segment the active one.
- A member of the ISR or of the ELR has everything that was ever committed: it lacks nothing that
  was removed. It never begins again for that: its log may be the only one that is left.
"""

from __future__ import annotations

from typing import NamedTuple

from embedlog._native.replication import Replica
from embedlog._native.system import Published


class CopySource(NamedTuple):
    """What a leader published, and an offset from which on its compaction has removed no record
    that a follower lacks.
    """

    published: Published
    removed_to: int


def source_of(published: Published, replica: Replica, *, complete: bool) -> CopySource:
    """What a leader published, for a follower. `complete`: the follower is in the maximal ISR or in
    the ELR.
    """
    removed_to = min(published.purged_to, published.log_end)
    if published.high_watermark >= replica.epoch_start:
        removed_to = min(removed_to, published.high_watermark)
    elif complete:
        removed_to = 0
    return CopySource(published, removed_to)


def lacks_deleted(follower: Published, leader: CopySource) -> bool:
    """Whether a follower may lack records that the leader has deleted or compacted since: it begins
    again (REPLICA-20).
    """
    end = follower.log_end
    published = leader.published
    return end < published.log_start or (
        follower.purged_to < published.purged_to and end < leader.removed_to
    )
