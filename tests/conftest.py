"""Fixtures and hooks of all tests: printed seeds, golden directories, one broker for the whole run.

The environment is prepared once, so that processes which tests start find this embedlog and no
other.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import os
import random
import shutil
import signal
import sys
import sysconfig
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from multiprocessing import util
from pathlib import Path
from typing import Any

import numpy  # noqa: F401  (an import that fails, in a test without free descriptors, could not be repeated in the process)
import pytest

import embedlog
from embedlog._native import system
from embedlog.config.topic import LogConfig
from embedlog.coordination.groups.group_coordinator import Groups
from tests.faults.harness.processes import Nursery
from tests.kafka import oracle
from tests.support import leaks
from tests.support import spark_session as session
from tests.support.campaign_report import (  # hooks: pytest finds them by their names
    leave_out_what_passed,
    pytest_runtest_call,  # noqa: F401
    pytest_runtest_logreport,  # noqa: F401
    pytest_terminal_summary,  # noqa: F401
)
from tests.support.transactional_producers import QUIET

FIRST = ("kafka", "spark", "tests/project/", "tests/faults/")  # groups of tests, the longest first
# One for all workers of a run, which inherit the environment.
SAMPLE_SEED = os.environ.setdefault(
    "EMBEDLOG_SAMPLES",
    os.environ.get("EMBEDLOG_SEED") or str(random.SystemRandom().getrandbits(32)),
)
MANY_TESTS = 2000
JVMS_S = 600  # for a test that starts some Java: on a machine as slow as they come
ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"
# another place than ROOT under `make test-sanitize`
BUILD = Path(embedlog.__file__).resolve().parent.parent
# each of the many processes would compile all modules again
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [str(BUILD), str(ROOT), os.environ.get("PYTHONPATH")])
)


# a run in the background inherits that, and tests send interrupts
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    # a trial of a wheel runs tests that need neither
    if not system.TEST_BUILD and "EMBEDLOG_INSTALLED" not in os.environ:
        core = "this core has no fault injection and no mutants (not the test build)"
        pytest.exit(
            f"embedlog: {core}: EMBEDLOG_TEST_BUILD=1 pip install --no-build-isolation -e .",
            returncode=4,
        )


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A free-threaded Python ran the whole session without the GIL: no import switched it on."""
    free_threaded = (
        sysconfig.get_config_var("Py_GIL_DISABLED") and os.environ.get("PYTHON_GIL") != "1"
    )
    if free_threaded and sys._is_gil_enabled():  # type: ignore[attr-defined]
        print("embedlog: an import has switched the GIL on", file=sys.stderr)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[object]:
    """Without the garbage collector: tests live until the end of the run, and each worker would
    search them in vain.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """One worker per test file, and one for all tests that need the broker; a piece of an
    experiment runs in any worker.
    """
    leave_out_what_passed(config, items)
    leave_out_of_samples(items)
    files = dict[Path, str]()
    for item in items:
        needs_broker = "broker" in getattr(item, "fixturenames", ())
        is_grouped = item.get_closest_marker("xdist_group") is not None
        if not is_grouped and item.get_closest_marker("spark") is not None:
            item.add_marker(pytest.mark.xdist_group("spark"))  # one worker, one JVM
            is_grouped = True
        alone = item.get_closest_marker("faults") is not None and not needs_broker
        if not is_grouped and not alone:
            if item.path not in files:
                files[item.path] = item.path.relative_to(config.rootpath).as_posix()
            group = "kafka" if needs_broker else files[item.path]
            item.add_marker(pytest.mark.xdist_group(group))
        if needs_broker:
            item.add_marker(pytest.mark.kafka)
        if (
            "kafka" in getattr(item, "fixturenames", ())
            and item.get_closest_marker("timeout") is None
        ):
            item.add_marker(pytest.mark.timeout(JVMS_S))
    items.sort(key=_rank)


def pytest_collection_finish(session: pytest.Session) -> None:
    """The tests of the suite live until its end: without them a collection of garbage takes 10 ms
    instead of 400.

    Not in short runs: what is frozen is nobody's referrer, and hypothesis, which looks at those, is
    imported later there.
    """
    if len(session.items) >= MANY_TESTS:
        gc.collect()
        gc.freeze()


def leave_out_of_samples(items: list[pytest.Item]) -> None:
    """Mark the cases of a large table that are not in this run's sample as slow. All workers of a
    run draw the same sample.
    """
    for item in items:
        sample = item.get_closest_marker("sample")
        if sample is None:
            continue
        drawn = zlib.crc32(f"{SAMPLE_SEED} {item.nodeid}".encode()) / 2**32
        if drawn >= sample.args[0]:
            item.add_marker(pytest.mark.slow)


def pytest_report_header() -> str:
    return f"seed of the samples: EMBEDLOG_SAMPLES={SAMPLE_SEED}"


def _rank(item: pytest.Item) -> int:
    """The largest groups come first, so that no worker begins one when the others have finished."""
    mark = item.get_closest_marker("xdist_group")
    group = "" if mark is None else str(mark.args[0])
    return next((rank for rank, first in enumerate(FIRST) if group.startswith(first)), len(FIRST))


# ---- chance ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A seed, new in every run; EMBEDLOG_SEED repeats one. Printed, so a failure's report holds
    it.
    """
    given = os.environ.get("EMBEDLOG_SEED")
    number = int(given) if given else random.SystemRandom().getrandbits(32)
    print(f"seed of {request.node.name}: EMBEDLOG_SEED={number}")
    return number


