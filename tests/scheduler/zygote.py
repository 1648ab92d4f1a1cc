"""A zygote whose victims have all modules and the programs of the scheduler: a turn imports
nothing.
"""

from __future__ import annotations

import logging
import socket
import sys

from tests.faults.harness import tasks
from tests.faults.harness.zygote import die_with_parent, serve
from tests.scheduler import inside, programs  # noqa: F401  (each registers its tasks)

if __name__ == "__main__":
    die_with_parent()
    tasks.import_modules_of_a_log()
    logging.getLogger("embedlog").addHandler(logging.NullHandler())
    serve(socket.socket(fileno=int(sys.argv[1])))
