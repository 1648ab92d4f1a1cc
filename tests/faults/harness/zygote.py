"""A process that has imported everything and opened nothing: it forks the victims, some hundred a
second.

Z1  single-threaded and without handles of its own, so a fork of it is like a fresh interpreter
Z2  a victim dies with its zygote, and the zygote with the test process (parent-death signal)
Z3  it uses one socket: a byte and a descriptor in, the victim's pid out
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import socket
import sys
from multiprocessing.connection import Connection

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def load_tasks() -> None:
    """Import what the victims of the experiments need."""
    # Public names are imported on first use: without this each victim would import them again, for
    # 300 ms
    import embedlog

    for name in embedlog.__all__:
        getattr(embedlog, name)
    # each registers its tasks
    from tests.faults.damage import damage, hostile, loading  # noqa: F401
    from tests.faults.groups import offsets, rebalancing, zombies  # noqa: F401
    from tests.faults.harness import lease_tasks, script, tasks, transaction_tasks  # noqa: F401
    from tests.faults.partition import compacting, live, stamping  # noqa: F401
    from tests.faults.power import powerloss  # noqa: F401
    from tests.faults.producer import counting, repeating  # noqa: F401
    from tests.faults.replicas import operators, power_cuts, set_tasks  # noqa: F401
    from tests.faults.spark import landing  # noqa: F401
    from tests.faults.transactions import cuts  # noqa: F401
    from tests.machine import actor  # noqa: F401
    from tests.support import crashing_handovers as crashing  # noqa: F401


def serve(control: socket.socket) -> None:
    """Fork a victim for each descriptor that arrives, until the socket closes."""
    from tests.faults.harness import tasks

    gc.freeze()
    logging.lastResort = None  # a recovery logs each truncation: thousands of lines here
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not descriptors:
            return
        pid = os.fork()
        if pid == 0:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            die_with_parent()
            tasks.obey(Connection(descriptors[0]))
            os._exit(0)
        os.close(descriptors[0])
        control.sendall(pid.to_bytes(8, "little"))


if __name__ == "__main__":
    die_with_parent()
    load_tasks()
    serve(socket.socket(fileno=int(sys.argv[1])))
