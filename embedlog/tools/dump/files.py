"""Prints files of a log one after the other, and then the contradictions between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from embedlog.errors import EmbedlogError
from embedlog.index import OFFSET_ENTRY, TIME_ENTRY
from embedlog.storage import file_names, files
from embedlog.tools.dump import indexes, segments
from embedlog.tools.dump.coordinator_records import (
    OFFSETS,
    SHARE_STATES,
    TRANSACTIONS,
    make_decoder,
)
from embedlog.tools.dump.line import DumpLine, Findings
from embedlog.tools.dump.segments import Content

DECODERS = {
    "text": segments.text_of,
    "offsets": make_decoder(OFFSETS),
    "transactions": make_decoder(TRANSACTIONS),
    "share": make_decoder(SHARE_STATES),
}


@dataclass(frozen=True)
class DumpOptions:
    """What is printed. `sanity`: of indexes only the check of a broker's start. `quiet`: entries
    are compared, not printed.
    """

    content: Content
    quiet: bool = False
    sanity: bool = False
    batch_bytes_max: int = 5 << 20


def dump(paths: Iterable[Path], options: DumpOptions) -> Iterator[DumpLine]:
    """The lines of all files. A file that cannot be read has one line that says why; the others
    follow.
    """
    findings = Findings()
    for path in paths:
        yield DumpLine(f"Dumping {path}", {"dumping": str(path)})
        try:
            yield from _lines_of(path, options, findings)
        except EmbedlogError as problem:
            yield DumpLine(str(problem), {"file": str(path), "problem": str(problem)}, good=False)
    yield from findings.lines()


def partition_files(directory: Path) -> list[Path]:
    """The files of a partition directory that can be printed."""
    return indexes.parts_of(directory)


def _lines_of(path: Path, options: DumpOptions, findings: Findings) -> Iterator[DumpLine]:
    match indexes.kind_of(path):
        case file_names.LOG:
            yield from segments.dump(path, options.content, findings)
        case file_names.INDEX if options.sanity:
            yield from indexes.check_index(path, OFFSET_ENTRY.size)
        case file_names.TIME_INDEX if options.sanity:
            yield from indexes.check_index(path, TIME_ENTRY.size)
        case file_names.INDEX:
            yield from indexes.dump_offset_index(
                path, findings, quiet=options.quiet, batch_bytes_max=options.batch_bytes_max
            )
        case file_names.TIME_INDEX:
            yield from indexes.dump_time_index(path, findings, quiet=options.quiet)
        case file_names.TRANSACTION_INDEX:
            yield from indexes.dump_transaction_index(path)
        case file_names.SNAPSHOT:
            yield from indexes.dump_snapshot(path)
        case _ if not files.exists(path):
            yield DumpLine(
                f"{path}: no such file", {"file": str(path), "problem": "no such file"}, good=False
            )
        case _:
            yield DumpLine(f"Ignoring unknown file {path}", {"file": str(path), "ignored": True})
