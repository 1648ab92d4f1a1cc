"""Reads a segment completely: the ranges of good batches, and the damaged ranges between them.

- A good batch has a valid checksum, a valid header, and an offset after the previous batch.
- After damage the next batch is the one at the end that the damaged header names, whatever its
  offsets are. If none is there, the next position with a valid batch of plausible offsets is
  searched for: a value can contain any bytes.
- A batch with a valid checksum is never damage: only its offset or epoch can be wrong. Where its
  neighbours leave room for exactly its records, its offset is known. Otherwise it is unproven, or
  records before it are missing.
- While digests are known they are compared. A mismatch makes the batches since the last match
  unproven, not damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import NamedTuple

from embedlog import segment
from embedlog.format.record_batch import Batches, Chain, Problem
from embedlog.format.record_columns import LOG_OFFSET_MAX, RELATIVE_MAX
from embedlog.segment import Walk
from embedlog.storage import interval_digests

OnBatches = Callable[[Batches], object]  # gets the good batches, with their positions in the file


class SegmentSpan(NamedTuple):
    """A range of bytes. Good without a `problem`; `unproven`: its batches are valid, but one header
    is not as written.

    A damaged range without bytes is a gap between two batches: the offsets from `first_offset` on
    are missing. With `header` it is one good batch whose header is wrong, and whose first offset is
    `first_offset`.
    """

    start: int
    end: int
    first_offset: int
    end_offset: int
    problem: Problem | None = None
    unproven: bool = False
    header: bool = False


class ExpectedSegment(NamedTuple):
    """What is known of a segment before it is read. `ceiling`: no offset reaches it, -1 if
    unknown.
    """

    base: int
    size: int
    next_offset: int
    ceiling: int = -1
    gaps_allowed: bool = True
    epoch: int = -1
    bounded: bool = True  # its name bounds the offsets: embedlog wrote it


class SegmentReader:
    """Reads one segment file; afterwards `chain` has the end of the last good batch and, without
    damage, the digest.
    """

    def __init__(self, fd: int, path: Path, expected: ExpectedSegment, seen: OnBatches) -> None:
        self._fd = fd
        self._path = path
        self._expected = expected
        self._seen = seen
        self.chain = Chain(
            max(expected.next_offset, expected.base),
            expected.epoch,
            gaps_allowed=expected.gaps_allowed,
        )
        self.batches = 0
        self._passed: set[int] = set()  # positions of good batches that do not continue the log
        self.proven = True  # whether the digest of the chain is that of all bytes up to its end

    def read_spans(self, records: interval_digests.Records | None) -> Iterator[SegmentSpan]:
        """All ranges of the segment, in order."""
        at = 0
        while at < self._expected.size:
            first = self.chain.next_offset
            walk = self._walk(at, self._expected.size, records)
            records = None
            if walk.agreed is not None:
                at = yield from self._read_unproven(at, walk, first)
                continue
            if walk.end > at:
                yield SegmentSpan(at, walk.end, first, self.chain.next_offset)
            at = walk.end
            if at < self._expected.size:
                damaged = self._find_misplaced_batch(at, walk.problem)
                if damaged is None:
                    damaged = self._find_damage_end(at, walk.problem)
                self._lose_proof()
                yield damaged
                at = damaged.end

    def _walk(self, start: int, end: int, records: interval_digests.Records | None) -> Walk:
        chain = self.chain
        walk = Walk(
            self._fd, self._path, chain, start, end, records, bounded=self._expected.bounded
        )
        end_of_good = (chain.next_offset, chain.epoch, chain.digest)
        for batches in walk:
            end_of_good = (chain.next_offset, chain.epoch, chain.digest)
            self.batches += len(batches)
            self._seen(batches)
        if walk.agreed is not None:  # the chain has passed the batches of the mismatch
            chain.next_offset, chain.epoch, chain.digest = end_of_good
        return walk

    def _lose_proof(self) -> None:
        self.proven = False
        self.chain.gaps_allowed = True
        self.chain.digest = 0

    def _read_unproven(self, at: int, walk: Walk, first: int) -> Generator[SegmentSpan, None, int]:
        """The good range up to the last match, and the unproven one up to the mismatch; its end."""
        agreed = walk.agreed
        problem = walk.problem
        assert agreed is not None
        assert problem is not None
        if agreed > walk.end:
            self._walk(walk.end, agreed, None)
        if agreed > at:
            yield SegmentSpan(at, agreed, first, self.chain.next_offset)
        unproven_offset = self.chain.next_offset
        self._lose_proof()
        unproven_walk = self._walk(agreed, problem.position, None)
        yield SegmentSpan(
            agreed,
            unproven_walk.end,
            unproven_offset,
            self.chain.next_offset,
            problem,
            unproven=True,
        )
        return unproven_walk.end

    # ---- after damage ----------------------------------------------------------------------------

    def _find_damage_end(self, at: int, problem: Problem | None) -> SegmentSpan:
        """The damaged range from a position on, up to the next good batch."""
        first = self.chain.next_offset
        if problem is None:
            problem = Problem(at, "the file ends inside a batch")
        batch = self._find_next_batch(at)
        if batch is None:
            return SegmentSpan(
                at, self._expected.size, first, max(first, self._expected.ceiling), problem
            )
        position, base_offset = batch
        return SegmentSpan(at, position, first, base_offset, problem)

    def _find_misplaced_batch(self, at: int, problem: Problem | None) -> SegmentSpan | None:
        """A batch with a valid checksum that does not continue the one before; None for any other
        bytes.
        """
        batch = self._read_valid_batch(at)
        if batch is None or problem is None:
            return None
        first, next_offset, end = batch
        expected = self.chain.next_offset
        expected_next = expected + next_offset - first
        following_offset = -1  # the first one after the batch, if it is known
        if end >= self._expected.size:
            following_offset = self._expected.ceiling
        else:
            following_batch = self._read_valid_batch(end)
            if following_batch is not None:
                following_offset, _, _ = following_batch
        self.chain.epoch = -1
        if following_offset < 0:
            is_room_exact = not self._expected.gaps_allowed
        else:
            is_room_exact = following_offset == expected_next
        # an epoch that decreases can be that of the batch before
        if is_room_exact and first != expected:
            self.chain.next_offset = expected_next
            return SegmentSpan(at, end, expected, expected_next, problem, header=True)
        if first > expected and at not in self._passed:
            self._passed.add(at)
            return SegmentSpan(at, at, expected, first, problem)
        self.chain.next_offset = next_offset
        return SegmentSpan(at, end, first, next_offset, problem, unproven=True)

    def _read_valid_batch(self, position: int) -> tuple[int, int, int] | None:
        """First offset, offset after the last record, and end of a batch with a valid checksum,
        None for any other bytes.
        """
        batch = segment.batch_at(self._fd, self._path, position, self._expected.size)
        if batch is None:
            return None
        first = int(batch["base_offset"][0])
        next_offset = first + int(batch["last_offset_delta"][0]) + 1
        return first, next_offset, position + int(batch["size"][0])

    def _find_next_batch(self, at: int) -> tuple[int, int] | None:
        """Position and base offset of the next good batch after a damaged one."""
        header_end = segment.end_of_batch(self._fd, self._path, at, self._expected.size)
        if header_end is not None:
            following_batch = self._read_valid_batch(header_end)
            if following_batch is not None:
                # also with impossible offsets: a batch that is valid in itself is never cut
                return header_end, following_batch[0]
        lowest, highest = self._plausible_offsets()
        batch = segment.search_batch(
            self._fd, self._path, at + 1, self._expected.size, lowest, highest
        )
        if batch is None:
            return None
        return int(batch["position"][0]), int(batch["base_offset"][0])

    def _plausible_offsets(self) -> tuple[int, int]:
        """The lowest and the highest plausible offset of a later batch."""
        expected = self._expected
        highest = LOG_OFFSET_MAX
        if expected.bounded:
            highest = expected.base + RELATIVE_MAX
        if expected.ceiling >= 0:
            highest = min(highest, expected.ceiling)
        return self.chain.next_offset, highest
