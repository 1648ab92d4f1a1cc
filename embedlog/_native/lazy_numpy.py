"""Contains numpy, which is imported at its first use: that takes longer than a program needs to append its first record.

NUMPY-1  a module of the package writes `from embedlog._native.lazy_numpy import np`, and uses numpy inside functions only
NUMPY-2  an import that fails, such as one without a free descriptor, is a StorageError: it can happen in the middle of a read
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embedlog.errors import StorageError

__all__ = ["np"]

if TYPE_CHECKING:
    import numpy as np
else:

    class _Late:
        """The module numpy; a name that was used once is an attribute, so later uses cost what they cost in a module."""

        def __getattr__(self, name: str) -> Any:
            try:
                import numpy
            except OSError as problem:
                raise StorageError("numpy cannot be imported", errno=problem.errno, path=problem.filename) from problem
            value = getattr(numpy, name)
            setattr(self, name, value)
            return value

    np = _Late()
