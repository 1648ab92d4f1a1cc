"""The topics words of several directories as one number, which changes with each of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from embedlog._native import system, waits

WORD_BITS: Final = 32  # of the topics word in a control page


def version(words: Iterable[int]) -> int:
    """The topics words of the directories as one number, for `followed_pages`; odd during a change of one
    of them.
    """
    joined = 0
    odd = 0
    for index, word in enumerate(words):
        joined = joined | word << (WORD_BITS * index)
        odd = odd | word & 1
    return joined << 1 | odd


def followed_pages(pages: Sequence[system.Page], version: int) -> list[tuple[system.Page, int]]:
    """The pages, each with its topics word in a version; NOT_FOLLOWED is that of each."""
    mask = (1 << WORD_BITS) - 1
    if version < 0:
        return [(page, waits.NOT_FOLLOWED) for page in pages]
    return [(page, version >> (1 + WORD_BITS * index) & mask) for index, page in enumerate(pages)]
