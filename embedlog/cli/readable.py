"""Reads the members of a list one by one: topics, groups.

READABLE-1  what is damaged is a line on standard error and makes the status 1; the others are printed
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import click

from embedlog import CorruptRecordError, StorageError

Description = TypeVar("Description")


class Readable:
    """The readable members, and whether all were."""

    def __init__(self) -> None:
        self.whole = True

    def each(self, names: Iterable[str], describe: Callable[[str], Description]) -> Iterator[Description]:
        """Describe each name; what is damaged is left out."""
        for name in names:
            try:
                yield describe(name)
            except (CorruptRecordError, StorageError) as problem:
                self.whole = False
                click.echo(f"embedlog: {problem}", err=True)

    def status(self, found: bool) -> int:
        """The exit status of a list: 0 if it has a row and is whole."""
        return 0 if found and self.whole else 1
