"""Computes the last stable offset of a replica again, after batches were removed or recovered.

- The last stable offset passes a transaction when the high watermark has passed its marker
  (REPLICA-21). A page contains two of the markers above the high watermark; where they are not
  known it waits for the log end.
"""

from __future__ import annotations

from embedlog._native.replication import Replica
from embedlog._native.system import Published
from embedlog.format.producer_state import ProducerState


def restate_stable_offset(
    published: Published, replica: Replica, producers: ProducerState
) -> tuple[Published, Replica]:
    """The tuple and the replica state with the first unstable offset as of `producers`, which are
    those at the log end.

    The first unstable offset of `published` is that of the log before the change. It covers
    transactions that ended above the high watermark, whose markers `producers` does not have.
    """
    undecided = producers.first_unstable(published.high_watermark)
    first_open = min((start for _, start in producers.open_transactions()), default=-1)
    unstable = [
        offset
        for offset in (published.first_unstable, undecided)
        if 0 <= offset < published.log_end
    ]
    first = min(unstable, default=-1)
    waits = published.high_watermark < published.log_end and first != first_open
    if not waits:
        replica = replica._replace(stable_at=-1, stable_next=-1, later_at=-1, later_next=-1)
        return published._replace(first_unstable=first_open), replica
    replica = replica._replace(
        stable_at=published.log_end, stable_next=first_open, later_at=-1, later_next=-1
    )
    return published._replace(first_unstable=first), replica
