"""An import of numpy is not left half done: not by a fork, and not by an interrupt."""

from __future__ import annotations

import errno
import subprocess
import sys

SLOW_IMPORT = """
import importlib.abc, sys, threading
begun, going = threading.Event(), threading.Event()

class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "numpy.linalg":  # in the middle of the import of numpy
            begun.set()
            going.wait(60)

sys.meta_path.insert(0, Slow())
from embedlog._native.lazy_numpy import np
"""

FORK = """
import os, signal
thread = threading.Thread(target=lambda: np.zeros(1))
thread.start()
assert begun.wait(60)
threading.Timer(0.1, going.set).start()
pid = os.fork()
if pid == 0:
    signal.alarm(60)
    os._exit(0 if np.zeros(1).sum() == 0 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""

INTERRUPT = """
import signal
main = threading.main_thread().ident
threading.Thread(target=lambda: (begun.wait(60), signal.pthread_kill(main, signal.SIGINT))).start()
try:
    np.zeros(1)
except KeyboardInterrupt:
    going.set()
    print(int(np.zeros(1).sum()))
"""


def output_of(program: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", SLOW_IMPORT + program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_a_fork_during_the_import_has_a_child_with_a_whole_numpy() -> None:
    assert output_of(FORK) == "0"


def test_an_interrupt_during_the_import_does_not_end_it() -> None:
    assert output_of(INTERRUPT) == "0"


NO_DESCRIPTOR = """
import importlib.abc, importlib.machinery, os, resource, sys
from embedlog import StorageError
from embedlog._native.lazy_numpy import np

resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
taken = []

class TakeAll(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if not name.endswith("._multiarray_umath"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        try:
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            return spec

sys.meta_path.insert(0, TakeAll())
try:
    np.zeros(1)
except StorageError as problem:
    print(problem.errno)
del sys.meta_path[0]
for fd in taken:
    os.close(fd)
print(int(np.zeros(1).sum()))
"""


def test_an_extension_module_without_a_descriptor_is_a_storage_error() -> None:
    """It was an ImportError out of a read."""
    result = subprocess.run(
        [sys.executable, "-c", NO_DESCRIPTOR],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [str(errno.EMFILE), "0"]
