"""Workers of a parallel run: all tests of a file, or of a declared group, run in one worker."""

from __future__ import annotations

import pytest


def test_a_parallel_run_gives_a_file_to_one_worker(request: pytest.FixtureRequest) -> None:
    """Without groups the broker and the JVM start in each worker, and no test fails for that."""
    if hasattr(request.config, "workerinput"):
        assert request.node.nodeid.endswith("@tests/project/test_workers.py")
