"""The promised term of one copy of the decision log (`docs/protocol.md`, QUORUM-3).

The file is on disk when `write` returns, and changes as a whole. A promise never falls. It is no
entry of the leader-epoch-checkpoint: a load and a cut remove entries at the log end.

A copy is incomplete while it begins again: it may lack records that it had. It counts for no
majority until it is level again and synced.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from embedlog.errors import ForeignDirectoryError
from embedlog.storage import files
from embedlog.storage.file_names import INT_MAX, PROMISE
from embedlog.storage.json_file import JsonFile

TERM_MAX: Final = INT_MAX - 1
_REMEDY = "remove the whole copy of the decision log: it is made again from the other directories"
_FILE = JsonFile(
    "promises",
    "the highest term that was promised for this copy of the decision log; written by embedlog",
    1,
    _REMEDY,
)


class Promise(NamedTuple):
    """The highest promised term, and whether the copy is incomplete."""

    term: int = 0
    incomplete: bool = False


def read(directory: Path) -> Promise:
    """The promise of a copy; the lowest one if it has none. Raises ForeignDirectoryError,
    UnsupportedFormatError.
    """
    path = directory / PROMISE
    data = files.read_bytes(path)
    if data is None:
        return Promise()
    term, fields = _FILE.decode(path, data)
    incomplete = fields.get("incomplete")
    if type(incomplete) is not bool or term > TERM_MAX:
        raise ForeignDirectoryError(
            f"not a promise; {_REMEDY}", path=path, expected=f"a term up to {TERM_MAX}", found=term
        )
    return Promise(term, incomplete)


def write(directory: Path, promise: Promise, mode: int = 0o666) -> None:
    """Replace the promise durably. REQUIRES the append lock of the copy."""
    files.write_atomically(
        directory / PROMISE,
        _FILE.encode(promise.term, {"incomplete": promise.incomplete}, {}),
        mode,
    )
