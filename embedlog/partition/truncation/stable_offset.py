"""Computes the last stable offset of a replica again, after batches were removed or recovered.

STABLE-1  the last stable offset passes a transaction when the high watermark has passed its marker
          (REPLICA-21). A page contains two of the markers above the high watermark; where they are
          not known it waits for the log end
"""

from __future__ import annotations

from embedlog._native.replication import Replica
from embedlog._native.system import Published
from embedlog.format.producer_state import ProducerState


def restated(
    now: Published, replica: Replica, producers: ProducerState
) -> tuple[Published, Replica]:
    """The tuple and the replica state with the first unstable offset as of `producers`, which are
    those at the log end.

    The first unstable offset of `now` is that of the log before the change. It covers transactions
    that ended above the high watermark, whose markers `producers` does not have.
    """
    undecided = producers.first_unstable(now.high_watermark)
    opened = min((start for _, start in producers.open_transactions()), default=-1)
    known = [each for each in (now.first_unstable, undecided) if 0 <= each < now.log_end]
    first = min(known, default=-1)
    waits = now.high_watermark < now.log_end and first != opened
    replica = replica._replace(
        stable_at=now.log_end if waits else -1,
        stable_next=opened if waits else -1,
        later_at=-1,
        later_next=-1,
    )
    return now._replace(first_unstable=first if waits else opened), replica
