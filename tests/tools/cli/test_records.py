"""Records in and out: `produce`, `consume`, `cat`, `tail`, `query`, with the formats of kcat and of
Kafka.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embedlog
from embedlog import Batch, Record
from embedlog.format.record_columns import BytesColumn, Decoded
from embedlog.tools.cli.line_writer import plain_lines
from embedlog.tools.cli.verbs.produce import read_chunks


def records(path: Path, topic: str = "events") -> list[Record[bytes, bytes]]:
    with embedlog.open(path, read_only=True) as log:
        return list(log.scan(topic).records())


def pairs(path: Path) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in records(path)]


# ---- produce -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "given", "expected"),
    [
        ((), b"a\n\nb", [(None, b"a"), (None, b""), (None, b"b")]),
        (("-Z",), b"a\n\nb\n", [(None, b"a"), (None, None), (None, b"b")]),
        (("-K", ":"), b"k:v\nw\n:x\n", [(b"k", b"v"), (None, b"w"), (b"", b"x")]),
        (("-K", ":", "-Z"), b"k:\n:x\n", [(b"k", None), (None, b"x")]),
        (("-K", "\\xff"), b"k\xffv\n", [(b"k", b"v")]),
        (("-k", "\udcff"), b"v\n", [(b"\xff", b"v")]),
        (("-D", "\\x00"), b"a\nb\0c\0", [(None, b"a\nb"), (None, b"c")]),
        (("-k", "key", "-c", "1"), b"a\nb\n", [(b"key", b"a")]),
        (("--property", "parse.key=true"), b"k\tv\n", [(b"k", b"v")]),
        (
            (
                "--property",
                "parse.key=true",
                "--property",
                "key.separator=:",
                "--property",
                "null.marker=-",
            ),
            b"k:-\n",
            [(b"k", None)],
        ),
        (("--property", "null.marker=N"), b"N\n", [(None, None)]),
        (("--sync", "-z", "gzip", "--acks", "-1"), b"a\n", [(None, b"a")]),
    ],
)
def test_lines_become_records(
    events: Callable[..., Any],
    tmp_path: Path,
    options: tuple[str, ...],
    given: bytes,
    expected: list[Any],
) -> None:
    outcome = events("produce", "-t", "events", *options, "--json", stdin=given)
    assert (outcome.status, json.loads(outcome.out)) == (
        0,
        {"topic": "events", "records": len(expected)},
    )
    assert pairs(tmp_path / "data") == expected


def test_headers_of_lines_and_of_all_records(events: Callable[..., Any], tmp_path: Path) -> None:
    """A name can have several values."""
    headers = ("-H", "all=1", "-H", "all=2")
    options = (*headers, "--property", "parse.headers=true", "--property", "parse.key=true")
    assert events("produce", "-t", "events", *options, stdin=b"a:x,b:\tk\tv\n").status == 0
    (found,) = records(tmp_path / "data")
    assert (found.key, found.value, found.headers) == (
        b"k",
        b"v",
        (("all", b"1"), ("all", b"2"), ("a", b"x"), ("b", b"")),
    )


@pytest.mark.parametrize("good", [0, 1, 5000])
@pytest.mark.parametrize("chunk", [7, 1 << 20], ids=["many reads", "one read"])
def test_the_lines_before_a_bad_line_are_written(
    events: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    chunk: int,
    good: int,
) -> None:
    """As by Kafka's producer; the number of written lines is the place to continue from."""
    monkeypatch.setattr("embedlog.tools.cli.verbs.produce.CHUNK_BYTES", chunk)
    lines = b"".join(b"k\tv%d\n" % number for number in range(good))
    outcome = events(
        "produce",
        "-t",
        "events",
        "--property",
        "parse.key=true",
        stdin=lines + b"broken\nk\tafter\n",
    )
    assert (outcome.status, outcome.out) == (2, "")
    number = good + 1
    assert (
        outcome.err
        == f"embedlog: line {number}: no key separator b'\\t'; lines before it that are written: "
        f"{good}\n"
    )
    assert pairs(tmp_path / "data") == [(b"k", b"v%d" % number) for number in range(good)]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (b"x", "headers.delimiter"),
        (b"no name\tk\tv", "headers.key.separator"),
        (b"a:x\tv", "key separator"),
    ],
)
def test_a_bad_line_is_refused_with_what_it_lacks(
    events: Callable[..., Any], tmp_path: Path, line: bytes, name: str
) -> None:
    options = ("--property", "parse.headers=true", "--property", "parse.key=true")
    outcome = events("produce", "-t", "events", *options, stdin=b"a:x\tk\tv\n" + line + b"\n")
    assert outcome.status == 2
    assert f"line 2: no {name} " in outcome.err
    assert pairs(tmp_path / "data") == [(b"k", b"v")]


