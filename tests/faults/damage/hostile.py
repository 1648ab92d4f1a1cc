"""Hostile directories: names, types, sizes, contents and numbers are changed, then the log is used.

H1  a use ends in a short time and in little memory, with records or with an error of embedlog: no
signal, no other exception H2  no file outside of the directory is created, changed or removed H3  a
record at the place of an original one has its value, unless the change made a new one with a valid
checksum
"""

from __future__ import annotations

import json
import logging
import os
import random
import re
import resource
import shutil
import socket
import stat
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xxhash

import embedlog
from embedlog import EmbedlogError
from embedlog.storage import file_names
from tests.faults.harness.processes import SANITIZED
from tests.faults.harness.tasks import Stage, task
from tests.support.batches import crc32c

ROOM_BYTES = 6 << 30
SECONDS_CPU = 40
TAKEN_MAX = 5_000
GROWN_MAX_KB = 700 << 10  # of resident memory
CONFIG = {"housekeeping": False, "lock.timeout.ms": 300}
Rows = dict[tuple[str, int, int], bytes | None]
Act = Callable[[random.Random, Path], str]


# ---- the use -------------------------------------------------------------------------------------


@task
def build_for_strangers(_: Stage, path: str, killed: bool) -> None:
    """A little of everything: segments, a compacted topic, a transaction, a group."""
    few = {"offsets.topic.num.partitions": 2, "transaction.state.log.num.partitions": 2}
    log = embedlog.open(path, config=CONFIG | few)
    log.create_topic("t", 2, config={"segment.bytes": 700, "index.interval.bytes": 100})
    log.create_topic("c", 1, config={"cleanup.policy": "compact"})
    with log.producer(transactional_id="x") as producer:
        producer.init_transactions()
        for commit in (True, False):
            producer.begin_transaction()
            for number in range(8):
                producer.send("t", b"in a transaction %d" % number, partition=number % 2)
            producer.commit_transaction() if commit else producer.abort_transaction()
    with log.producer(linger_ms=0) as producer:
        for number in range(40):
            producer.send("t", b"value %d" % number, b"key", partition=number % 2).result(10)
        producer.send("c", b"value", b"key").result(10)
    with log.consumer("t", group_id="g", auto_offset_reset="earliest") as consumer:
        consumer.poll(5)
        consumer.commit()
    log.flush()
    if killed:
        os.kill(os.getpid(), 9)
    log.close()


@task
def use_of_a_stranger(_: Stage, path: str, read_only: bool) -> tuple[str, Rows, int]:
    """The outcome, the rows, and the growth of this process in kB. Any other exception is a
    finding.
    """
    logging.disable(logging.CRITICAL)
    foreign: list[str] = []
    threading.excepthook = lambda given: foreign.append(
        f"{given.exc_type.__name__} in a thread: {given.exc_value}"
    )
    if not SANITIZED:  # its shadow of all addresses is larger
        resource.setrlimit(resource.RLIMIT_AS, (ROOM_BYTES, ROOM_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS_CPU, SECONDS_CPU))
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rows = {}
    end = "right"
    try:
        with embedlog.open(path, read_only=read_only, config=CONFIG) as log:
            end = _used(log, rows, read_only)
    except EmbedlogError as problem:
        str(problem)
        end = type(problem).__name__
    if foreign:
        raise AssertionError(foreign[0])
    return end, rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb


def _used(log: embedlog.Log, rows: Rows, read_only: bool) -> str:
    """Every method that reads files; the first error of the library is the result, and the other
    methods run all the same.
    """
    ends = []
    for step in _steps(log, rows, read_only):
        try:
            step()
        except EmbedlogError as problem:
            ends.append(type(problem).__name__)
    return ends[0] if ends else "right"


def _steps(log: embedlog.Log, rows: Rows, read_only: bool) -> list[Callable[[], Any]]:
    names = log.topics(include_internal=True)
    steps: list[Callable[[], Any]] = []
    for name in names:
        steps += [
            lambda name=name: log.describe_topic(name),
            lambda name=name: _read(log, name, rows),
        ]
    steps += [lambda: [log.describe_group(name) for name in log.groups()]]
    if not read_only:
        steps += [lambda name=name: _send(log, name) for name in log.topics()]
        steps += [log.housekeep, log.flush]
    return steps


def _read(log: embedlog.Log, name: str, rows: Rows) -> None:
    for record, _ in zip(log.scan(name).records(), range(TAKEN_MAX), strict=False):
        rows[name, record.partition, record.offset] = record.value


