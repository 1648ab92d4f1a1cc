"""Whether data of unknown transactions must be aborted (`recovery`): a word of the directory's
control page.

- Due after the page cache was lost while the directory was open, until it was done once.
- Another word has the page cache of the last opening. The DIRTY marks of a set depend on it, too.
"""

from __future__ import annotations

from typing import Final

from embedlog._native import system

# Words of the directory's control page.
LAST_CACHE = 8
RECOVERY_DUE = 9
UNKNOWN_CACHE: Final = 0


def record_opening(page: system.Page, clean: bool, broker_wrote: bool, cache: int) -> None:
    """Record at the first open whether the page cache was lost; `cache` is its current number.
    REQUIRES the open lock.
    """
    if broker_wrote:
        page.set(RECOVERY_DUE, 0)  # a broker has its own records of open transactions
    elif not clean and (cache == UNKNOWN_CACHE or page.word(LAST_CACHE) != cache):
        page.set(RECOVERY_DUE, 1)
    record_cache(page, cache)


def record_cache(page: system.Page, cache: int) -> None:
    """Record the page cache of this opening."""
    page.set(LAST_CACHE, cache)


def is_last_cache(page: system.Page, cache: int) -> bool:
    """Whether the last opening had this page cache, which is known."""
    return cache != UNKNOWN_CACHE and page.word(LAST_CACHE) == cache


def is_due(page: system.Page | None) -> bool:
    """Whether open data without a record may exist."""
    return page is not None and bool(page.word(RECOVERY_DUE))


def record_done(page: system.Page | None) -> None:
    if page is not None:
        page.set(RECOVERY_DUE, 0)
