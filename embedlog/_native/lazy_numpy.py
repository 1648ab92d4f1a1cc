"""Contains numpy, which is imported at its first use: that takes longer than a program needs to append its first record.

NUMPY-1  a module of the package writes `from embedlog._native.lazy_numpy import np`, and uses numpy inside functions only
NUMPY-2  an import that fails, such as one without a free descriptor, is a StorageError: it can happen in the middle of a read
NUMPY-3  `load` imports it in a pause, before a use that should not wait for it. An error is left to that use
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from embedlog.errors import StorageError

__all__ = ["load", "np"]

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


def load() -> None:
    """Import numpy now (NUMPY-3). Cheap after the first call."""
    with contextlib.suppress(StorageError):
        _ = np.ndarray