def _send(log: embedlog.Log, name: str) -> None:
    with log.producer(delivery_timeout_ms=1000, request_timeout_ms=500, linger_ms=0) as producer:
        error = producer.send(name, b"new", b"key").exception(20)
    if error is not None:
        raise error


# ---- the changes ---------------------------------------------------------------------------------

GIANTS = (1 << 30, (1 << 31) + 5, 40 << 30, 1 << 42)
# as a number of partitions it is legal: each one is made, which takes long for so many
LEGAL = 2**15
PARTITIONS_LEGAL = 2**11
NUMBERS = (0, 1, -1, LEGAL, 2**31 - 1, 2**31, -(2**31), 2**32, 2**62, 2**63 - 1, -(2**63))
NAMES = (
    "9" * 20 + ".log",
    f"{2**63 - 1:020d}.log",
    f"{2**31:020d}.log",
    f"{1:020d}.index",
    f"{3:020d}.snapshot",
    f"{0:020d}.log.deleted",
    f"{0:020d}.log.swap",
    f"{7:020d}.log.swap",
    f"{0:020d}.log.cleaned",
    f"{0:020d}.txnindex",
    "embedlog.digests-²",
    "embedlog.poison-²",
    "embedlog.poison-1",
    f"embedlog.cut-{0:020d}-1",
    "embedlog.digests-" + "9" * 30,
    "embedlog.dirty",
    "embedlog.backup",
    "embedlog.page-new",
    "embedlog.topics.tmp",
    "meta.properties.0123456789abcdef.tmp",
    "\n",
    "٣.log",
    "x" * 255,
    "embedlog.",
    ".log",
    f"{0:020d}.log ",
    ".kafka_cleanshutdown",
    "cleaner-offset-checkpoint",
)
PARTITIONS = (
    "t-2",
    "t-7",
    "t-1000000",
    "t-2147483647",
    "t-2147483648",
    "t-99999999999999999999",
    "t--1",
    "t-٣",
    "t-00",
    "t",
    "-0",
    "..-0",
    f"t-0.{'a' * 32}-delete",
    f"t-0.{'a' * 32}-future",
    f"t-0.{'a' * 32}-stray",
    "__cluster_metadata-0",
    "__consumer_offsets-0",
    "__transaction_state-0",
    "x" * 249 + "-0",
    "t.0-0",
    "T-0",
    "new-3",
    "remote-log-index-cache",
)


def _files(log: Path) -> list[Path]:
    return sorted(path for path in log.rglob("*") if path.is_file() and not path.is_symlink())


def _some(rng: random.Random, log: Path) -> Path:
    """A file; of the fifty partitions of the log's own topics seldom one."""
    found = _files(log)
    own = [path for path in found if not path.parent.name.startswith("__") or rng.random() < 0.02]
    return rng.choice(own or found)


def _is_giant(path: Path) -> bool:
    """Too large to be copied or read by a test: an earlier change made it so."""
    return path.stat().st_size > 1 << 22


def _told(log: Path, path: Path) -> str:
    return ascii(str(path.relative_to(log)))


def rename(rng: random.Random, log: Path) -> str:
    path = _some(rng, log)
    target = path.with_name(rng.choice(NAMES))
    if os.path.lexists(target) or _is_giant(path):
        return "nothing"
    copied = rng.random() < 0.5
    shutil.copy(path, target) if copied else path.rename(target)
    return f"{_told(log, path)} {'copied' if copied else 'renamed'} to {_told(log, target)}"


def swap_names(rng: random.Random, log: Path) -> str:
    one = _some(rng, log)
    other = _some(rng, log)
    if _is_giant(one) or _is_giant(other):
        return "nothing"
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)
    return f"{_told(log, one)} and {_told(log, other)} change places"


def remove(rng: random.Random, log: Path) -> str:
    path = _some(rng, log)
    path.unlink()
    return f"{_told(log, path)} removed"


def partition_name(rng: random.Random, log: Path) -> str:
    source = rng.choice(
        sorted(path for path in log.iterdir() if path.is_dir() and not path.is_symlink())
    )
    target = log / rng.choice(PARTITIONS)
    if os.path.lexists(target) or any(_is_giant(path) for path in _files(source)):
        return "nothing"
    shutil.copytree(source, target, symlinks=True, ignore_dangling_symlinks=True, ignore=_irregular)
    if rng.random() < 0.3:
        shutil.rmtree(source)
    return f"{source.name} as {target.name!a}"


