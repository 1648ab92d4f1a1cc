"""Removes what a crash left in a partition directory: `.deleted`, `.cleaned`, `.swap`, temporaries,
indexes without a log.

LEFTOVER-1  `.cleaned` was never finished and is removed; `.swap` is complete and replaces the old
    files
LEFTOVER-2  segments below one that retention renamed belong to the same round: a power loss may
    keep any names of a round
LEFTOVER-3  without the right to write nothing is changed: a reader gets the names as they would be
            afterwards. It is refused if a swap must be finished first, because a part of the old
            files may be deleted
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from embedlog import segment
from embedlog.errors import StateError
from embedlog.format.record_batch import Chain
from embedlog.storage import file_names, files
from embedlog.storage.manifest import SegmentInfo


def settle(
    directory: Path, known: Mapping[int, SegmentInfo], *, write: bool, foreign: bool = False
) -> list[str]:
    """Finish or undo interrupted operations and return the remaining names. REQUIRES the append
    lock if `write`.

    `known`: the sealed segments of a log without gaps; none if gaps are allowed (LEFTOVER-2
    searches for a gap).
    """
    names = files.listing(directory)
    deletable = _half_retained(names, known)
    if deletable and write:  # before the names that show the round are removed
        for base in deletable:
            segment.set_aside(directory, base)
        files.sync_directory(directory)
        names = files.listing(directory)
    elif deletable:
        names = [
            name
            for name in names
            if (parsed := file_names.parse(name)) is None or parsed[0] not in deletable
        ]
    gone = {name for name in names if name.endswith(file_names.DELETED)}
    if write:
        files.remove_temporaries(directory, names)
    if foreign:  # digests describe what embedlog wrote
        gone |= {name for name in names if file_names.digests_base(name) is not None}
    cleaned = [name for name in names if name.endswith(file_names.CLEANED)]
    swaps = [name for name in names if name.endswith(file_names.SWAP)]
    cleaned_bases = [parsed[0] for name in cleaned if (parsed := file_names.parse(name))]
    if cleaned_bases:  # their swap was not begun: an interrupted split
        unfinished = {
            name
            for name in swaps
            if (parsed := file_names.parse(name)) and parsed[0] >= min(cleaned_bases)
        }
        gone |= unfinished
        swaps = [name for name in swaps if name not in unfinished]
    gone |= set(cleaned)
    if swaps and not write:
        raise StateError(
            "segments were about to be replaced when the last process stopped: open the log for "
            "writing once to finish that",
            path=directory / swaps[0],
        )
    if swaps:
        gone |= _replaced(directory, names, swaps)
    if write:
        for name in sorted(gone):
            files.unlink(directory / name, missing_ok=True)
        if swaps:
            # SEGMENTSWAP-4: no old segment may remain in the range of the new one
            files.sync_directory(directory)
        for name in swaps:
            files.rename(directory / name, directory / name.removesuffix(file_names.SWAP))
        if swaps:
            files.sync_directory(directory)
    left = {
        name.removesuffix(file_names.SWAP) if name in swaps else name
        for name in names
        if name not in gone
    }
    return sorted(left - _orphans(directory, left, write=write))


def remove_cleaned(directory: Path) -> None:
    """Remove the files of a compaction that did not begin its swap. REQUIRES the housekeeper's
    lock.
    """
    for name in files.listing(directory):
        if name.endswith(file_names.CLEANED):
            files.unlink(directory / name, missing_ok=True)


def _half_retained(names: list[str], known: Mapping[int, SegmentInfo]) -> list[int]:
    """Bases of the segments below a gap that retention made, where only a renamed segment is
    left.
    """
    if any(name.endswith(file_names.SWAP) for name in names):
        return []  # a compaction renames segments too
    live = file_names.bases(names)
    renamed = {
        parsed[0]
        for name in names
        if (parsed := file_names.parse(name)) and parsed[1] == file_names.LOG + file_names.DELETED
    }
    for number in range(len(live) - 1, 0, -1):
        below = known.get(live[number - 1])
        if (
            below is not None
            and below.gapless
            and below.next_offset < live[number]
            and below.next_offset in renamed
        ):
            return live[:number]
    return []


def _replaced(directory: Path, names: list[str], swaps: list[str]) -> set[str]:
    """Files that a finished swap replaces: those with a base in the range of the swapped logs."""
    logs = [
        parsed[0]
        for name in swaps
        if (parsed := file_names.parse(name)) and parsed[1] == file_names.LOG + file_names.SWAP
    ]
    if not logs:
        return set()
    first = min(logs)
    end = max(_end_of(directory, base) for base in logs)
    kafkas = {
        name
        for name in names
        if not name.endswith(file_names.SWAP)
        and (parsed := file_names.parse(name))
        and first <= parsed[0] < end
    }
    return kafkas | {
        name
        for name in names
        if (base := file_names.digests_base(name)) is not None and first <= base < end
    }


def _end_of(directory: Path, base: int) -> int:
    path = directory / file_names.file_name(base, file_names.LOG + file_names.SWAP)
    chain = Chain(base, gaps_allowed=True)
    with files.opened(path) as fd:
        for _ in segment.Walk(fd, path, chain, 0, files.facts(fd, path).size):
            pass
    return max(chain.next_offset, base + 1)


def _orphans(directory: Path, names: set[str], *, write: bool) -> set[str]:
    """Indexes and digests without a log."""
    logs = {
        parsed[0]
        for name in names
        if (parsed := file_names.parse(name)) and parsed[1] == file_names.LOG
    }
    orphans = {
        name
        for name in names
        if (parsed := file_names.parse(name))
        and parsed[1] in file_names.SEGMENT_SUFFIXES[1:]
        and parsed[0] not in logs
    }
    orphans |= {
        name
        for name in names
        if (base := file_names.digests_base(name)) is not None and base not in logs
    }
    if write:
        for name in sorted(orphans):
            files.unlink(directory / name, missing_ok=True)
    return orphans
