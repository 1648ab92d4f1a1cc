"""The identity of a process slot, as records of internal topics contain it."""

from __future__ import annotations

from typing import NamedTuple


class ProcessSlot(NamedTuple):
    """One use of a process slot. It has ended when the slot is not locked, or locked with another
    nonce.

    `node`: the directory of a set that has it, for the owner of a transactional id; None if it is
    not known.
    """

    slot: int
    nonce: int
    node: int | None = None