def _irregular(workspace: str, names: list[str]) -> list[str]:
    return [
        name for name in names if not stat.S_ISREG(os.lstat(os.path.join(workspace, name)).st_mode)
    ]


def kind(rng: random.Random, log: Path) -> str:
    """Something else in the place of a file, or of a name that is made by and by."""
    path = (
        _some(rng, log)
        if rng.random() < 0.8
        else rng.choice([log, log / "t-0"]) / rng.choice(NAMES)
    )
    name, make = rng.choice(KINDS)
    if path.is_dir() or not path.parent.is_dir() or path.parent.is_symlink():
        return "nothing"
    path.unlink(missing_ok=True)
    try:
        make(path, log.parent)
    except (PermissionError, OSError):  # no devices here, or too long a name for a socket
        return "nothing"
    return f"{_told(log, path)} becomes {name}"


def partition_kind(rng: random.Random, log: Path) -> str:
    path = rng.choice(
        sorted(path for path in log.iterdir() if path.is_dir() and not path.is_symlink())
    )
    name, make = rng.choice(KINDS)
    path.rename(log.parent / "elsewhere" / f"moved-{rng.random()}")
    try:
        make(path, log.parent)
    except OSError:
        return "nothing"
    return f"the partition {path.name} becomes {name}"


def _link(target: str) -> Callable[[Path, Path], None]:
    return lambda path, workspace: path.symlink_to(target.format(workspace=workspace))


def _socket(path: Path, workspace: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


KINDS: list[tuple[str, Callable[[Path, Path], object]]] = [
    ("a link to a file", _link("{workspace}/victim")),
    ("a link to a directory", _link("{workspace}/elsewhere")),
    ("a dangling link", _link("{workspace}/made")),
    ("a link to itself", lambda path, workspace: path.symlink_to(path)),
    ("a link to /dev/zero", _link("/dev/zero")),
    ("a pipe", lambda path, workspace: os.mkfifo(path)),
    ("a directory", lambda path, workspace: path.mkdir()),
    ("a full directory", lambda path, workspace: (path / "below").mkdir(parents=True)),
    ("a socket", _socket),
    ("a device", lambda path, workspace: os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))),
]


