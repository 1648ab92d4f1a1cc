"""Finishes or undoes what a crash left in a partition directory: `.deleted`, `.cleaned`, `.swap`,
temporaries, indexes without a log.

- `.cleaned` was never finished and is removed. `.swap` is complete and replaces the old files.
- Segments below one that retention renamed belong to the same round: a power loss may keep any
  names of a round.
- `make_plan` decides by the names and changes nothing. A load carries the plan out by `carry_out`;
  a check of a closed log judges the files that the plan leaves.
- Without the right to write nothing is changed: a reader gets the names as they would be
  afterwards. It is refused if a swap must be finished first, because a part of the old files may
  be deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from embedlog import segment
from embedlog.errors import StateError
from embedlog.format.record_batch import Chain
from embedlog.storage import file_names, files
from embedlog.storage.manifest import SegmentInfo


class Plan(NamedTuple):
    """What the next opening for writing does to the names of a directory.

    `names` remain. `half_retained`: bases of segments that a round of retention has left.
    `removed` names go before the `.swap` files of `swaps` get their final names, and `orphans` go
    after that.
    """

    names: frozenset[str]
    half_retained: list[int]
    removed: frozenset[str]
    swaps: list[str]
    orphans: frozenset[str]

    def current_name(self, name: str) -> str:
        """The name that a remaining file has before the plan is carried out."""
        swap = name + file_names.SWAP
        return swap if swap in self.swaps else name

    def replaced_bases(self) -> frozenset[int]:
        """The segments of which a file waits for its final name."""
        return frozenset(base for _, base, _ in _parse_all(self.swaps))


def make_plan(
    directory: Path,
    names: Iterable[str],
    known: Mapping[int, SegmentInfo],
    *,
    broker_wrote: bool = False,
) -> Plan:
    """Decide which of the names remain. Raises StorageError.

    `known`: the sealed segments of a log without gaps; none if gaps are allowed, because a gap
    shows a round of retention. `broker_wrote`: a broker wrote here last.
    """
    names = list(names)
    half_retained = _find_half_retained(names, known)
    if half_retained:
        aside = {name for name, base, _ in _parse_all(names) if base in half_retained}
        names = [name for name in names if name not in aside]
    removed = {name for name in names if name.endswith((file_names.DELETED, file_names.CLEANED))}
    if broker_wrote:  # digests describe what embedlog wrote
        removed |= _find_digests(names).keys()
    swaps = [name for name in names if name.endswith(file_names.SWAP)]
    unfinished = _find_unfinished(names, swaps)
    removed |= unfinished
    swaps = [name for name in swaps if name not in unfinished]
    removed |= _find_replaced(directory, names, swaps)
    remaining = set()
    for name in names:
        if name in removed:
            continue
        remaining.add(name.removesuffix(file_names.SWAP) if name in swaps else name)
    orphans = _find_orphans(remaining)
    return Plan(frozenset(remaining - orphans), half_retained, frozenset(removed), swaps, orphans)


def carry_out(
    directory: Path, known: Mapping[int, SegmentInfo], *, write: bool, broker_wrote: bool = False
) -> list[str]:
    """Finish or undo interrupted operations and return the remaining names. REQUIRES the append
    lock if `write`.

    `known` and `broker_wrote`: see `make_plan`. Raises StateError if a swap must be finished and
    not `write`, StorageError.
    """
    names = files.listing(directory)
    plan = make_plan(directory, names, known, broker_wrote=broker_wrote)
    if not write:
        if plan.swaps:
            raise StateError(
                "segments were about to be replaced when the last process stopped: open the log "
                "for writing once to finish that",
                path=directory / plan.swaps[0],
            )
        return sorted(plan.names)
    if plan.half_retained:  # before the names that show the round are removed
        for base in plan.half_retained:
            segment.set_aside(directory, base)
        files.sync_directory(directory)
        names = files.listing(directory)
        plan = make_plan(directory, names, known, broker_wrote=broker_wrote)
    files.remove_temporaries(directory, names)
    _carry_out(directory, plan)
    return sorted(plan.names)


def remove_cleaned(directory: Path) -> None:
    """Remove the files of a compaction that did not begin its swap. REQUIRES the housekeeper's
    lock.
    """
    for name in files.listing(directory):
        if name.endswith(file_names.CLEANED):
            files.unlink(directory / name, missing_ok=True)


def segments_below(bases: Sequence[int], log_start: int) -> list[int]:
    """The segments that end at or below the log start, of rising bases.

    After a crash they are not read: retention was removing them, and they may never have been
    synced, so they can be torn or have holes.
    """
    return [base for base, next_base in pairwise(bases) if next_base <= log_start]


def _carry_out(directory: Path, plan: Plan) -> None:
    for name in sorted(plan.removed):
        files.unlink(directory / name, missing_ok=True)
    if plan.swaps:
        # no old segment may remain in the range of the new one
        files.sync_directory(directory)
        for name in plan.swaps:
            files.rename(directory / name, directory / name.removesuffix(file_names.SWAP))
        files.sync_directory(directory)
    for name in sorted(plan.orphans):
        files.unlink(directory / name, missing_ok=True)


def _parse_all(names: Iterable[str]) -> Iterator[tuple[str, int, str]]:
    """The names of Kafka's files among these, each with its base offset and its suffix."""
    for name in names:
        parsed = file_names.parse(name)
        if parsed is not None:
            base, suffix = parsed
            yield name, base, suffix


