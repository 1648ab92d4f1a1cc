"""Assertions: what they accept, and the differences that they print."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from unittest.mock import ANY

import pytest

import embedlog
from embedlog import ProducerRecord, TopicPartition
from embedlog.testing import (
    assert_committed,
    assert_key_order,
    assert_lag,
    assert_records,
    open_log,
    record,
    records,
    wait_for_records,
)


@pytest.fixture
def log() -> Iterator[embedlog.Log]:
    with open_log({"t": 1, "many": 3}) as opened:
        yield opened


def send(log: embedlog.Log, *sent: tuple[Any, Any], topic: str = "t", **options: Any) -> None:
    with log.producer() as producer:
        for key, value in sent:
            producer.send(topic, value, key=key, **options)


def message(log: embedlog.Log, *args: Any, **options: Any) -> str:
    with pytest.raises(AssertionError) as raised:
        assert_records(log, *args, **options)
    return str(raised.value)


# ---- records ---------------------------------------------------------------------------------------------------------


def test_equal_records_pass_in_every_form(log: embedlog.Log) -> None:
    send(log, (b"k", b'{"n": [1, 2]}'), (None, "zwölf".encode()), (b"k", None))
    assert_records(log, "t", [("k", {"n": (1, 2)}), "zwölf", (b"k", None)])
    assert_records(
        log, "t", [{"n": [1, 2]}, (None, "zwölf"), record(None, key="k", partition=0, offset=2)]
    )
    assert_records(log, "t", records(log, "t"))
    assert_records(
        log,
        "t",
        [
            ProducerRecord("t", b'{"n": [1, 2]}', b"k"),
            record(),
            ProducerRecord("t", None, "k", partition=0),
        ],
    )


def test_headers_are_compared_as_mapping_or_list(log: embedlog.Log) -> None:
    send(log, (None, b"v"), headers=[("b", b"2"), ("a", None)])
    assert_records(log, "t", [record(headers={"a": None, "b": "2"})])
    assert_records(log, "t", [record(headers=[("b", "2"), ("a", None)])])
    found = message(log, "t", [record(headers=[("a", None), ("b", "2")])])
    assert "headers: expected [('a', None), ('b', b'2')], found [('b', b'2'), ('a', None)]" in found


def test_the_first_difference_is_shown_with_its_path_in_json(log: embedlog.Log) -> None:
    send(log, *((b"k%d" % n, b'{"n": %d, "items": [{"price": %d}]}' % (n, n)) for n in range(5)))
    wanted: list[Any] = [{"n": n, "items": [{"price": n}]} for n in range(5)]
    wanted[3]["items"][0]["price"] = 7
    assert message(log, "t", wanted).splitlines() == [
        "topic 't': expected 5 records, found 5",
        "first difference at record 3: another record",
        """    1: partition 0 offset 1 key='k1' value={"n": 1, "items": [{"price": 1}]}""",
        """    2: partition 0 offset 2 key='k2' value={"n": 2, "items": [{"price": 2}]}""",
        """  > 3: expected value={"n": 3, "items": [{"price": 7}]}""",
        """       found    partition 0 offset 3 key='k3' value={"n": 3, "items": [{"price": 3}]}""",
        "       value.items[0].price: expected 7, found 3",
        """    4: partition 0 offset 4 key='k4' value={"n": 4, "items": [{"price": 4}]}""",
    ]


@pytest.mark.parametrize(
    ("wanted", "kind"),
    [
        (["a", "x", "b", "c"], "first difference at record 1: a record is missing"),
        (["b", "c"], "first difference at record 0: a record is not expected"),
        (["a", "b", "c", "d", "e"], "first difference at record 3: 2 missing at the end"),
        (["a"], "first difference at record 1: 2 too many at the end"),
        (["a", "B", "c"], "first difference at record 1: another record"),
        ([], "first difference at record 0: 3 too many at the end"),
    ],
)
def test_the_kind_of_a_difference_is_named(log: embedlog.Log, wanted: list[str], kind: str) -> None:
    send(log, (None, b"a"), (None, b"b"), (None, b"c"))
    assert kind in message(log, "t", wanted)


@pytest.mark.parametrize(
    ("stored", "wanted", "line"),
    [
        (b'{"a": 1}', {"a": True}, "value.a: expected True, found 1"),
        (b'{"a": 1}', {}, "value.a: not expected, found 1"),
        (b"[1]", [1, 2], "value[1]: expected 2, absent"),
        (b"\xff", b"\xfe", r"value: expected b'\xfe', found b'\xff'"),
        (b"text", {"a": 1}, """value: expected {"a": 1}, found 'text'"""),
        (
            b'{"a":1}',
            b'{"a": 1}',
            """value: equal as JSON, other bytes: expected b'{"a": 1}', found b'{"a":1}'""",
        ),
        (None, b"x", "value: expected 'x', found None"),
        (b"1", 1, "value: expected 1, found '1'"),
        (b"y" * 200, "x", f"value: expected 'x', found '{'y' * 119}… (202 characters)"),
    ],
)
def test_values_differ(log: embedlog.Log, stored: bytes, wanted: Any, line: str) -> None:
    send(log, (None, stored))
    assert line in message(log, "t", [wanted])


def test_many_differences_of_one_value_are_counted(log: embedlog.Log) -> None:
    send(log, (None, b"[1, 2, 3, 4, 5, 6, 7]"))
    assert "value: 2 more differences" in message(log, "t", [[0] * 7])


def test_several_partitions_keep_the_order_of_each_key(log: embedlog.Log) -> None:
    pairs = [(b"k%d" % (n % 7), b"%d" % n) for n in range(50)]
    send(log, *pairs, topic="many")
    assert_records(log, "many", pairs)
    assert_records(log, "many", sorted(pairs, key=lambda pair: pair[0]))
    assert_records(log, "many", pairs[::-1], in_order=False)
    found = message(log, "many", [pairs[7], *pairs[1:7], pairs[0], *pairs[8:]])
    assert "order of key 'k0':" in found
    assert "value='0' is too early" in found
    assert "first difference at record" in message(log, "many", [pairs[7], pairs[0]], in_order=True)


def test_several_partitions_show_what_is_missing_and_not_expected(log: embedlog.Log) -> None:
    send(log, (b"a", b'{"n": 1}'), (b"b", b"2"), topic="many")
    found = message(log, "many", [("a", {"n": 9}), ("c", "3")])
    assert (
        """missing: value={"n": 9} key='a'\n    of the same key, at offset 0: value.n: expected 9, found 1"""
        in found
    )
    assert "missing: value='3' key='c'\n" in found
    assert "not expected: partition" in found


def test_an_expectation_with_more_fields_chooses_first(log: embedlog.Log) -> None:
    send(log, (b"a", b"1"), (b"a", b"2"), topic="many")
    assert_records(log, "many", [record(key="a"), record("1", key="a")], in_order=False)


def test_a_choice_is_changed_where_another_expectation_needs_the_record(log: embedlog.Log) -> None:
    send(log, (b"a", b"1"), (b"a", b"2"), (b"b", b"2"), topic="many")
    assert_records(log, "many", [record(key="a"), record("1"), record("2")], in_order=False)
    assert "missing: value='1'" in message(
        log, "many", [record(key="b"), record("1"), record("1")], in_order=False
    )


@pytest.mark.slow
def test_a_large_number_of_equal_records_is_matched(log: embedlog.Log) -> None:
    send(log, *((b"k", b"x") for _ in range(1500)), topic="many")
    assert_records(log, "many", ["x"] * 1500)
    assert "1501 records, found 1500\n  missing: value='x'" in message(log, "many", ["x"] * 1501)


def test_the_only_other_record_is_compared(log: embedlog.Log) -> None:
    send(log, (b"a", b'{"n": 1}'), topic="many")
    assert "of the only other record, at offset 0: value.n: expected 2, found 1" in message(
        log, "many", [{"n": 2}]
    )


def test_objects_that_compare_in_their_own_way(log: embedlog.Log) -> None:
    send(log, (b"k", b'{"id": "7f", "at": "2026-01-01 00:00:00", "prices": [1.0000001, true]}'))
    wanted = {"id": ANY, "at": datetime(2026, 1, 1), "prices": [pytest.approx(1), ANY]}
    assert_records(log, "t", [(ANY, wanted)])
    found = message(
        log, "t", [{**wanted, "at": datetime(2026, 1, 2), "prices": [pytest.approx(2), True]}]
    )
    assert (
        "value.at: expected datetime.datetime(2026, 1, 2, 0, 0), found '2026-01-01 00:00:00'"
        in found
    )
    assert "value.prices[0]: expected 2 ± 2.0e-06, found 1.0000001" in found


def test_each_different_header_is_named(log: embedlog.Log) -> None:
    send(log, (None, b"v"), headers=[("a", b"1"), ("b", b'{"n": 1}'), ("d", None)])
    found = message(log, "t", [record(headers={"a": "2", "b": {"n": 1}, "c": "3"})])
    lines = [line.strip() for line in found.splitlines()[-3:]]
    assert lines == [
        "headers['a']: expected '2', found '1'",
        "headers['c']: expected '3', absent",
        "headers['d']: not expected, found None",
    ]


def test_a_difference_late_in_a_long_value_is_shown(log: embedlog.Log) -> None:
    send(log, (None, b"y" * 300 + b"found" + b"z" * 300))
    found = message(log, "t", ["y" * 300 + "wanted" + "z" * 300])
    assert f"value: differ from character 301 on: expected …{'y' * 30}wanted" in found
    assert f"found …{'y' * 30}found" in found


def test_one_partition_is_compared_in_order(log: embedlog.Log) -> None:
    for number in range(3):
        send(log, (None, b"%d" % number), topic="many", partition=number % 2)
    assert_records(log, "many", ["0", "2"], partition=0)
    assert "topic 'many', partition 1: expected 1 record, found 1" in message(
        log, "many", ["0"], partition=1
    )


def test_aborted_records_are_omitted(log: embedlog.Log) -> None:
    with log.producer(transactional_id="id") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"aborted")
        producer.flush()
        producer.abort_transaction()
        with producer.transaction():
            producer.send("t", b"committed")
    assert_records(log, "t", ["committed"])
    assert_records(log, "t", ["aborted", "committed"], isolation_level="read_uncommitted")


def test_a_tuple_of_three_is_an_error(log: embedlog.Log) -> None:
    with pytest.raises(TypeError, match=r"a pair \(key, value\)"):
        assert_records(log, "t", [(1, 2, 3)])


# ---- keys, groups ----------------------------------------------------------------------------------------------------


def test_the_order_of_a_key(log: embedlog.Log) -> None:
    send(log, (b"a", b"1"), (b"b", b"2"), (b"a", b"3"), topic="many")
    assert_key_order(log, "many", {"a": ["1", "3"], b"b": [b"2"], "absent": []})
    with pytest.raises(
        AssertionError,
        match=r"topic 'many', key 'a': expected 2 records, found 2\nfirst difference at record 0",
    ):
        assert_key_order(log, "many", {"a": ["3", "1"]})


def test_a_key_in_two_partitions_has_no_order(log: embedlog.Log) -> None:
    send(log, (b"a", b"1"), topic="many", partition=0)
    send(log, (b"a", b"2"), topic="many", partition=2)
    with pytest.raises(AssertionError, match=r"key 'a' is in partitions \[0, 2\]"):
        assert_key_order(log, "many", {"a": ["1", "2"]})


def test_committed_offsets_and_lag(log: embedlog.Log) -> None:
    send(log, *((None, b"v") for _ in range(5)))
    with log.consumer(
        "t", group_id="g", auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        assert len(consumer.poll(60, max_records=5)) == 5
        consumer.commit({TopicPartition("t", 0): 3})
    assert_committed(log, "g", {("t", 0): 3, ("many", 1): None})
    assert_lag(log, "g", 2)
    assert_lag(log, "g", 2, topic="t")
    with pytest.raises(AssertionError, match="expected a lag of 0, found none that is known"):
        assert_lag(log, "g", 0, topic="many")
    with pytest.raises(
        AssertionError, match=r"group 'g': committed offsets differ\n  t-0: expected 5, found 3"
    ):
        assert_committed(log, "g", {("t", 0): 5})
    with pytest.raises(
        AssertionError, match=r"expected a lag of 0, found 2\n  t-0: committed 3, end 5, lag 2"
    ):
        assert_lag(log, "g", 0)


# ---- waiting ---------------------------------------------------------------------------------------------------------


def test_a_wait_ends_with_the_record(log: embedlog.Log) -> None:
    send(log, (None, b"1"), topic="many")
    writer = threading.Timer(0.05, send, [log, (None, b"2"), (None, b"3")], {"topic": "many"})
    writer.start()
    found = wait_for_records(log, "many", 3, timeout=60)
    writer.join()
    assert sorted(each.value for each in found) == [b"1", b"2", b"3"]


def test_a_wait_that_is_too_long_shows_what_arrived(log: embedlog.Log) -> None:
    send(log, (b"k", b"first"))
    with pytest.raises(
        AssertionError,
        match=r"'t': 1 of 2 records after 0.05 s\n  partition 0 offset 0 key='k' value='first'",
    ):
        wait_for_records(log, "t", 2, timeout=0.05)
    assert wait_for_records(log, "t", 0, timeout=0) == []


def test_a_wait_for_a_transaction_ends_with_its_commit(log: embedlog.Log) -> None:
    with log.producer(transactional_id="id") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"v")
        producer.flush()
        with pytest.raises(AssertionError, match="0 of 1 records"):
            wait_for_records(log, "t", 1, timeout=0)
        assert (
            len(wait_for_records(log, "t", 1, timeout=60, isolation_level="read_uncommitted")) == 1
        )
        committing = threading.Timer(0.05, producer.commit_transaction)
        committing.start()
        assert len(wait_for_records(log, "t", 1, timeout=60)) == 1
        committing.join()


def test_assert_records_fails_for_an_unknown_topic(log: embedlog.Log) -> None:
    for call in (
        lambda: assert_records(log, "absent", []),
        lambda: wait_for_records(log, "absent", 1),
    ):
        with pytest.raises(embedlog.UnknownTopicOrPartitionError):
            call()


def test_wrong_arguments_name_the_right_ones() -> None:
    with pytest.raises(
        embedlog.UnknownOptionError,
        match=r"record\(\) has no argument timestamp; did you mean timestamp_ms\?",
    ):
        record(timestamp=1)  # type: ignore[call-arg]
    wanted = r"a key of expected is a TopicPartition or a pair \(topic, partition\), not 't'"
    with open_log({"t": 1}) as log, pytest.raises(TypeError, match=wanted):
        assert_committed(log, "g", {"t": 1})  # type: ignore[dict-item]