def size(rng: random.Random, log: Path) -> str:
    path = _some(rng, log)
    before = path.stat().st_size
    after = rng.choice([0, 1, before // 2, max(0, before - 1), before + 1, before + 4096, *GIANTS])
    try:
        os.truncate(path, after)
    except OSError:  # beyond what the file system has
        return "nothing"
    return f"{_told(log, path)} from {before} to {after} bytes"


def bytes_of(rng: random.Random, log: Path) -> str:
    path = _some(rng, log)
    data = bytearray() if _is_giant(path) else bytearray(path.read_bytes())
    if not data:
        return "nothing"
    for _ in range(rng.choice([1, 1, 4, 30])):
        at = rng.randrange(len(data))
        data[at : at + rng.choice([1, 1, 8])] = rng.choice(
            [*[rng.randbytes(1)] * 4, b"\0", b"\xff", b"\x7f", b"9", b"\n"]
        )
    path.write_bytes(data)
    return f"bytes of {_told(log, path)}"


def garbage(rng: random.Random, log: Path) -> str:
    path = _some(rng, log)
    path.write_bytes(
        rng.choice(
            [
                rng.randbytes(500),
                rng.randbytes(9),
                bytes(5000),
                b"0\n" * 100,
                b"[" * 100_000,
                b"9" * 10_000,
            ]
        )
    )
    return f"garbage in {_told(log, path)}"


def number_in_text(rng: random.Random, log: Path) -> str:
    texts = (".metadata", ".properties", ".topics")
    path = rng.choice(
        [each for each in _files(log) if each.suffix in texts or "checkpoint" in each.name]
    )
    text = "" if _is_giant(path) else path.read_bytes().decode(errors="replace")
    found = list(re.finditer(r"[0-9]+", text))
    if not found:
        return "nothing"
    match = rng.choice(found)
    word = rng.choice([*map(str, NUMBERS), "²", "1_0", "", "9" * 5000, "1e3", " 1", "0x1"])
    path.write_text(text[: match.start()] + word + text[match.end() :])
    return f"{_told(log, path)}: {match[0]} becomes {word[:30]!a}"


def signed_topics(rng: random.Random, log: Path) -> str:
    """The topics' file, changed with a valid checksum."""
    path = log / "embedlog.topics"
    if not path.is_file() or path.is_symlink() or _is_giant(path):
        return "nothing"
    try:
        document = json.loads(path.read_bytes())
        entry = document["topics"][rng.choice(sorted(document["topics"]))]
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return "nothing"
    if not isinstance(entry, dict):
        return "nothing"  # an earlier change of this case
    place = rng.choice([entry, entry, entry, document, document["topics"], entry.get("config", {})])
    key = rng.choice([*place, "only", "growing", "x\ud800", "t\n", "segment.bytes", "state"])
    value: Any = rng.choice(
        [
            *NUMBERS,
            None,
            [],
            {},
            "x",
            "\ud800",
            [0, 2**31 - 1],
            [5, 5],
            [-1],
            1.5,
            True,
            *STATES,
            {"a": {}},
        ]
    )
    if key in ("growing", "partitions") and value == LEGAL:
        value = PARTITIONS_LEGAL
    place[key] = value
    document.pop("checksum", None)
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
    document["checksum"] = "xxh3:" + xxhash.xxh3_64_hexdigest(canonical.encode())
    path.write_text(json.dumps(document))
    return f"signed topics: {key!a} is {value!a}"


STATES = ("creating", "live", "deleting")
FIELDS = (
    (0, ">q"),
    (8, ">i"),
    (12, ">i"),
    (21, ">h"),
    (23, ">i"),
    (27, ">q"),
    (35, ">q"),
    (43, ">q"),
    (51, ">h"),
    (53, ">i"),
)
FIELDS += ((57, ">i"),)


def signed_batch(rng: random.Random, log: Path) -> str:
    """A field of a batch, with the checksum that goes with it."""
    found = [
        path
        for path in _files(log)
        if path.suffix == file_names.LOG and 61 < path.stat().st_size < 1 << 22
    ]
    if not found:
        return "nothing"
    path = rng.choice(found)
    data = bytearray(path.read_bytes())
    starts = []
    at = 0
    while (
        at + 61 <= len(data)
        and (length := struct.unpack_from(">i", data, at + 8)[0]) >= 49
        and at + 12 + length <= len(data)
    ):
        starts.append(at)
        at += 12 + length
    if not starts:
        return "nothing"
    start = rng.choice(starts)
    (offset, shape) = rng.choice(FIELDS)
    length = struct.unpack_from(">i", data, start + 8)[0]
    bits = 8 * struct.calcsize(shape)
    number = rng.choice(
        [
            each
            for each in (*NUMBERS, rng.randrange(-5, 70))
            if -(2 ** (bits - 1)) <= each < 2 ** (bits - 1)
        ]
    )
    struct.pack_into(shape, data, start + offset, number)
    struct.pack_into(">I", data, start + 17, crc32c(bytes(data[start + 21 : start + 12 + length])))
    path.write_bytes(data)
    return f"{_told(log, path)}: batch at {start}, field at {offset} is {number}, signed"


ACTS: list[tuple[Act, bool]] = [  # whether records may be others afterwards
    (rename, True),
    (swap_names, True),
    (remove, False),
    (partition_name, True),
    (kind, False),
    (partition_kind, False),
    (size, False),
    (bytes_of, False),
    (garbage, False),
    (number_in_text, False),
    (signed_topics, True),
    (signed_batch, True),
]


def mutate(rng: random.Random, log: Path) -> tuple[str, bool]:
    """Change a directory once or a few times; the changes, and whether other records may be the
    right ones now.
    """
    acts = rng.choices(ACTS, k=rng.choice([1, 1, 1, 2, 3]))
    done = [(act(rng, log), others) for act, others in acts if log.is_dir()]
    return "; ".join(told for told, _ in done), any(others for _, others in done)


def outside(workspace: Path) -> dict[str, tuple[int, int, bytes | None]]:
    """Everything beside the log: type, time of change, content."""
    found = {}
    for path in sorted(
        each for each in workspace.rglob("*") if workspace / "log" not in (each, *each.parents)
    ):
        facts = path.lstat()
        data = (
            path.read_bytes() if stat.S_ISREG(facts.st_mode) and facts.st_size < 1 << 22 else None
        )
        found[str(path.relative_to(workspace))] = (facts.st_mode, facts.st_mtime_ns, data)
    return found
