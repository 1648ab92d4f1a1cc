"""Changes of the console: texts of forms, and the sentence about a result."""

from __future__ import annotations

from pathlib import Path

import pytest

import embedlog
from embedlog.tools.console.model import changes
from embedlog.tools.console.model.filters import FilterError, parse_moment


def test_headers_of_one_name_are_all_sent() -> None:
    assert changes.headers_of("a=1 b=2 a=3") == [("a", b"1"), ("b", b"2"), ("a", b"3")]
    with pytest.raises(FilterError, match="headers: expected name=value"):
        changes.headers_of("a")
    with pytest.raises(FilterError, match="settings: expected name=value"):
        changes.settings_of("a")


def test_the_result_of_an_abort_is_what_happened(tmp_path: Path) -> None:
    with embedlog.open(tmp_path / "log", config={"housekeeping": False}) as log:
        log.create_topic("t")
        assert changes.abort_transaction("tx")(log) == "tx had no transaction"
        with log.producer(transactional_id="tx") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", b"v")
            producer.commit_transaction()
        assert changes.abort_transaction("tx")(log) == "the last transaction of tx is committed"
        producer = log.producer(transactional_id="tx")
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("t", b"v").result(10)
        assert changes.abort_transaction("tx")(log) == "aborted the transaction of tx"


def test_eight_digits_that_are_a_date_are_not_taken_for_a_time_of_1970() -> None:
    with pytest.raises(FilterError, match="2026-01-31 or 020260131"):
        parse_moment("since", "20260131", 0)
