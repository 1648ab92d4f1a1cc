"""Finds the next producer id of a broker that is to use a directory.

NEXTPRODUCERID-1  ids of embedlog are 2^62 and above (PRODUCERID-1), so only those of brokers count
NEXTPRODUCERID-2  a broker takes ids in blocks of a thousand, and may have assigned the rest of the
    last block
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from embedlog.dump.batches import batches
from embedlog.dump.segments import records_of
from embedlog.format.producer_state import ProducerState
from embedlog.format.wire import LONG
from embedlog.storage import file_names, files

BLOCK: Final = 1000
_OWN_FROM: Final = 2**62
_TRANSACTIONS: Final = "__transaction_state"
_AFTER_VERSION = 2


def following(path: Path, partitions: Mapping[str, Mapping[int, Path]], known: int) -> int:
    """The first producer id that no broker has assigned, as far as the directory shows; 0: no
    broker has assigned any.
    """
    used = max((each for each in _ids(partitions) if 0 <= each < _OWN_FROM), default=-1)
    return max(known, 0 if used < 0 else (used // BLOCK + 2) * BLOCK)


def _ids(partitions: Mapping[str, Mapping[int, Path]]) -> Iterator[int]:
    for topic, numbers in partitions.items():
        for place in numbers.values():
            named = [
                (found[0], found[1], name)
                for name in files.listing(place)
                if (found := file_names.parse(name))
            ]
            snapshots = sorted(each for each in named if each[1] == file_names.SNAPSHOT)
            if snapshots:
                offset, _, name = snapshots[-1]
                data = files.read_bytes(place / name) or b""
                yield from (
                    each.producer_id
                    for each in ProducerState.decode(data, offset, place / name).producers.values()
                )
            if topic == _TRANSACTIONS:
                for _, _, name in (each for each in named if each[1] == file_names.LOG):
                    yield from _transactional(place / name)


def _transactional(path: Path) -> Iterator[int]:
    """The producer ids in records of transactional ids, whose first field they are in every
    version.
    """
    with files.opened(path) as fd:
        for batch in batches(fd, path):
            for record in records_of(batch) if not batch.is_control and batch.is_valid else ():
                if record.value is not None and len(record.value) >= _AFTER_VERSION + LONG.size:
                    yield LONG.unpack_from(record.value, _AFTER_VERSION)[0]