def test_files_are_one_record_each_or_lines(events: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"a\nb\n")
    assert events("produce", "-t", "events", str(file)).status == 0
    assert events("produce", "-t", "events", "-l", str(file)).status == 0
    assert pairs(tmp_path / "data") == [(None, b"a\nb\n"), (None, b"a"), (None, b"b")]


def test_failed_records_make_the_status_1(events: Callable[..., Any]) -> None:
    events(
        "topics",
        "--create",
        "--topic",
        "compacted",
        "--partitions",
        "1",
        "--config",
        "cleanup.policy=compact",
    )
    outcome = events("produce", "-t", "compacted", stdin=b"no key\n")
    assert (outcome.status, outcome.err.count("\n")) == (1, 1)
    assert events("produce", "-t", "absent", stdin=b"x\n").status == 1
    assert events("produce", "-t", "events", "--property", "nonsense=1", stdin=b"x\n").status == 2
    assert events("produce", "-t", "events", "-X", "nonsense=1", stdin=b"x\n").status == 2


def test_lines_are_split_over_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: random.Random
) -> None:
    text = b"".join(rng.choice([b"a", b"bc", b"--", b"-"]) for _ in range(2000))
    (tmp_path / "lines").write_bytes(text)
    monkeypatch.setattr("embedlog.tools.cli.verbs.produce.CHUNK_BYTES", 7)
    with (tmp_path / "lines").open("rb") as file:
        found = [line for lines in read_chunks(file, b"--") for line in lines]
    expected = text.split(b"--")
    assert found == (expected if expected[-1] else expected[:-1])


def seconds_of_line(path: Path, size: int) -> float:
    """The processor time of reading one line of this size in 256 pieces for each 4 MiB."""
    path.write_bytes(b"x" * size + b"\nlast")
    start_s = time.process_time()
    with path.open("rb") as file:
        lines = [line for group in read_chunks(file, None) for line in group]
    assert [len(line) for line in lines] == [size, 4]
    return time.process_time() - start_s


