"""The segments of a partition: those of the manifest, checked against the control page, completed
from the directory.

- The list is rebuilt when the control page has another active segment, log start or generation.
- The size of a segment that the manifest does not know comes from stat.
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
    if info.max_timestamp < 0 and info.time_entries == 0:
        return TIME_UNKNOWN
    return info.max_timestamp


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

    def all(self, published: Published) -> list[SegmentInfo]:
        """The sealed segments with records at or above the log start, then the active one as
        published.
        """
        return [*self._refresh(published).infos, active_info(published)]

    def since(self, offset: int, published: Published) -> list[SegmentInfo]:
        """The segments with records at or above `offset`; the active one is the last."""
        if offset >= published.segment_base:
            return [active_info(published)] if published.log_end > offset else []
        view = self._refresh(published)
        first = max(bisect_right(view.bases, offset) - 1, 0)
        infos = [*view.infos[first:], active_info(published)]
        return [info for info in infos if info.next_offset > offset]

    def reaching(self, timestamp_ms: int, published: Published) -> Iterator[SegmentInfo]:
        """The segments that have a record as new as `timestamp_ms`, or may have one, in order."""
        view = self._refresh(published)
        for info in view.infos[bisect_left(view.newest, timestamp_ms) :]:
            if _newest(info) >= timestamp_ms:
                yield info
        active = active_info(published)
        if _newest(active) >= timestamp_ms:
            yield active

    def at(self, offset: int, published: Published) -> SegmentInfo:
        """The segment that has `offset`, or would have it."""
        if offset >= published.segment_base:
            return active_info(published)
        view = self._refresh(published)
        if not view.infos:
            return active_info(published)
        number = bisect_right(view.bases, offset) - 1
        return view.infos[max(number, 0)]

    def after(self, base: int, published: Published) -> SegmentInfo | None:
        """The segment after the one with this base offset."""
        view = self._refresh(published)
        number = bisect_right(view.bases, base)
        if number < len(view.infos):
            return view.infos[number]
        return active_info(published) if base < published.segment_base else None

    def _refresh(self, published: Published) -> _View:
        """The segments of exactly this tuple, even if another thread replaces the cache
        meanwhile.
        """
        key = (published.segment_base, published.log_start, published.generation)
        view = self._view
        if view is not None and view.key == key:
            return view
        loaded_files = self._state.loaded_files
        if loaded_files is not None:
            infos = loaded_files.segments[:-1]
        else:
            infos = self._grow(view, published) or self._list_manifest(published)
        newest = list(accumulate(map(_newest, infos), max))
        view = _View(key, [info.base for info in infos], infos, newest)
        self._view = view
        return view

    def _grow(self, view: _View | None, published: Published) -> list[SegmentInfo] | None:
        """Add the segments that were sealed since, if nothing else changed. That is cheap with
        thousands of segments.
        """
        if (
            view is None
            or view.key[1:] != (published.log_start, published.generation)
            or view.key[0] > published.segment_base
        ):
            return None
        manifest = self._state.manifest
        manifest.refresh()
        base = view.key[0]
        added = []
        while base < published.segment_base:
            info = manifest.segments.get(base)
            if info is None or info.next_offset <= base:
                return None
            added.append(info)
            base = info.next_offset
        if base != published.segment_base:
            return None
        return [*view.infos, *added]

    def _list_manifest(self, published: Published) -> list[SegmentInfo]:
        manifest = self._state.manifest
        manifest.refresh()
        described = list(manifest.segments.values())
        infos = sorted(
            info
            for info in described
            if info.base < published.segment_base and info.next_offset > published.log_start
        )
        if infos:
            first = infos[0].base
            end = infos[-1].next_offset
        else:
            first = published.segment_base
            end = published.segment_base
        if (
            first <= published.log_start
            and end == published.segment_base
            and all(info.next_offset == following.base for info, following in pairwise(infos))
        ):
            return infos
        return self._list_directory(published, manifest.segments)

    def _list_directory(
        self, published: Published, described: dict[int, SegmentInfo]
    ) -> list[SegmentInfo]:
        directory = self._state.path
        bases = [
            base
            for base in file_names.bases(files.listing(directory))
            if base < published.segment_base
        ]
        infos = []
        for base, following in pairwise([*bases, published.segment_base]):
            facts = files.facts_of(file_names.segment_path(directory, base))
            if facts is None or following <= published.log_start:
                continue
            info = described.get(base)
            if info is None or info.size != facts.size:
                from_files = info_from_files(directory, base, facts.size, following)
                info = None
                if from_files is not None:
                    info = from_files.info
            if info is None:  # without a time index it is read whole
                info = SegmentInfo(
                    base,
                    facts.size,
                    following,
                    transaction_entries=transactions_in(directory, base),
                )
            infos.append(info)
        return infos