@pytest.fixture
def campaign_seed(testrun_uid: str) -> int:
    """One seed for all pieces of an experiment, in whichever worker they run; EMBEDLOG_SEED repeats
    one.
    """
    given = os.environ.get("EMBEDLOG_SEED")
    number = int(given) if given else zlib.crc32(testrun_uid.encode())
    print(f"seed of this run: EMBEDLOG_SEED={number}")
    return number


@pytest.fixture
def rng(seed: int, request: pytest.FixtureRequest) -> random.Random:
    """A random source of this test's own, so that tests do not depend on their order."""
    return random.Random(seed ^ zlib.crc32(request.node.name.encode()))


# ---- leaks -----------------------------------------------------------------------------------------------------------

AFTER_MULTIPROCESSINGS_OWN = -200  # it removes its temporary directory at -100
_BASELINE = pytest.StashKey[leaks.Snapshot]()


@pytest.fixture(scope="session", autouse=True)
def _own_temporary_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A temporary directory of this process and its children alone: a test created every file that
    remains there.
    """
    tmp_path_factory.getbasetemp()  # stays in the real one
    own = tempfile.mkdtemp(prefix="embedlog-tests-")
    os.chmod(own, 0o1777)  # as /tmp: some tests run as other users
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", own)
        patch.setattr(tempfile, "tempdir", own)
        yield
    util.Finalize(
        None,
        shutil.rmtree,
        args=[own],
        kwargs={"ignore_errors": True},
        exitpriority=AFTER_MULTIPROCESSINGS_OWN,
    )


@pytest.fixture(autouse=True)
def _leaks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves descriptors, file mappings, threads or temporary files
    (`tests.support.leaks`).

    Set up before the other fixtures of a test and torn down after them. A failed test is not
    checked: its traceback references its open objects. The marker `may_leak("reason")` excludes a
    test.
    """
    failed = request.session.testsfailed
    before = request.node.stash[_BASELINE] = leaks.Snapshot()
    yield
    excused = (
        request.session.testsfailed > failed
        or request.node.get_closest_marker("may_leak") is not None
    )
    left = [] if excused else leaks.left_since(before)
    if left:
        pytest.fail("left open by this test:\n  " + "\n  ".join(left), pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Iterator[Any]:
    """Resources that a fixture of a wider scope opens during a test belong to the fixture."""
    item = getattr(request, "_pyfuncitem", None)
    baseline = (
        None if fixturedef.scope == "function" or item is None else item.stash.get(_BASELINE, None)
    )
    if baseline is None:
        return (yield)
    before = leaks.Snapshot()
    try:
        return (yield)
    finally:
        baseline.granted(before, leaks.Snapshot())


# ---- a log -----------------------------------------------------------------------------------------------------------

INTERNAL_PARTITIONS = {
    name: getattr(LogConfig, name)
    for name in ("offsets_topic_num_partitions", "transaction_state_log_num_partitions")
}
FEW_PARTITIONS = 4


@pytest.fixture(scope="session", autouse=True)
def _small_internal_topics() -> Iterator[None]:
    """Logs of this process have few partitions of internal topics, unless a test sets their number.

    The files of the usual 50 would take most of the time of a short test with a group or a
    transaction: in a set of three directories those of 300 partitions are made.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in INTERNAL_PARTITIONS:
            patch.setattr(LogConfig, name, FEW_PARTITIONS)
        yield


@pytest.fixture
def usual_internal_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Internal topics as without `_small_internal_topics`: 50 partitions."""
    for name, count in INTERNAL_PARTITIONS.items():
        monkeypatch.setattr(LogConfig, name, count)


@pytest.fixture
def until_end() -> Iterator[contextlib.ExitStack]:
    """Takes resources that a test opens without `with`: they are closed when the test ends."""
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a test's log."""
    return tmp_path / "log"


@pytest.fixture
def other(log: embedlog.Log) -> Iterator[embedlog.Log]:
    """The directory of the test's own `log`, opened once more: to the locks another process."""
    with embedlog.open(log.path, config=QUIET) as opened:
        yield opened


@pytest.fixture
def groups(log: embedlog.Log) -> Groups:
    return log._engine.groups


# ---- directories of a real Kafka -------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden directories, unpacked and read only (`golden_copy` is a writable copy)."""
    target = tmp_path_factory.mktemp("golden")
    for name in ("golden.tar.xz", "golden-4.4.0.tar.xz", "golden-3.9.1.tar.xz"):
        with tarfile.open(DATA / name) as archive:
            archive.extractall(target, filter="data")
    return target


@pytest.fixture
def golden_copy(golden: Path, tmp_path: Path) -> Callable[[str], Path]:
    """`golden_copy("clean")`: a fresh, writable copy of one of the golden log directories."""

    def copy(name: str) -> Path:
        target: Path = tmp_path / f"golden-{name}"
        shutil.copytree(golden / name / "log", target)
        return target

    return copy


@pytest.fixture(scope="session")
def golden_expected(golden: Path) -> Callable[[str, str], list[dict[str, object]]]:
    """`golden_expected("clean", "corners")`: the records of that topic as a real client read them,
    one dict each.
    """

    def expected(name: str, topic: str) -> list[dict[str, object]]:
        lines = (golden / name / "expected" / f"{topic}.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    return expected


# ---- a real Kafka ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def kafka() -> None:
    """Skips without a real Kafka, with one line that names the missing tool."""
    try:
        oracle.class_path()
        oracle.class_path(oracle.KAFKA_VERSION)
    except oracle.OracleUnavailable as missing:
        pytest.skip(str(missing))
    if importlib.util.find_spec("confluent_kafka") is None:
        pytest.skip("no confluent-kafka: pip install 'embedlog[test]'")


@pytest.fixture(scope="session")
def dump_log_verify(kafka: None) -> Callable[..., int]:
    """`dump_log_verify(directory)`: Kafka's own dump-log finds nothing wrong in a directory that
    was closed cleanly.
    """
    return oracle.verify


@pytest.fixture(scope="session")
def broker(kafka: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[oracle.Broker]:
    """The one broker of the run, started. A test that stops it starts it again."""
    soon = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 500}
    with oracle.Broker(tmp_path_factory.mktemp("broker") / "log", soon) as running:
        yield running


# ---- Spark -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The one Spark session of the run, local[2]; skips where Spark or Java are missing."""
    directory = tmp_path_factory.mktemp("spark")
    with session.started("local[2]", directory) as running:
        yield running


# ---- faults ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Victims: processes that run tasks, stop at chosen calls and are killed."""
    with Nursery() as running:
        yield running


@pytest.hookimpl(tryfirst=True)  # before the fixtures of the test close what they opened
def pytest_runtest_teardown() -> None:
    """No fault of one test, which may have failed amid it, strikes the next one."""
    if system.TEST_BUILD:
        system.fault_off()


@pytest.fixture(autouse=True)
def _no_victims_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """No process of one test exists in the next one."""
    nursery = request.getfixturevalue("nursery") if "nursery" in request.fixturenames else None
    yield
    if nursery is not None:
        nursery.end()
