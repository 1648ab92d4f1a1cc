"""Memory that is used again: large buffers whose pages are there already.

BUFFERPOOL-1  a fresh page costs a fault and its zeroing, about as much as the copy that follows; so blocks go back to a pool
BUFFERPOOL-2  a lease ends by itself: the array it gives keeps it, and when the last view of that array is gone, the block is free
    again
BUFFERPOOL-3  the free list is bounded; what is too much is unmapped
BUFFERPOOL-4  giving back takes no lock: it may happen anywhere, in the garbage collector too
"""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK_BYTES_MIN = 64 << 10
FREE_BYTES_MAX = 128 << 20  # what a pool keeps for the next one: a scan that reads ahead has so much in use, half of it untouched
HUGE_BYTES = 2 << 20  # blocks from here on ask for huge pages: one fault instead of 512


class Block:
    """One anonymous mapping."""

    __slots__ = ("address", "memory", "size")

    def __init__(self, size: int) -> None:
        self.memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.size = size
        if size >= HUGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
            try:
                self.memory.madvise(mmap.MADV_HUGEPAGE)
            except OSError:
                pass  # a kernel without them: the same memory in small pages
        self.address = int(np.frombuffer(self.memory, np.uint8).__array_interface__["data"][0])


class Lease:
    """A block on loan, as a numpy array of bytes and as a memoryview of it.

    Either keeps the block; so does everything that is sliced from them. The contents are whatever was there before.
    """

    __slots__ = ("array",)

    def __init__(self, array: NDArray[np.uint8]) -> None:
        self.array = array

    @property
    def view(self) -> memoryview:
        view: memoryview = self.array.data
        return view


class _Loan:
    """What a leased array has as its base: gives the block back when it dies."""

    __slots__ = ("__array_interface__", "_block", "_pool")

    def __init__(self, pool: BufferPool, block: Block, size: int) -> None:
        self._pool, self._block = pool, block
        place = (block.address, False)
        self.__array_interface__: dict[str, Any] = {"version": 3, "typestr": "|u1", "shape": (size,), "data": place}

    def __del__(self) -> None:
        self._pool._give_back(self._block)


class BufferPool:
    """Blocks by powers of two, the last one used first: it is the one still in the cache.

    **Threads:** any number, without a lock.
    """

    def __init__(self, free_bytes_max: int = FREE_BYTES_MAX) -> None:
        self._free: dict[int, list[Block]] = {}
        self._free_bytes_max = free_bytes_max

    def lease(self, size: int) -> Lease:
        """Memory of exactly `size` bytes, not zeroed. Raises MemoryError if there is none."""
        rounded = max(BLOCK_BYTES_MIN, 1 << max(size - 1, 0).bit_length())
        try:
            block = self._free[rounded].pop()
        except (KeyError, IndexError):
            block = self._new(rounded)
        return Lease(np.asarray(_Loan(self, block, size)))

    @property
    def free_bytes(self) -> int:
        """Bytes that wait for their next use."""
        return sum(size * len(blocks) for size, blocks in list(self._free.items()))

    def _new(self, size: int) -> Block:
        try:
            return Block(size)
        except OSError as error:
            raise MemoryError(f"no {size} bytes for a buffer: {error}") from error

    def _give_back(self, block: Block) -> None:
        # The sum may be a block too old when threads give back at once: a bound, not an account.
        if self.free_bytes + block.size > self._free_bytes_max:
            self._forget_others(block.size)
            if self.free_bytes + block.size > self._free_bytes_max:
                return
        self._free.setdefault(block.size, []).append(block)

    def _forget_others(self, size: int) -> None:
        """What has just been used is used again sooner than blocks of sizes that nobody asks for any more."""
        for other in list(self._free):
            if other != size:
                self._free.pop(other, None)


_shared = BufferPool()


def shared_pool() -> BufferPool:
    """The pool of this process."""
    return _shared


def _start_anew() -> None:
    global _shared
    # A child's copies of free blocks would be copied page by page on their next use, in both processes.
    _shared = BufferPool()


os.register_at_fork(after_in_child=_start_anew)
