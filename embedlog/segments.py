"""Which segments a partition has: the manifest's view, checked against the page, filled in from the directory.

O1  the list is rebuilt when the page names another active segment, log start or generation than it was made for
O2  a segment that the manifest does not know is looked at by stat, never guessed
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING

from embedlog import files, index, layout
from embedlog._native.system import Published
from embedlog.manifest import CLOSED, SegmentInfo

if TYPE_CHECKING:
    from embedlog.partition import Partition


class Segments:
    """Sealed segments of one partition in order, and the active one. Threads: `at` may be called from any."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._key: tuple[int, int, int] | None = None
        self._bases: list[int] = []
        self._infos: list[SegmentInfo] = []

    def forget(self) -> None:
        self._key = None

    def all(self, now: Published) -> list[SegmentInfo]:
        """Sealed ones that hold something at or above the log start, then the active one as published."""
        self._refresh(now)
        return [*self._infos, active_info(now)]

    def since(self, offset: int, now: Published) -> list[SegmentInfo]:
        """Those that hold something at or above `offset`, the active one last."""
        self._refresh(now)
        place = bisect_right(self._bases, offset)
        return [info for info in [*self._infos[max(place - 1, 0) :], active_info(now)] if info.next_offset > offset]

    def at(self, offset: int, now: Published) -> SegmentInfo:
        """The segment in which `offset` lies or would lie."""
        if offset >= now.segment_base:
            return active_info(now)
        self._refresh(now)
        bases, infos = self._bases, self._infos
        place = bisect_right(bases, offset) - 1
        return infos[max(place, 0)] if infos else active_info(now)

    def after(self, base: int, now: Published) -> SegmentInfo | None:
        """The segment behind the one with this base offset."""
        self._refresh(now)
        place = bisect_right(self._bases, base)
        if place < len(self._infos):
            return self._infos[place]
        return active_info(now) if base < now.segment_base else None

    def _refresh(self, now: Published) -> None:
        key = (now.segment_base, now.log_start, now.generation)
        if key == self._key:
            return
        partition = self._partition
        if partition.static is not None:
            infos = partition.static.segments[:-1]
        elif self._grown(now):
            infos = self._infos
        else:
            infos = self._from_manifest(now)
        self._bases, self._infos, self._key = [info.base for info in infos], infos, key

    def _grown(self, now: Published) -> bool:
        """Take in segments that were sealed since, if nothing else happened: the usual case, and cheap with thousands of them."""
        if self._key is None or self._key[1:] != (now.log_start, now.generation) or self._key[0] > now.segment_base:
            return False
        manifest = self._partition.manifest
        manifest.refresh()
        base, added = self._key[0], []
        while base < now.segment_base and (info := manifest.segments.get(base)) is not None and info.next_offset > base:
            added.append(info)
            base = info.next_offset
        if base != now.segment_base:
            return False
        self._infos = [*self._infos, *added]
        return True

    def _from_manifest(self, now: Published) -> list[SegmentInfo]:
        manifest = self._partition.manifest
        manifest.refresh()
        known = sorted(
            (info for info in manifest.segments.values() if info.base < now.segment_base and info.next_offset > now.log_start),
            key=lambda info: info.base,
        )
        follows = all(one.next_offset <= other.base for one, other in pairwise(known))
        covers = (not known and now.segment_base <= now.log_start) or bool(known and known[0].base <= now.log_start)
        joined = not known or known[-1].next_offset == now.segment_base
        if follows and covers and joined and all(one.next_offset == other.base for one, other in pairwise(known)):
            return known
        return self._from_directory(now, manifest.segments)

    def _from_directory(self, now: Published, known: dict[int, SegmentInfo]) -> list[SegmentInfo]:
        directory = self._partition.path
        bases = [base for base in layout.bases(files.listing(directory)) if base < now.segment_base]
        found = []
        for base, following in zip(bases, [*bases[1:], now.segment_base], strict=True):
            facts = files.facts_of(layout.segment_path(directory, base))
            if facts is None or following <= now.log_start:
                continue
            info = known.get(base)
            found.append(info if info is not None and info.size == facts.size else self._looked_at(base, facts.size, following))
        return found

    def _looked_at(self, base: int, size: int, following: int) -> SegmentInfo:
        directory = self._partition.path
        time_path = layout.segment_path(directory, base, layout.TIME_INDEX)
        newest = index.last_entry(time_path, index.TIME_ENTRY)
        timestamp, relative = newest or (-1, 0)
        return SegmentInfo(
            base,
            size,
            following,
            timestamp,
            base + relative,
            index_entries=index.count(layout.segment_path(directory, base, layout.INDEX), index.OFFSET_ENTRY.size),
            time_entries=index.count(time_path, index.TIME_ENTRY.size),
        )


def active_info(now: Published) -> SegmentInfo:
    """The active segment as the page describes it."""
    return SegmentInfo(
        now.segment_base,
        now.segment_size,
        now.log_end,
        now.max_timestamp,
        now.max_timestamp_offset,
        now.digest,
        now.index_entries,
        now.time_entries,
        now.transaction_entries,
        now.created_ms,
        now.epoch,
        now.flags,
        CLOSED,
    )
