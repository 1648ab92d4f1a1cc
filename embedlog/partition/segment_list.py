"""The segments of a partition: those of the manifest, checked against the control page, completed
from the directory.

SEGMENTLIST-1  the list is rebuilt when the control page has another active segment, log start or
    generation
SEGMENTLIST-2  the size of a segment that the manifest does not know comes from stat
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from embedlog._native.system import Published
from embedlog.partition.segment_info import active_info, info_from_files, transactions_in
from embedlog.partition.state import PartitionState
from embedlog.storage import file_names, files
from embedlog.storage.manifest import SegmentInfo

TIME_UNKNOWN: Final = 1 << 63  # later than every timestamp


def _newest(info: SegmentInfo) -> int:
    """The largest timestamp of a segment; TIME_UNKNOWN if it may have any."""
    return TIME_UNKNOWN if info.max_timestamp < 0 and info.time_entries == 0 else info.max_timestamp


class _View(NamedTuple):
    """The list for one segment base, log start and generation; never changed, only replaced."""

    key: tuple[int, int, int]
    bases: list[int]
    infos: list[SegmentInfo]
    # the largest timestamp up to each segment; TIME_UNKNOWN from the first one on of which it is
    # unknown
    newest: list[int]


class SegmentList:
    """Sealed segments of one partition in order, and the active one. Threads: any."""

    def __init__(self, state: PartitionState) -> None:
        self._state = state
        self._view: _View | None = None

    def forget(self) -> None:
        self._view = None

    def all(self, now: Published) -> list[SegmentInfo]:
        """The sealed segments with records at or above the log start, then the active one as
        published.
        """
        return [*self._refreshed(now).infos, active_info(now)]

    def since(self, offset: int, now: Published) -> list[SegmentInfo]:
        """The segments with records at or above `offset`; the active one is the last."""
        if offset >= now.segment_base:
            return [active_info(now)] if now.log_end > offset else []
        view = self._refreshed(now)
        place = bisect_right(view.bases, offset)
        return [
            info
            for info in [*view.infos[max(place - 1, 0) :], active_info(now)]
            if info.next_offset > offset
        ]

    def reaching(self, timestamp_ms: int, now: Published) -> Iterator[SegmentInfo]:
        """The segments that have a record as new as `timestamp_ms`, or may have one, in order."""
        view = self._refreshed(now)
        for info in view.infos[bisect_left(view.newest, timestamp_ms) :]:
            if _newest(info) >= timestamp_ms:
                yield info
        active = active_info(now)
        if _newest(active) >= timestamp_ms:
            yield active

    def at(self, offset: int, now: Published) -> SegmentInfo:
        """The segment that has `offset`, or would have it."""
        if offset >= now.segment_base:
            return active_info(now)
        view = self._refreshed(now)
        place = bisect_right(view.bases, offset) - 1
        return view.infos[max(place, 0)] if view.infos else active_info(now)

    def after(self, base: int, now: Published) -> SegmentInfo | None:
        """The segment after the one with this base offset."""
        view = self._refreshed(now)
        place = bisect_right(view.bases, base)
        if place < len(view.infos):
            return view.infos[place]
        return active_info(now) if base < now.segment_base else None

    def _refreshed(self, now: Published) -> _View:
        """The segments of exactly this tuple, even if another thread replaces the cache
        meanwhile.
        """
        key = (now.segment_base, now.log_start, now.generation)
        view = self._view
        if view is not None and view.key == key:
            return view
        static = self._state.static
        if static is not None:
            infos = static.segments[:-1]
        else:
            infos = self._grown(view, now) or self._from_manifest(now)
        newest = list(accumulate(map(_newest, infos), max))
        view = self._view = _View(key, [info.base for info in infos], infos, newest)
        return view

    def _grown(self, view: _View | None, now: Published) -> list[SegmentInfo] | None:
        """Add the segments that were sealed since, if nothing else changed. That is cheap with
        thousands of segments.
        """
        if (
            view is None
            or view.key[1:] != (now.log_start, now.generation)
            or view.key[0] > now.segment_base
        ):
            return None
        manifest = self._state.manifest
        manifest.refresh()
        base = view.key[0]
        added = []
        while (
            base < now.segment_base
            and (info := manifest.segments.get(base)) is not None
            and info.next_offset > base
        ):
            added.append(info)
            base = info.next_offset
        return [*view.infos, *added] if base == now.segment_base else None

    def _from_manifest(self, now: Published) -> list[SegmentInfo]:
        manifest = self._state.manifest
        manifest.refresh()
        every = list(manifest.segments.values())
        known = sorted(
            info
            for info in every
            if info.base < now.segment_base and info.next_offset > now.log_start
        )
        follows = all(one.next_offset <= other.base for one, other in pairwise(known))
        covers = (not known and now.segment_base <= now.log_start) or bool(
            known and known[0].base <= now.log_start
        )
        joined = not known or known[-1].next_offset == now.segment_base
        if (
            follows
            and covers
            and joined
            and all(one.next_offset == other.base for one, other in pairwise(known))
        ):
            return known
        return self._from_directory(now, manifest.segments)

    def _from_directory(self, now: Published, known: dict[int, SegmentInfo]) -> list[SegmentInfo]:
        directory = self._state.path
        bases = [
            base for base in file_names.bases(files.listing(directory)) if base < now.segment_base
        ]
        found = []
        for base, following in pairwise([*bases, now.segment_base]):
            facts = files.facts_of(file_names.segment_path(directory, base))
            if facts is None or following <= now.log_start:
                continue
            info = known.get(base)
            if info is None or info.size != facts.size:
                described = info_from_files(directory, base, facts.size, following)
                info = described.info if described is not None else None
            if info is None:  # without a time index it is read whole
                info = SegmentInfo(
                    base,
                    facts.size,
                    following,
                    transaction_entries=transactions_in(directory, base),
                )
            found.append(info)
        return found
