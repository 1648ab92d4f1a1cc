"""Imports numpy at its first use: that takes longer than a program needs to append its first record.

- A module of the package writes `from embedlog._native.lazy_numpy import np`, and uses numpy inside
  functions only.
- An import that fails for want of a resource, such as a free descriptor, is a StorageError: it can
  happen in the middle of a read. Python reports it as an ImportError if it fails in an extension
  module of numpy.
- An import of numpy that is interrupted half way cannot be repeated, so no interrupt reaches it: the
  main thread, where signals are handled, leaves it to another thread. An interrupt ends the wait,
  not the import. A fork waits for an import, too.
"""

from __future__ import annotations

import contextlib
import errno
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


# for want of these an extension module is not loaded, which Python reports by text only
_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def _find_missing_resource(problem: ImportError) -> int | None:
    """The error number of the system, if the import failed for want of a resource."""
    text = str(problem)
    return next((number for number in _RESOURCES if os.strerror(number) in text), None)


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
            except ImportError as problem:
                number = _find_missing_resource(problem)
                if number is None:
                    raise
                raise StorageError(
                    "numpy cannot be imported", errno=number, path=problem.path
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