def _find_digests(names: Iterable[str]) -> dict[str, int]:
    """The base offsets of the files of digests among these names."""
    bases = {}
    for name in names:
        base = file_names.digests_base(name)
        if base is not None:
            bases[name] = base
    return bases


def _find_half_retained(names: list[str], known: Mapping[int, SegmentInfo]) -> list[int]:
    """Bases of the segments below a gap that retention made, where only a renamed segment is
    left.
    """
    if any(name.endswith(file_names.SWAP) for name in names):
        return []  # a compaction renames segments too
    live = file_names.bases(names)
    deleted_log = file_names.LOG + file_names.DELETED
    renamed = {base for _, base, suffix in _parse_all(names) if suffix == deleted_log}
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


def _find_unfinished(names: list[str], swaps: list[str]) -> set[str]:
    """The `.swap` files of an interrupted split or compaction: not all of its files have the name
    yet.
    """
    cleaned_bases = [
        base for _, base, suffix in _parse_all(names) if suffix.endswith(file_names.CLEANED)
    ]
    if not cleaned_bases:
        return set()
    first = min(cleaned_bases)
    return {name for name, base, _ in _parse_all(swaps) if base >= first}


def _find_replaced(directory: Path, names: list[str], swaps: list[str]) -> set[str]:
    """Files that a finished swap replaces: those with a base in the range of the swapped logs."""
    swapped_log = file_names.LOG + file_names.SWAP
    log_bases = [base for _, base, suffix in _parse_all(swaps) if suffix == swapped_log]
    if not log_bases:
        return set()
    first = min(log_bases)
    end = max(_end_of(directory, base) for base in log_bases)
    replaced = set()
    for name, base, suffix in _parse_all(names):
        if first <= base < end and not suffix.endswith(file_names.SWAP):
            replaced.add(name)
    for name, base in _find_digests(names).items():
        if first <= base < end:
            replaced.add(name)
    return replaced


def _end_of(directory: Path, base: int) -> int:
    path = directory / file_names.file_name(base, file_names.LOG + file_names.SWAP)
    chain = Chain(base, gaps_allowed=True)
    with files.opened(path) as fd:
        for _ in segment.Walk(fd, path, chain, 0, files.facts(fd, path).size):
            pass
    return max(chain.next_offset, base + 1)


def _find_orphans(names: set[str]) -> frozenset[str]:
    """Indexes and digests without a log."""
    logs = {base for _, base, suffix in _parse_all(names) if suffix == file_names.LOG}
    index_suffixes = file_names.SEGMENT_SUFFIXES[1:]
    orphans = set()
    for name, base, suffix in _parse_all(names):
        if suffix in index_suffixes and base not in logs:
            orphans.add(name)
    for name, base in _find_digests(names).items():
        if base not in logs:
            orphans.add(name)
    return frozenset(orphans)
