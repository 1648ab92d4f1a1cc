"""Clocks, forks, threads and the end of the interpreter, on a set of three directories."""

from tests.project.test_environment import *  # noqa: F403 (its tests and fixtures run again here)
from tests.support.clocks_and_forks import _forkserver, _true_clock  # noqa: F401
