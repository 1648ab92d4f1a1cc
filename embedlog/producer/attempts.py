"""Attempts to append a run: their progress, their tries, and the parts of a try.

- A try lasts as long as its deadline allows. It is made in parts: each ends early if other queues
  have records, and the try goes on from there after them. The parts of a try count once among the
  `retries`.
- After a part that waited for a change of the set a queue rests, longer each time, if others have
  records. The thread sleeps meanwhile.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from embedlog._native import system
from embedlog.config.options import INT_MAX
from embedlog.errors import DeadlineError
from embedlog.format.record_batch import EncodedRun

if TYPE_CHECKING:
    from embedlog._native._rows import ProducerBatch
    from embedlog.format.record_batch import Stamp
    from embedlog.partition.log_context import AppendProgress

SLICE_NS: Final = 100_000_000  # the longest part of a try that waits for a change of a set
PARTS_MAX: Final = 4  # whose pauses double, from one slice on


class Attempt:
    """The append of one run: the producer batches with its records, and its progress."""

    __slots__ = (
        "_parts",
        "batches",
        "began",
        "counts",
        "end_sequence",
        "problem",
        "progress",
        "rebuilt",
        "run",
        "stamp",
        "tries",
        "until_ns",
    )

    def __init__(
        self,
        batches: list[ProducerBatch],
        counts: list[int],
        run: EncodedRun,
        progress: AppendProgress,
    ) -> None:
        self.batches = batches
        self.counts = counts  # records of each batch
        self.run = run
        self.progress = progress
        self.stamp: Stamp | None = None
        self.end_sequence = 0
        self.tries = 0
        self.problem: BaseException | None = None  # of the last try that was more than too late
        self.rebuilt = False  # split, or stamped again: done at most once
        self.began = 0.0  # the time of the current try
        self.until_ns = 0  # its deadline (boot clock); 0 between two tries
        self._parts = 0  # that ended early

    def begin(self) -> None:
        """Begin a try, unless the current one goes on."""
        if not self.until_ns:
            self.tries = self.tries + 1
            self.began = time.monotonic()

    def end(self) -> None:
        """The try has failed."""
        self.until_ns = 0
        self._parts = 0

    def has_time(self) -> bool:
        """Whether there is time for a further part of the try."""
        return system.boot_ns() < self.until_ns

    def pause_s(self) -> float:
        """The pause before the next part of the try, longer each time."""
        self._parts = min(self._parts + 1, PARTS_MAX)
        return min(SLICE_NS << (self._parts - 1), max(0, self.until_ns - system.boot_ns())) / 1e9

    @property
    def whole_count(self) -> int:
        """The number of leading batches that are completely in the log, and committed if that is
        needed (REPLICA-4).
        """
        progress = self.progress
        remaining_count = 0
        for base, piece_end in progress.pieces:
            end = min(piece_end, progress.committed) if progress.waiting else piece_end
            remaining_count += max(0, end - base)
        whole = 0
        for count in self.counts:
            remaining_count -= count
            if remaining_count < 0:
                break
            whole += 1
        return whole

    def leave_rest(self) -> int:
        """Leave out the batches after those that are in the log, which were refused; their number.
        Their sequences are free.
        """
        whole = self.whole_count
        refused_counts = self.counts[whole:]
        self.batches = self.batches[:whole]
        self.counts = self.counts[:whole]
        self.end_sequence = (self.end_sequence - sum(refused_counts)) & INT_MAX
        size = self.progress.start
        self.run = EncodedRun(
            self.run.buffer[:size], whole, sum(self.counts), size, self.run.batches[:whole]
        )
        return len(refused_counts)


def delivery_timeout_error(
    error: BaseException, earlier: BaseException | None, timeout_ms: int
) -> Exception:
    """The error at delivery.timeout.ms, with the reason: that of an earlier try if the last one was
    only too late.
    """
    if isinstance(error, DeadlineError):
        if earlier is None:
            return error
        error = earlier
    expected = f"{timeout_ms} ms (delivery.timeout.ms)"
    timeout = DeadlineError(
        f"not written in time, and the last attempt failed: {error}", expected=expected
    )
    timeout.__cause__ = error
    return timeout
