"""Contains a pool of large buffers whose pages are already mapped.

- A fresh page costs a fault and zeroing, about as much as the copy into it, so blocks return to a
  pool.
- A lease ends without a call: its array keeps it, and when the last view of the array is freed, so
  is the block.
- The free list is bounded; further blocks are unmapped.
- The return of a block takes no lock, because it may happen in the garbage collector.
- Views of one buffer are made and freed by one thread at a time; another thread gets a view with a
  count of its own. Without the GIL, CPython 3.14 counts the views of a buffer without atomics, and
  a lost count releases it while it is in use.
"""

from __future__ import annotations

import mmap
import os
import sys
from typing import TYPE_CHECKING, Any

from embedlog._native.lazy_numpy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray


GIL = getattr(sys, "_is_gil_enabled", lambda: True)()
BLOCK_BYTES_MIN = 64 << 10
# kept by a pool: a scan with read-ahead uses as much, half of it never written
FREE_BYTES_MAX = 128 << 20
HUGE_BYTES = 2 << 20  # blocks of at least this size get huge pages: one fault instead of 512


class Block:
    """One anonymous mapping. Raises MemoryError if there is none."""

    __slots__ = ("address", "memory", "size")

    def __init__(self, size: int) -> None:
        try:
            self.memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"no {size} bytes for a buffer: {error}") from error
        self.size = size
        if size >= HUGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
            try:
                self.memory.madvise(mmap.MADV_HUGEPAGE)
            except OSError:
                pass  # a kernel without huge pages: the same memory in small pages
        self.address = int(np.frombuffer(self.memory, np.uint8).__array_interface__["data"][0])


def zeros(size: int) -> NDArray[np.uint8]:
    """Memory that is not in a pool: huge pages make random access to a large table cheaper. Raises
    MemoryError.
    """
    if size < HUGE_BYTES:
        return np.zeros(size, np.uint8)
    return np.frombuffer(Block(size).memory, np.uint8)


class BufferLease:
    """A block in use, as a numpy array of bytes and as a memoryview of it.

    Either keeps the block, and so do their slices. The contents are undefined.
    """

    __slots__ = ("array",)

    def __init__(self, array: NDArray[np.uint8]) -> None:
        self.array = array

    @property
    def view(self) -> memoryview:
        view: memoryview = self.array.data
        return view


class SharedBytes:
    """Bytes that several threads view. Without the GIL each has a view of its own; with it all have
    the same one. It is made by the thread that has them.
    """

    __slots__ = ("_array", "_data")

    def __init__(self, data: Any) -> None:
        self._data = memoryview(data).cast("B")
        self._array = None if GIL else np.frombuffer(self._data, np.uint8)

    def view(self) -> memoryview:
        """All bytes, for one thread."""
        return self._data if self._array is None else self._array[:].data


class _LeasedBlock(tuple[Any, ...]):
    """The base of a leased array: pool, block and numpy's description, made in one step. When freed
    it returns the block.
    """

    __slots__ = ()

    @property
    def __array_interface__(self) -> dict[str, Any]:
        description: dict[str, Any] = self[2]
        return description

    def __del__(self) -> None:
        self[0]._return_block(self[1])


class BufferPool:
    """Blocks by powers of two. The block that was used last is leased first, because it is in the
    CPU cache.

    **Threads:** any number, without a lock.
    """

    def __init__(self, free_bytes_max: int = FREE_BYTES_MAX) -> None:
        self._free: dict[int, list[Block]] = {}
        self._free_bytes_max = free_bytes_max

    def lease(self, size: int) -> BufferLease:
        """Memory of exactly `size` bytes, not zeroed. Raises MemoryError if there is none."""
        rounded = max(BLOCK_BYTES_MIN, 1 << max(size - 1, 0).bit_length())
        try:
            block = self._free[rounded].pop()
        except (KeyError, IndexError):
            block = Block(rounded)
        data = (block.address, False)
        description = {"version": 3, "typestr": "|u1", "shape": (size,), "data": data}
        return BufferLease(np.asarray(_LeasedBlock((self, block, description))))

    @property
    def free_bytes(self) -> int:
        """Bytes of free blocks."""
        return sum(size * len(blocks) for size, blocks in list(self._free.items()))

    def _return_block(self, block: Block) -> None:
        if block.size > self._free_bytes_max:
            return  # it is never kept, so the others are not forgotten for it
        # The sum may miss a block that another thread returns at the same time: it is a bound, not
        # an account.
        if self.free_bytes + block.size > self._free_bytes_max:
            self._forget_others(block.size)
            if self.free_bytes + block.size > self._free_bytes_max:
                return
        self._free.setdefault(block.size, []).append(block)

    def _forget_others(self, size: int) -> None:
        """Unmaps blocks of other sizes: the size in use is needed again sooner."""
        for block_size in list(self._free):
            if block_size != size:
                self._free.pop(block_size, None)


_shared = BufferPool()


def shared_pool() -> BufferPool:
    """The pool of this process."""
    return _shared


def _start_anew() -> None:
    global _shared
    # After a fork, free blocks would be copied page by page on their next use, in both processes.
    _shared = BufferPool()


os.register_at_fork(after_in_child=_start_anew)
