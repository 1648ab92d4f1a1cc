"""The pytest plugin: its fixtures, its message, its name in the package, and what it costs where it
is not used.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
import unittest
from importlib import import_module

import pytest

from embedlog.testing import assert_records, open_log
from tests.conftest import ROOT
from tests.support.child_pytest import PLUGIN

pytest_plugins = ["pytester"]


def test_the_entry_point_leads_to_the_plugin() -> None:
    entry = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][
        "pytest11"
    ]
    assert entry == {"embedlog": "embedlog.testing.plugin"}
    assert import_module(entry["embedlog"]).embedlog_log is not None


SUITE = """
    import pytest
    from embedlog import Record
    from embedlog.testing import assert_records, open_log

    paths = []

    @pytest.fixture
    def embedlog_topics():
        return {"orders": 2}

    @pytest.fixture
    def embedlog_settings():
        return {"log.segment.bytes": 1 << 20}

    def test_records(embedlog_log, embedlog_producer, embedlog_consumer, embedlog_records):
        assert embedlog_log.config.log_segment_bytes == 1 << 20
        embedlog_producer.send("orders", b"v", key=b"k", partition=1).result(60)
        assert [each.value for each in embedlog_records("orders")] == [b"v"]
        assert embedlog_records("orders", partition=0) == []
        first = embedlog_consumer("orders", group_id="g")
        assert [each.value for each in first.poll(60)] == [b"v"]
        assert embedlog_consumer("orders", auto_offset_reset="latest").poll(0) == []
        paths.append(embedlog_log.path)

    def test_another_log(embedlog_log, embedlog_records):
        assert embedlog_log.path not in paths
        assert not paths[0].exists()
        assert embedlog_records("orders") == []

    def row(offset, value):
        return Record("t", 0, offset, 0, 0, None, value)

    def test_comparison():
        assert [row(0, b"a"), row(1, b"b")] == [row(0, b"a"), row(1, b"c"), row(2, b"d")]

    def test_other_lists():
        assert [1] == [2]

    def test_assertion():
        with open_log("t") as log:
            assert_records(log, "t", ["a"])
"""


def test_the_fixtures_and_messages(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_inprocess(*PLUGIN)
    result.assert_outcomes(passed=2, failed=3)
    result.stdout.fnmatch_lines(
        [
            "E       AssertionError: assert lists of records differ: 2 == 3 records",
            "E         first difference at record 1",
            "E           left  partition 0 offset 1 key=None value='b'",
            "E           right partition 0 offset 1 key=None value='c'",
            "E           value: expected 'c', found 'b'",
            "E       assert [[]1[]] == [[]2[]]",
            '>           assert_records(log, "t", [[]"a"[]])',
            "E           AssertionError: topic 't': expected 1*",
        ]
    )
    result.stdout.no_fnmatch_line("*_ordered_difference*")


def test_a_run_without_its_fixtures_imports_no_engine(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import sys

        def test_it():
            found = {name for name in sys.modules if name.split(".")[0] in ("embedlog", "numpy", "cffi", "_cffi_backend")}
            assert found <= {
                "embedlog", "embedlog._platform", "embedlog.errors",
                "embedlog.testing", "embedlog.testing.plugin",
            }, found
            assert "embedlog.testing.plugin" in found
    """)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:benchmark",
        *PLUGIN,
        str(pytester.path),
    ]
    answer = subprocess.run(command, cwd=pytester.path, capture_output=True, text=True, timeout=100)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_every_fixture_has_a_purpose() -> None:
    plugin = import_module("embedlog.testing.plugin")
    fixtures = [each for name, each in vars(plugin).items() if name.startswith("embedlog_")]
    assert len(fixtures) >= 6
    assert [each for each in fixtures if not each.__doc__] == []


def test_every_fixture_begins_with_the_name_of_the_package() -> None:
    text = (ROOT / "embedlog" / "testing" / "plugin.py").read_text().split("@pytest.fixture\n")[1:]
    assert len(text) >= 6
    assert [each for each in text if not each.startswith("def embedlog_")] == []


def test_public_names_of_the_package_are_sorted_and_found() -> None:
    testing = import_module("embedlog.testing")
    assert testing.__all__ == sorted(testing.__all__)
    assert [name for name in testing.__all__ if not hasattr(testing, name)] == []
    assert set(testing.__all__) <= set(dir(testing))
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        _ = testing.absent


class _Orders(unittest.TestCase):
    def setUp(self) -> None:
        self.log = self.enterContext(open_log("orders"))

    def test_it(self) -> None:
        with self.log.producer() as producer:
            producer.send("orders", b"v", key=b"k")
        assert_records(self.log, "orders", [("k", "v")])

    def test_difference(self) -> None:
        assert_records(self.log, "orders", ["x"])


_Orders.__test__ = False  # type: ignore[attr-defined]


def test_unittest_uses_the_same_functions() -> None:
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(_Orders).run(result)
    assert (result.testsRun, len(result.failures), result.errors) == (2, 1, [])
    assert "topic 'orders': expected 1 record, found 0" in result.failures[0][1]
