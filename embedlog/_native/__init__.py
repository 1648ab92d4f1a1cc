"""The C core: the extensions `_core` (bytes and files, no Python objects) and `_rows` (Python
objects of the fast paths).

C files: `codec` works on bytes only. `system` makes system calls. `log` has control page, append
and tail. `objects` is `_rows`. `api` has the declarations. `testing` exists only in the test build.
The package must not know topics or clients. It exports the modules `codec`, `system` and `calls`,
and the extension `_rows`.

- Only this package uses `lib` and `ffi`; its functions are typed Python.
- A pointer lives as long as its call; the GIL is released during every call into `_core`.

The types of `_rows` and numpy belong to the first interpreter of the process that loads them.
Another one is refused at once.
"""

from embedlog._native import _rows
from embedlog.errors import UnsupportedPlatformError

if _rows.is_in_another_interpreter():
    raise UnsupportedPlatformError(
        "embedlog runs in one interpreter of a process only, as numpy does, and another one has "
        "loaded it: use processes; in mod_wsgi, WSGIApplicationGroup %{GLOBAL}"
    )
