"""Finds the next producer id of a broker that is to use a directory.

- Ids of embedlog are 2^62 and above, so only those of brokers count.
- A broker takes ids in blocks of a thousand. It may have assigned the rest of the block of the
  highest id, and ids of the block after it, which it takes in advance: a producer that has written
  nothing shows its id nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from embedlog.format.producer_state import ProducerState
from embedlog.format.wire import LONG
from embedlog.storage import file_names, files
from embedlog.tools.dump.batches import read_batches
from embedlog.tools.dump.segments import records_of

BLOCK: Final = 1000
BLOCKS_TAKEN: Final = 2  # by a broker: the present one, and the next one in advance
_OWN_FROM: Final = 2**62
_TRANSACTIONS: Final = "__transaction_state"
_AFTER_VERSION = 2


def following(partitions: Mapping[str, Mapping[int, Path]], known: int) -> int:
    """The first producer id that no broker has assigned, as far as these directories of partitions
    show; 0: no broker has assigned any. `known`: the one that the metadata has.
    """
    broker_ids = [
        producer_id for producer_id in _find_ids(partitions) if 0 <= producer_id < _OWN_FROM
    ]
    if not broker_ids:
        return max(known, 0)
    return max(known, (max(broker_ids) // BLOCK + BLOCKS_TAKEN) * BLOCK)


def _find_ids(partitions: Mapping[str, Mapping[int, Path]]) -> Iterator[int]:
    for topic, numbers in partitions.items():
        for directory in numbers.values():
            names = files.listing(directory)
            snapshots = file_names.bases(names, file_names.SNAPSHOT)
            if snapshots:
                path = directory / file_names.file_name(snapshots[-1], file_names.SNAPSHOT)
                data = files.read_bytes(path) or b""
                yield from ProducerState.decode(data, snapshots[-1], path).producers
            if topic == _TRANSACTIONS:
                for base in file_names.bases(names):
                    path = directory / file_names.file_name(base, file_names.LOG)
                    yield from _read_transactional_ids(path)


def _read_transactional_ids(path: Path) -> Iterator[int]:
    """The producer ids in records of transactional ids, whose first field they are in every
    version.
    """
    with files.opened(path) as fd:
        for batch in read_batches(fd, path):
            if batch.is_control or not batch.is_valid:
                continue
            for record in records_of(batch):
                if record.value is not None and len(record.value) >= _AFTER_VERSION + LONG.size:
                    yield LONG.unpack_from(record.value, _AFTER_VERSION)[0]
