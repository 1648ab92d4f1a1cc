"""What every peer provides: its facts for the page, and its operations for the turns.

A peer imports its packages in its methods only, so that its facts are known also without them.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from ..job import Job

if TYPE_CHECKING:
    import pyarrow as pa

Values = list[bytes]


class Peer:
    """One store, opened by one process. `begin` and `finish` enclose appends; the other methods
    read.
    """

    NAME: ClassVar[str]
    TITLE: ClassVar[str]
    LANGUAGE: ClassVar[str] = "Python"
    MODULES: ClassVar[tuple[str, ...]] = ()  # that must be importable
    DISTRIBUTION: ClassVar[str] = ""
    INSTALL: ClassVar[str] = "pip install '.[race]'"
    BROKER: ClassVar[bool] = False
    SLICE: ClassVar[int] = 1  # a slice of columns is so many times as large as a batch of rows
    CHECKSUM: ClassVar[str]
    SETTINGS: ClassVar[str]
    DURABLE: ClassVar[str]
    # workload, or the part of its name before a slash → why not
    LACKS: ClassVar[dict[str, str]] = {}

    def __init__(self, job: Job) -> None:
        self.job = job

    # ---- facts ----

    @classmethod
    def missing(cls) -> str:
        """The modules that cannot be imported here; empty if the peer can run."""
        return ", ".join(name for name in cls.MODULES if importlib.util.find_spec(name) is None)

    @classmethod
    def version(cls) -> str:
        return importlib.metadata.version(cls.DISTRIBUTION)

    @classmethod
    def reason(cls, workload: str, codec: str) -> str:
        """Why this peer cannot do a workload; empty if it can."""
        if codec != "none" and "codec" in cls.LACKS:
            return cls.LACKS["codec"]
        return cls.LACKS.get(workload, cls.LACKS.get(workload.partition("/")[0], ""))

    # ---- appends ----

    def begin(self) -> None:
        """Open the store for appends; create it if it is missing."""
        raise NotImplementedError

    def append_each(self, values: Values) -> None:
        """Append every value with its own call."""
        raise NotImplementedError

    def append_batch(self, values: Values) -> None:
        """Append all values with the peer's call for many."""
        raise NotImplementedError

    def append_columns(self, values: pa.Array) -> None:
        """Append an Arrow array. Peers without columns make a list of it, as their users do."""
        self.append_batch(values.to_pylist())

    def append_timed(self, values: Values, first_ms: int) -> None:
        """Append values with times: each is one ms later than the one before."""
        raise NotImplementedError

    def acknowledged(self, value: bytes) -> None:
        """Append one value and return when it is kept: in the page cache, or on stable storage if
        the job is durable.
        """
        raise NotImplementedError

    def for_thread(self) -> Any:
        """The object whose `acknowledged` one more thread calls; called in that thread."""
        return self

    def finish(self) -> None:
        """Return when all appended values are kept."""

    def settle(self) -> None:
        """After a store was filled: bring it into the form that its readers meet later."""

    def stored(self) -> int:
        """The number of records in the store."""
        raise NotImplementedError

    # ---- reads ----

    def open_reader(self) -> None:
        """Open the store for reads."""
        raise NotImplementedError

    def records(self, first: int) -> Iterator[Values]:
        """Lists of values in order from an offset; it may end or wait at the end."""
        raise NotImplementedError

    def columns(self) -> Iterator[pa.Array]:
        """All values as Arrow arrays. Peers without columns make them from lists."""
        import pyarrow

        for values in self.records(0):
            yield pyarrow.array(values, pyarrow.binary())

    def warm_reader(self) -> None:
        """Read one record, so that the code of reads is loaded."""
        self.value_at(0)

    def warm_columns(self) -> None:
        """Make columns once."""
        import pyarrow

        self.warm_reader()
        pyarrow.array([b"x"], pyarrow.binary())

    def value_at(self, offset: int) -> bytes:
        raise NotImplementedError

    def value_since(self, time_ms: int) -> bytes:
        """The value of the first record that is not older."""
        raise NotImplementedError

    def follow(self) -> Iterator[Values]:
        """Open the store and return the values that are appended from now on; the first list is
        empty: the reader is ready.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Close everything that was opened."""
