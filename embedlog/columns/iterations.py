"""Contains the iterators that a scan returns: they say how to get a record, where a list or a
record was expected.

A loop runs on the generator below, so it costs the same as without them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, TypeVar

from embedlog._native._rows import Record
from embedlog.columns.batch import Batch
from embedlog.config import other_clients

__all__ = ["BatchIterator", "RecordIterator"]

Item = TypeVar("Item")


class _Iteration(Iterator[Item], Generic[Item], metaclass=other_clients.Hinting):
    """An iterator over what a generator makes. Threads: one, as for a generator."""

    __slots__ = ("_items",)
    _use: ClassVar[str]
    _fields: ClassVar[tuple[str, ...]]

    def __init__(self, items: Generator[Item, None, None]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Item]:
        return self._items

    def __next__(self) -> Item:
        return next(self._items)

    def close(self) -> None:
        """End the reading before its end."""
        self._items.close()

    if not TYPE_CHECKING:  # type checkers refuse other names themselves

        def __getattr__(self, name: str) -> NoReturn:
            hint = f" of one item: {self._use}" if name in self._fields else ""
            raise AttributeError(
                f"{type(self).__name__!r} is an iterator without {name!r}{hint}",
                name=name,
                obj=self,
            )


class RecordIterator(_Iteration[Record[Any, Any]]):
    """The records of a scan."""

    __slots__ = ()
    _use = "for record in scan.records(), next(scan.records()), or the list scan.head(n)"
    _fields = tuple(name for name in dir(Record) if not name.startswith("_"))


class BatchIterator(_Iteration[Batch]):
    """The batches of a scan."""

    __slots__ = ()
    _use = "for batch in scan.batches(), or next(scan.batches())"
    _fields = tuple(name for name in dir(Batch) if not name.startswith("_"))


other_clients.refuse_as_container(RecordIterator, RecordIterator._use)
other_clients.refuse_as_container(BatchIterator, BatchIterator._use)
