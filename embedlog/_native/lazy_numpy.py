"""Imports numpy at its first use: that takes longer than a program needs to append its first record.

- A module of the package writes `from embedlog._native.lazy_numpy import np`, and uses numpy inside
  functions only.
- An import that fails with an error of the system, such as one without a free descriptor, is a
  StorageError: it can happen in the middle of a read.
- An import of numpy that is interrupted half way cannot be repeated, so no interrupt reaches it: the
  main thread, where signals are handled, leaves it to another thread. An interrupt ends the wait,
  not the import. A fork waits for an import, too.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from embedlog._native.threads import call_uninterrupted
from embedlog.errors import StorageError

__all__ = ["load", "np"]

_importing = threading.RLock()
os.register_at_fork(
    before=_importing.acquire, after_in_parent=_importing.release, after_in_child=_importing.release
)


def _import_exclusively() -> None:
    """Import numpy, while no other thread forks this process."""
    with _importing:
        import numpy  # noqa: F401


def _import_numpy() -> None:
    """Import numpy, if it is not imported yet. Raises what the import raises."""
    module = sys.modules.get("numpy")
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        return
    call_uninterrupted(_import_exclusively)


if TYPE_CHECKING:
    import numpy as np
else:

    class _Late:
        """Stands for numpy. A name that was used once is an attribute, so later uses cost what they
        cost in a module.
        """

        def __getattr__(self, name: str) -> Any:
            try:
                _import_numpy()
            except OSError as problem:
                raise StorageError(
                    "numpy cannot be imported", errno=problem.errno, path=problem.filename
                ) from problem
            value = getattr(sys.modules["numpy"], name)
            setattr(self, name, value)
            return value

    np = _Late()


def load() -> None:
    """Import numpy now, in a pause, before a use that should not wait for it. A StorageError is left
    to that use. Cheap after the first call.
    """
    with contextlib.suppress(StorageError):
        _ = np.ndarray
