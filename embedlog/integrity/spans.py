"""Reads a segment completely: the ranges of good batches, and the damaged ranges between them.

SPANS-1  a good batch has a valid checksum, a valid header, and an offset after the previous batch
SPANS-2  after damage the next batch is the one at the end that the damaged header names, whatever
    its offsets are. If none is there, the next position with a valid batch of plausible offsets is
    searched for: a value can contain any bytes
SPANS-3  a batch with a valid checksum is never damage: only its offset or epoch can be wrong. Where
    its neighbours leave room for exactly its records, its offset is known. Otherwise it is
    unproven, or records before it are missing
SPANS-4  while digests are known they are compared. A mismatch makes the batches since the last
    match unproven, not damaged
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

Seen = Callable[[Batches], object]  # gets the good batches, with their positions in the file


class Span(NamedTuple):
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


class Expected(NamedTuple):
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

    def __init__(self, fd: int, path: Path, expected: Expected, seen: Seen) -> None:
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

    def spans(self, records: interval_digests.Records | None) -> Iterator[Span]:
        """All ranges of the segment, in order."""
        at = 0
        while at < self._expected.size:
            first = self.chain.next_offset
            walk = self._walk(at, self._expected.size, records)
            records = None
            if walk.agreed is not None:
                at = yield from self._unproven(at, walk, first)
                continue
            if walk.end > at:
                yield Span(at, walk.end, first, self.chain.next_offset)
            at = walk.end
            if at < self._expected.size:
                damaged = self._misplaced(at, walk.problem) or self._damaged(at, walk.problem)
                self._lose_proof()
                yield damaged
                at = damaged.end

    def _walk(self, at: int, end: int, records: interval_digests.Records | None) -> Walk:
        chain = self.chain
        walk = Walk(self._fd, self._path, chain, at, end, records, bounded=self._expected.bounded)
        before = chain.next_offset, chain.epoch, chain.digest
        for batches in walk:
            before = chain.next_offset, chain.epoch, chain.digest
            self.batches += len(batches)
            self._seen(batches)
        if walk.agreed is not None:  # the chain has passed the batches of the mismatch
            chain.next_offset, chain.epoch, chain.digest = before
        return walk

    def _lose_proof(self) -> None:
        self.proven = False
        self.chain.gaps_allowed = True
        self.chain.digest = 0

    def _unproven(self, at: int, walk: Walk, first: int) -> Generator[Span, None, int]:
        """The good range up to the last match, and the unproven one up to the mismatch; its end."""
        agreed = walk.agreed
        problem = walk.problem
        assert agreed is not None
        assert problem is not None
        if agreed > walk.end:
            self._walk(walk.end, agreed, None)
        if agreed > at:
            yield Span(at, agreed, first, self.chain.next_offset)
        middle = self.chain.next_offset
        self._lose_proof()
        rest = self._walk(agreed, problem.position, None)
        yield Span(agreed, rest.end, middle, self.chain.next_offset, problem, unproven=True)
        return rest.end

    # ---- after damage ----------------------------------------------------------------------------

    def _damaged(self, at: int, problem: Problem | None) -> Span:
        """The damaged range from a position on, up to the next good batch."""
        first = self.chain.next_offset
        problem = problem or Problem(at, "the file ends inside a batch")
        found = self._next_batch(at)
        if found is None:
            return Span(at, self._expected.size, first, max(first, self._expected.ceiling), problem)
        return Span(at, found[0], first, found[1], problem)

    def _misplaced(self, at: int, problem: Problem | None) -> Span | None:
        """A batch with a valid checksum that does not continue the one before (SPANS-3); None for
        any other bytes.
        """
        found = self._valid_at(at)
        if found is None or problem is None:
            return None
        first, after, end = found
        expected = self.chain.next_offset
        follower = self._valid_at(end)
        following = (
            self._expected.ceiling
            if end >= self._expected.size
            else -1
            if follower is None
            else follower[0]
        )
        self.chain.epoch = -1
        fits = following == expected + after - first or (
            following < 0 and not self._expected.gaps_allowed
        )
        if fits and first != expected:  # an epoch that decreases can be that of the batch before
            self.chain.next_offset = expected + after - first
            return Span(at, end, expected, self.chain.next_offset, problem, header=True)
        if first > expected and at not in self._passed:
            self._passed.add(at)
            return Span(at, at, expected, first, problem)
        self.chain.next_offset = after
        return Span(at, end, first, after, problem, unproven=True)

    def _valid_at(self, position: int) -> tuple[int, int, int] | None:
        """First offset, offset after the last record, and end of a batch with a valid checksum,
        None for any other bytes.
        """
        found = segment.batch_at(self._fd, self._path, position, self._expected.size)
        if found is None:
            return None
        first = int(found["base_offset"][0])
        return (
            first,
            first + int(found["last_offset_delta"][0]) + 1,
            position + int(found["size"][0]),
        )

    def _next_batch(self, at: int) -> tuple[int, int] | None:
        """Position and base offset of the next good batch after a damaged one (SPANS-2)."""
        named = segment.end_of_batch(self._fd, self._path, at, self._expected.size)
        following = None if named is None else self._valid_at(named)
        if named is not None and following is not None:
            # also with impossible offsets: a batch that is valid in itself is never cut
            return named, following[0]
        found = segment.search_batch(
            self._fd, self._path, at + 1, self._expected.size, *self._bounds()
        )
        return None if found is None else (int(found["position"][0]), int(found["base_offset"][0]))

    def _bounds(self) -> tuple[int, int]:
        known = self._expected
        high = known.base + RELATIVE_MAX if known.bounded else LOG_OFFSET_MAX
        return self.chain.next_offset, high if known.ceiling < 0 else min(high, known.ceiling)