def test_a_long_line_takes_time_in_proportion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece copied the whole line: 64 times the time for a line of 8 times the size."""
    monkeypatch.setattr("embedlog.tools.cli.verbs.produce.CHUNK_BYTES", 1 << 14)
    short_s = min(seconds_of_line(tmp_path / "short", 4 << 20) for _ in range(3))
    long_s = min(seconds_of_line(tmp_path / "long", 32 << 20) for _ in range(2))
    assert long_s < 24 * max(short_s, 0.005)


# ---- consume -------------------------------------------------------------------------------------


@pytest.fixture
def filled(events: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    with embedlog.open(tmp_path / "data") as log, log.producer() as producer:
        for number in range(10):
            value = None if number == 3 else b"v%d" % number
            producer.send(
                "events",
                value,
                key=b"k%d" % number,
                timestamp_ms=1000 + number,
                headers=[("h", b"%d" % number)],
            )
    return events


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("-c", "2"), "v0\nv1\n"),
        (("-o", "2", "-c", "2"), "v2\nnull\n"),
        (("-o", "2", "-c", "2", "-Z"), "v2\nNULL\n"),
        (("-o", "2", "-c", "2", "--property", "null.literal="), "v2\n\n"),
        (("-o", "-2"), "v8\nv9\n"),
        (("-o", "-200", "-c", "1"), "v0\n"),
        (("-o", "end"), ""),
        (("-o", "@1008"), "v8\nv9\n"),
        (("-o", "s@1004", "-o", "e@1006"), "v4\nv5\n"),
        (("-o", "8", "-D", "\\r\\n"), "v8\r\nv9\r\n"),
        (("-o", "8", "-K", "="), "k8=v8\nk9=v9\n"),
        (
            ("-o", "9", "-f", "%t|%p|%o|%k|%K|%s|%S|%T|%h|%%\\t\\x41\\n"),
            "events|0|9|k9|2|v9|2|1009|h=9|%\tA\n",
        ),
        (("-o", "3", "-c", "1", "-f", "%s,%S"), ",-1"),
        (
            ("-o", "9", "--property", "print.key=true", "--property", "print.offset=true"),
            "Offset:9\tk9\tv9\n",
        ),
        (
            (
                "-o",
                "9",
                *(
                    f"--property=print.{name}=true"
                    for name in ("timestamp", "partition", "headers", "epoch", "delivery")
                ),
            ),
            "CreateTime:1009\tPartition:0\tDelivery:NOT_PRESENT\tEpoch:0\th:9\tv9\n",
        ),
    ],
)
def test_records_are_printed(
    filled: Callable[..., Any], options: tuple[str, ...], expected: str
) -> None:
    outcome = filled("cat", "events", *options)
    assert outcome.out == expected
    assert (outcome.status, outcome.err == "") == ((0, True) if expected else (1, False))


def test_the_envelope_is_that_of_kcat(filled: Callable[..., Any], tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "data") as log, log.producer() as producer:
        producer.send("events", b"\xff", timestamp_ms=5)
    lines = [json.loads(line) for line in filled("cat", "events", "-o", "9", "-J").out.splitlines()]
    common = {"topic": "events", "partition": 0, "tstype": "create"}
    assert lines == [
        {**common, "offset": 9, "ts": 1009, "headers": ["h", "9"], "key": "k9", "payload": "v9"},
        {
            **common,
            "offset": 10,
            "ts": 5,
            "headers": [],
            "key": None,
            "payload": {"base64": "/w=="},
        },
    ]
    assert (
        filled("cat", "events", "-o", "9", "--json").out
        == filled("cat", "events", "-o", "9", "-J").out
    )


def test_consume_begins_at_the_end_and_tail_before_it(filled: Callable[..., Any]) -> None:
    assert filled("consume", "--topic", "events", "--timeout-ms", "0")[:2] == (1, "")
    assert (
        filled("consume", "--topic", "events", "--from-beginning", "--max-messages", "1").out
        == "v0\n"
    )
    assert filled("tail", "events", "-n", "1", "--timeout-ms", "0").out == "v9\n"
    assert filled("cat", "--include", "ev.*", "-c", "1").out == "v0\n"


def test_a_group_commits_what_it_has_written(filled: Callable[..., Any], tmp_path: Path) -> None:
    first = filled("consume", "-t", "events", "-G", "readers", "--from-beginning", "-c", "4")
    assert (first.status, first.out) == (0, "v0\nv1\nv2\nnull\n")
    with embedlog.open(tmp_path / "data", read_only=True) as log:
        assert [offset.offset for offset in log.group_offsets("readers").values()] == [4]
    assert filled("consume", "-t", "events", "-G", "readers", "-c", "1").out == "v4\n"


def test_an_aborted_transaction_is_hidden_from_committed_readers(
    events: Callable[..., Any], tmp_path: Path
) -> None:
    with embedlog.open(tmp_path / "data") as log, log.producer(transactional_id="t") as producer:
        producer.init_transactions()
        for value, end in (
            (b"no", producer.abort_transaction),
            (b"yes", producer.commit_transaction),
        ):
            producer.begin_transaction()
            producer.send("events", value).result()
            end()
    assert events("cat", "events").out == "no\nyes\n"
    assert events("cat", "events", "--isolation-level", "read_committed").out == "yes\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("cat",),
        ("cat", "events", "--include", "e.*"),
        ("cat", "events", "-o", "nonsense"),
        ("cat", "events", "-o", "@soon"),
        ("cat", "events", "-f", "%x"),
        ("cat", "events", "-f", "\\q"),
        ("cat", "events", "-f", "a\\"),
        ("cat", "events", "-o", "9" * 5000),
        ("cat", "events", "-o", "@" + "9" * 5000),
        ("query", "-t", "events:" + "9" * 5000 + ":1"),
        ("cat", "events", "-p", "a"),
        ("cat", "events", "--property", "x=1"),
        ("cat", "events", "--property", "x"),
        ("cat", "events", "-G", "g", "-o", "1"),
        ("cat", "--include", "("),
        ("query", "-t", "events"),
    ],
)
def test_a_wrong_argument_is_refused(
    events: Callable[..., Any], arguments: tuple[str, ...]
) -> None:
    outcome = events(*arguments)
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.startswith("embedlog: ")
    assert outcome.err.count("\n") == 1


def test_an_absent_topic_or_partition_is_not_found(events: Callable[..., Any]) -> None:
    for arguments in (("cat", "absent"), ("cat", "events", "-p", "7"), ("cat", "--include", "x")):
        assert events(*arguments).status == 1, arguments


@pytest.mark.parametrize("verb", ["cat", "consume", "tail", "grep"])
def test_an_absent_partition_is_an_error(filled: Callable[..., Any], verb: str) -> None:
    """A list with one absent partition, also beside present ones: nothing is printed."""
    refused = filled(verb, *(["."] if verb == "grep" else []), "events", "-p", "0,5")
    assert (refused.status, refused.out) == (2 if verb == "grep" else 1, "")
    assert "expected 0 to 0, found 5" in refused.err


def test_query_prints_offsets_of_times(filled: Callable[..., Any]) -> None:
    found = filled("query", "-t", "events:0:1004", "-t", "events:0:9999")
    assert (found.status, found.out) == (0, "events [0] offset 4\nevents [0] offset -1\n")
    assert json.loads(filled("query", "-t", "events:0:1004", "--json").out) == [
        {"topic": "events", "partition": 0, "offset": 4, "timestamp": 1004}
    ]
    assert filled("query", "-t", "events:0:9999").status == 1


# ---- lines ---------------------------------------------------------------------------------------


def test_plain_lines_equal_those_of_the_records(rng: random.Random) -> None:
    for _ in range(200):
        fixed = rng.choice([None, 0, 5])
        values = [
            rng.randbytes(rng.randrange(9) if fixed is None else fixed)
            for _ in range(rng.randrange(1, 20))
        ]
        count = len(values)
        nothing = np.zeros(count, dtype=np.int64)
        batch = Batch(
            "t",
            0,
            Decoded(count, nothing, nothing, None, None, None, BytesColumn.of([*values]), None),
        )
        first = rng.randrange(count)
        last = rng.randrange(first, count + 1)
        delimiter = rng.choice([b"\n", b"\r\n", b""])
        expected = b"".join(value + delimiter for value in values[first:last])
        assert bytes(plain_lines(batch, first, last, delimiter)) == expected


def test_a_bounded_reading_of_several_partitions_begins_and_ends_where_it_is_told(
    events: Callable[..., Any], tmp_path: Path
) -> None:
    with embedlog.open(tmp_path / "data") as log, log.producer() as producer:
        log.create_topic("wide", 3)
        for number in range(60):
            producer.send("wide", b"%d" % number if number % 5 else None, partition=number % 2)
    whole = [
        None if number % 5 == 0 else b"%d" % number
        for part in (0, 1)
        for number in range(part, 60, 2)
    ]
    expected = [b"NULL" if value is None else value for value in whole]
    assert events("cat", "wide", "-Z").out.encode().splitlines() == expected
    assert (
        events("consume", "wide", "-e", "-o", "-4", "-Z").out.encode().splitlines()
        == expected[26:30] + expected[56:]
    )
    assert events("cat", "wide", "-c", "33", "-Z").out.encode().splitlines() == expected[:33]
    assert events("cat", "wide", "-p", "1", "-Z").out.encode().splitlines() == expected[30:]
    assert events("cat", "wide", "-p", "2").status == 1
    assert (
        events("cat", "wide", "-X", "fetch.max.bytes=2000", "-Z", "-p", "1")
        .out.encode()
        .splitlines()
        == expected[30:]
    )


# ---- ends of lines, null headers, positions, and why nothing is printed --------------------------


def test_a_return_before_the_end_of_a_line_is_no_part_of_the_record(
    events: Callable[..., Any], tmp_path: Path
) -> None:
    assert events("produce", "-t", "events", stdin=b"a\r\nb\r\n\r\nc\rd\r\nlast\r").status == 0
    assert values(tmp_path) == [b"a", b"b", b"", b"c\rd", b"last"]
    file = tmp_path / "lines"
    file.write_bytes(b"e\r\nf")
    assert events("produce", "-t", "events", "-l", str(file)).status == 0
    assert values(tmp_path)[5:] == [b"e", b"f"]


def test_a_given_delimiter_keeps_each_byte_as_kcat_does(
    events: Callable[..., Any], tmp_path: Path
) -> None:
    assert events("produce", "-t", "events", "-D", "\\n", stdin=b"a\r\nb").status == 0
    assert values(tmp_path) == [b"a\r", b"b"]


def values(path: Path) -> list[bytes | None]:
    with embedlog.open(path / "data", read_only=True) as log:
        return [record.value for record in log.scan("events").records()]


def test_a_headers_field_that_is_the_marker_means_no_headers(events: Callable[..., Any]) -> None:
    layout = [
        word
        for name in ("parse.key=true", "parse.headers=true", "null.marker=NULL")
        for word in ("--property", name)
    ]
    assert (
        events(
            "produce",
            "-t",
            "events",
            *layout,
            stdin=b"a:1\tk1\tv1\nNULL\tk2\tNULL\na:NULL\tk3\tv\n",
        ).status
        == 0
    )
    assert (
        events("cat", "events", "-f", "%k %S [%h]\\n").out
        == "k1 2 [a=1]\nk2 -1 []\nk3 1 [a=NULL]\n"
    )
    refused = events("produce", "-t", "events", *layout, stdin=b"NULL:1\tk\tv\n")
    assert refused.status == 2
    assert (
        "line 1: the key of a header is the null.marker b'NULL': a header needs a key"
        in refused.err
    )


def test_stored_is_the_committed_offset_of_a_group(
    filled: Callable[..., Any], tmp_path: Path
) -> None:
    with embedlog.open(tmp_path / "data") as log:
        log.reset_group_offsets("readers", to={embedlog.TopicPartition("events", 0): 2})
    every = filled("cat", "events").out.splitlines()
    stored = filled("cat", "events", "-o", "stored", "-X", "group.id=readers")
    assert (stored.status, stored.out.splitlines(), stored.err) == (0, every[2:], "")
    absent = filled("cat", "events", "-o", "stored", "-X", "group.id=none")
    assert (absent.status, absent.out.splitlines()) == (0, every)
    nobody = filled("cat", "events", "-o", "stored")
    assert (nobody.status, nobody.out.splitlines()) == (0, every)
    assert "-o stored: no group is given (-X group.id=NAME)" in nobody.err
    member = filled("consume", "-t", "events", "-G", "readers", "-o", "stored", "-e")
    assert member.out.splitlines() == every[2:]


WITHOUT_RECORDS = [
    (
        ["cat", "events", "-o", "99999999"],
        "no record at or after offset 99999999: events-0 has the offsets 0 to ",
    ),
    (
        ["consume", "-t", "events", "--timeout-ms", "50"],
        "no record arrived within 50 ms (--timeout-ms)",
    ),
    (
        ["consume", "-t", "events", "-e"],
        "events: no record after the present end; --from-beginning prints those before it",
    ),
    (
        ["cat", "events", "-o", "end"],
        "events: no record at the given positions; without -o all are printed",
    ),
    (
        ["consume", "-t", "events", "-G", "late", "--timeout-ms", "50"],
        "no record arrived within 50 ms (--timeout-ms)",
    ),
]


@pytest.mark.parametrize(("arguments", "reason"), WITHOUT_RECORDS)
def test_a_reading_that_prints_nothing_says_why(
    filled: Callable[..., Any], arguments: list[str], reason: str
) -> None:
    found = filled(*arguments)
    assert (found.status, found.out) == (1, "")
    assert found.err.startswith(f"embedlog: {reason}")


def test_an_empty_topic_is_said_to_be_empty(events: Callable[..., Any]) -> None:
    assert events("cat", "events").err == "embedlog: events: no record\n"
    assert (
        "no record at or after offset 5: events-0 is empty"
        in events("cat", "events", "-o", "5").err
    )
