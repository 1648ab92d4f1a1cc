"""Transactions: `Log.transactions`, `Log.open_transactions`, and the verb `transactions`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import OpenTransaction, TopicPartition
from embedlog.admin import transactions
from embedlog.coordination.transactions.transaction_coordinator import Transactions


def begun(log: embedlog.Log, name: str, commit: bool | None = None) -> embedlog.Producer[Any, Any]:
    """A producer with a transaction of one record; it is open without `commit`."""
    producer = log.producer(transactional_id=name)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("events", b"value", partition=0).result(20)
    if commit is not None:
        producer.commit_transaction() if commit else producer.abort_transaction()
    return producer


def test_ids_and_open_transactions_are_described(
    events: Callable[..., Any], tmp_path: Path
) -> None:
    with embedlog.open(tmp_path / "data") as log:
        assert log.transactions() == log.open_transactions() == []
        opened = begun(log, "open")
        begun(log, "done", commit=True).close()
        begun(log, "gone", commit=False).close()
        found = {each.transactional_id: each for each in log.transactions()}
        assert {name: each.state for name, each in found.items()} == {
            "done": "CompleteCommit",
            "gone": "CompleteAbort",
            "open": "Ongoing",
        }
        assert found["open"].partitions == (TopicPartition("events", 0),)
        assert (found["open"].in_use, found["open"].started_ms is not None) == (True, True)
        facts = found["open"].producer_id, found["open"].producer_epoch
        assert (
            log.open_transactions("events")
            == log.open_transactions()
            == [OpenTransaction("events", 0, *facts, 0, "open")]
        )
        with pytest.raises(embedlog.UnknownTopicOrPartitionError):
            log.open_transactions("none")
        with embedlog.open(tmp_path / "data", read_only=True) as reader:
            assert [each.in_use for each in reader.transactions()] == [None] * 3
            assert reader.open_transactions() == log.open_transactions()
        opened.abort_transaction()
        opened.close()
        assert log.open_transactions() == []


def test_a_transaction_that_begins_or_ends_during_the_search_is_not_hanging(
    events: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partitions and ids cannot be read at the same time."""
    with embedlog.open(tmp_path / "data") as log, log.producer(transactional_id="busy") as producer:
        producer.init_transactions()
        read = transactions._read_states

        def send() -> None:
            producer.begin_transaction()
            producer.send("events", b"value", partition=0).result(20)

        def ends_before(engine: Any) -> Any:
            producer.commit_transaction()
            return read(engine)

        def begins_after(engine: Any) -> Any:
            found = read(engine)
            send()
            return found

        def ends_and_begins(engine: Any) -> Any:
            found = ends_before(engine)
            send()
            return found

        for prepared, meanwhile in (
            (True, ends_before),
            (False, begins_after),
            (True, ends_and_begins),
        ):
            if prepared:
                send()
            monkeypatch.setattr(transactions, "_read_states", meanwhile)
            assert [
                each for each in log.open_transactions() if each.transactional_id is None
            ] == [], meanwhile.__name__
            monkeypatch.setattr(transactions, "_read_states", read)
            if meanwhile is not ends_before:
                assert [each.transactional_id for each in log.open_transactions()] == ["busy"]
                producer.commit_transaction()


def test_a_decided_transaction_without_its_marker_has_its_id(
    events: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decision has raised the epoch of the id, but not yet that of the partition."""
    seen = []
    mark = Transactions._mark

    def observed(*arguments: Any) -> None:
        seen.append([each.transactional_id for each in log.open_transactions()])
        mark(*arguments)

    with embedlog.open(tmp_path / "data") as log:
        monkeypatch.setattr(Transactions, "_mark", staticmethod(observed))
        for commit in (True, False):
            begun(log, f"decided-{commit}", commit=commit).close()
    assert seen == [["decided-True"], ["decided-False"]]


def test_the_verb_lists_and_aborts(events: Callable[..., Any], tmp_path: Path) -> None:
    assert events("transactions") == (0, "", "")
    with embedlog.open(tmp_path / "data") as log:
        producer = begun(log, "mine")
        (found,) = json.loads(events("transactions", "--json").out)
        assert (found["transactional_id"], found["state"], found["partitions"]) == (
            "mine",
            "Ongoing",
            [["events", 0]],
        )
        assert "events-0" in events("transactions", "--describe", "--transactional-id", "mine").out
        assert events("transactions", "--describe", "--transactional-id", "other").status == 1
        (opened,) = json.loads(events("transactions", "--open", "--json").out)
        assert (opened["topic"], opened["first_offset"], opened["transactional_id"]) == (
            "events",
            0,
            "mine",
        )
        assert events("transactions", "--find-hanging") == (0, "", "")
        assert events("transactions", "--abort", "--transactional-id", "other").status == 1
        assert events("transactions", "--abort", "--transactional-id", "mine") == (0, "", "")
        with pytest.raises(embedlog.FencedError):
            producer.commit_transaction()
        producer.close()
    assert events("cat", "events").out == "value\n"
    assert events("cat", "events", "-X", "isolation.level=read_committed").out == ""
    assert events("transactions", "--open", "--json").out == "[]\n"


@pytest.mark.parametrize("action", ["--abort", "--describe"])
def test_an_action_on_an_id_needs_it(events: Callable[..., Any], action: str) -> None:
    assert events("transactions", action).status == 2


def test_a_transaction_that_no_id_will_end_is_hanging(
    events: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with embedlog.open(tmp_path / "data") as log:
        producer = begun(log, "lost")
        monkeypatch.setattr("embedlog.admin.transactions._read_states", lambda engine: {})
        assert [each.transactional_id for each in log.open_transactions()] == [None]
        hanging = events("transactions", "--find-hanging", "--json")
        assert (hanging.status, [each["first_offset"] for each in json.loads(hanging.out)]) == (
            1,
            [0],
        )
        producer.close()
