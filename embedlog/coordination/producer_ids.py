"""Contains the generator of producer ids for idempotent and transactional producers.

- An id is 2^62 plus 61 random bits, so that no process allocates ids (`docs/protocol.md`, SEQ-4).
"""

from __future__ import annotations

import os


def new_producer_id() -> int:
    """A fresh producer id, far above those that a broker allocates."""
    return 2**62 + (int.from_bytes(os.urandom(8)) >> 3)
