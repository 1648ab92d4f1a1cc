"""The topics words of several directories as one number, which changes with each of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from embedlog._native import system, waits

WORD_BITS: Final = 32  # of the topics word in a control page


def version(words: Iterable[int]) -> int:
    """The topics words of the directories as one number, for `followed`; odd during a change of one
    of them.
    """
    joined = odd = 0
    for at, word in enumerate(words):
        joined = joined | word << (WORD_BITS * at)
        odd = odd | word & 1
    return joined << 1 | odd


def followed_pages(pages: Sequence[system.Page], seen: int) -> list[tuple[system.Page, int]]:
    """The pages, each with its topics word in a version; NOT_FOLLOWED is that of each."""
    mask = (1 << WORD_BITS) - 1
    return [
        (page, waits.NOT_FOLLOWED if seen < 0 else seen >> (1 + WORD_BITS * at) & mask)
        for at, page in enumerate(pages)
    ]
