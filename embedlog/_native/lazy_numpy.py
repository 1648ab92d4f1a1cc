"""Contains numpy, which is imported at its first use: that takes longer than a program needs to append its first record.

NUMPY-1  a module of the package writes `from embedlog._native.lazy_numpy import np`, and uses numpy inside functions only
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["np"]

if TYPE_CHECKING:
    import numpy as np
else:

    class _Late:
        """The module numpy; a name that was used once is an attribute, so later uses cost what they cost in a module."""

        def __getattr__(self, name: str) -> Any:
            import numpy

            value = getattr(numpy, name)
            setattr(self, name, value)
            return value

    np = _Late()
