"""The application as its user sees it: tabs, keys, filters, views, changes, and what it
survives.
"""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import TopicPartition
from tests.conftest import ROOT
from tests.tools.console.support import DEADLINE_S, NEEDED, QUICK, TIME_MS, Screen, opened, run

pytest.importorskip("textual", reason=NEEDED)

from embedlog.tools.console.app import READ_ONLY, list_keys


@pytest.mark.slow
def test_the_record_is_shown_in_three_views(known_log: Path) -> None:
    async def scenario() -> None:
        async with opened(known_log, size=(118, 60)) as screen:
            await to_records(screen)
            await screen.shows(
                "── header trace: 4 bytes", "view: text", "CreateTime 2023-11-14 22:17:29.000"
            )
            await screen.press("v")
            await screen.shows("view: json", '  "price": 1.10', '  "n": 249')
            await screen.press("v")
            await screen.shows("view: hex", "00000000  7b 22 6e 22 3a 32 34 39")
            await screen.press("down")
            await screen.shows("7b 22 6e 22 3a 32 34 38")
            await screen.press("v")
            await screen.shows("view: text", "t248")

    run(scenario)


async def to_records(screen: Screen) -> None:
    """The records of all partitions of orders."""
    await screen.shows("orders")
    screen.app.panes["records"].open("orders", ())
    await screen.tab(2)
    await screen.shows("topic orders · all partitions · newest first · page 1", '{"n":249,')


@pytest.mark.slow
def test_pages_and_positions_are_reached_by_keys(known_log: Path) -> None:
    async def scenario() -> None:
        async with opened(known_log) as screen:
            await to_records(screen)
            await screen.press("n")
            await screen.shows("page 2", '{"n":149,')
            await screen.press("n")
            await screen.shows("page 3, the last", '{"n":49,')
            await screen.press("n")
            await screen.shows("this is the last page")
            await screen.press("p")
            await screen.shows("page 2", '{"n":149,')
            await screen.press("e")
            await screen.shows("page 1", '{"n":249,')
            for where, first in (
                ("beginning", '{"n":0,'),
                ("60", '{"n":120,'),
                ("@2023-11-14T22:14:00", '{"n":40,'),
            ):
                await screen.press("g")
                await screen.shows("Position")
                await screen.fill(where=where)
                await screen.press("enter")
                await screen.shows("oldest first", first)
            await screen.press("g")
            await screen.shows("Position")
            await screen.fill(where="-7")
            await screen.press("enter")
            await screen.shows("position: expected a number of at least 0, found '-7'")
            await screen.press("escape")
            await screen.shows('{"n":40,')

    run(scenario)


@pytest.mark.slow
def test_filters_select_records(known_log: Path) -> None:
    async def scenario() -> None:
        async with opened(known_log) as screen:
            await to_records(screen)

            async def search(**texts: str) -> None:
                await screen.press("slash")
                await screen.fill(
                    **dict.fromkeys(("key", "value", "header", "since", "until"), "") | texts
                )
                await screen.press("enter")

            await search(key="k7", value='/"n":.*7,/')
            await screen.shows(
                'key=k7 value=/"n":.*7,/', "page 1, the last", '{"n":247,', '{"n":237,'
            )
            assert len(screen.app.panes["records"].page.lines) == 25
            await search(header="trace=t33")
            await screen.shows("header=trace=t33", '{"n":33,')
            await screen.hides('{"n":34,')
            await search(since="2023-11-14T22:17:28")
            await screen.shows("since=2023-11-14T22:17:28", '{"n":248,')
            await screen.hides('{"n":247,')
            await search(key="/(/")
            await screen.shows("key: not a regular expression: ")
            await screen.press("escape", "escape")
            await screen.hides("filter since")
            await screen.shows('{"n":240,')

    run(scenario)


@pytest.mark.slow
def test_escape_cancels_a_search_and_the_next_page_continues_it(
    known_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from embedlog.tools.console.model import pages

    reading = threading.Event()
    go_on = threading.Event()
    matches = pages._find_matches

    def delayed(*arguments: Any) -> Any:
        reading.set()
        assert go_on.wait(DEADLINE_S)
        return matches(*arguments)

    monkeypatch.setattr(pages, "_find_matches", delayed)

    async def scenario() -> None:
        async with opened(known_log) as screen:
            await to_records(screen)
            await screen.press("slash")
            await screen.fill(value="price")
            await screen.press("enter")
            await screen.until(reading.is_set)
            await screen.press("1")
            await screen.shows("2 topics")  # other tabs are read meanwhile
            await screen.tab(2)
            await screen.press("escape")
            await screen.until(screen.app.panes["records"]._reading.cancelled.is_set)
            go_on.set()
            await screen.shows("filter value=price", "cancelled: n continues")
            lines = len(screen.app.panes["records"].page.lines)
            assert 0 < lines <= 125
            await screen.press("n")
            await screen.shows("page 2")
            assert lines + len(screen.app.panes["records"].page.lines) <= 250

    run(scenario)


def test_contents_do_not_control_the_terminal(known_log: Path) -> None:
    async def scenario() -> None:
        async with opened(known_log, size=(200, 40)) as screen:
            await screen.tab(2)
            await screen.shows(
                "topic evil",
                "␛]0;title␇[red]",
                "␛[31mred␛[0m [bold]markup[/bold] [/] ␍␊␇",
                "<U+202E>\\xff␀",
            )
            await screen.press("down")
            await screen.shows("── header ␛[2Jh[/x]: 4 bytes")
            for view in ("json", "hex", "text"):
                await screen.press("v")
                await screen.shows(f"view: {view}")
                assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", screen.text)

    run(scenario)


def test_without_write_every_change_is_refused(known_log: Path) -> None:
    async def scenario() -> None:
        async with opened(known_log) as screen:
            await screen.shows("orders")
            for tab, pressed in ((1, "cds"), (2, "sx"), (3, "o")):
                await screen.tab(tab)
                await screen.shows("readers" if tab == 3 else "evil")
                assert not {
                    "create",
                    "delete",
                    "send",
                    "delete records",
                    "delete older",
                    "reset offsets",
                } & offered(screen)
                for key in pressed:
                    screen.app.say("")
                    await screen.press(key)
                    await screen.shows(READ_ONLY)
                    assert len(screen.app.screen_stack) == 1

    before = embedlog.processes(str(known_log))
    run(scenario)
    assert before == []
    with embedlog.open(known_log, read_only=True) as log:
        assert log.topics() == ["evil", "orders"]


def offered(screen: Screen) -> set[str]:
    """The words of the footer."""
    return {
        binding.binding.description
        for binding in screen.app.screen.active_bindings.values()
        if binding.binding.show
    }


def test_only_a_console_with_write_offers_changes(known_log: Path) -> None:
    async def scenario() -> None:
        for write in (False, True):
            async with opened(known_log, write=write, size=(118, 80)) as screen:
                await screen.shows("orders")
                assert ("create" in offered(screen)) is write
                assert {"find", "internal"} <= offered(screen)
                await screen.press("question_mark")
                await screen.shows("Keys; Escape leaves", "own only")
                assert ("reset offsets" in screen.text) is write
                assert ("abort" in screen.text) is write

    run(scenario)


@pytest.mark.slow
def test_changes_are_made_after_their_name_was_typed(own_log: Path) -> None:
    async def scenario() -> None:
        async with opened(own_log, write=True) as screen:
            await screen.shows("2 topics")
            await form(
                screen,
                "c",
                "Create a topic",
                topic="audit",
                partitions="3",
                settings="retention.ms=1000",
            )
            await confirm(screen, "audit", "created topic audit")
            await screen.shows("3 topics", "audit")
            await screen.press("home")
            await form(
                screen,
                "s",
                "Send a record to audit",
                partition="2",
                text="sent by hand",
                headers="h=1",
            )
            await confirm(screen, "audit", "sent audit-2 offset 0")
            await screen.press("down", "d")
            await confirm(screen, "evil", "deleted topic evil")
            await screen.shows("2 topics")
            await screen.press("enter")
            await screen.shows("topic orders, id")
            await form(screen, "x", "Delete records of orders-0", offset="7")
            await confirm(screen, "orders", "orders-0 begins at 7")
            await screen.tab(3)
            await screen.shows("readers")
            await form(screen, "o", "Reset offsets of readers", to="-90")
            await confirm(screen, "readers", "reset readers: orders-0 to 10, orders-1 to 10")

    run(scenario)
    with embedlog.open(own_log, read_only=True) as log:
        assert log.topics() == ["audit", "orders"]
        assert dict(log.describe_topic("audit").config) == {"retention.ms": "1000"}
        (record,) = log.scan("audit").records()
        assert (record.partition, record.key, record.value, record.headers) == (
            2,
            None,
            b"sent by hand",
            (("h", b"1"),),
        )
        assert log.describe_topic("orders").partitions[0].log_start_offset == 7
        assert log.group_offsets("readers")[TopicPartition("orders", 1)].offset == 10


async def form(screen: Screen, key: str, title: str, **texts: str) -> None:
    """Fill a form."""
    await screen.press(key)
    await screen.shows(title)
    await screen.fill(**texts)
    await screen.press("enter")
    await screen.hides(title)


async def confirm(screen: Screen, name: str, result: str) -> None:
    """Type another name, which changes nothing, and then the right one."""
    await screen.shows(f"Type {name} to confirm")
    await screen.fill(name="yes")
    await screen.press("enter")
    await screen.shows(f"not {name}: nothing was changed")
    await screen.fill(name=name)
    await screen.press("enter")
    await screen.shows(result)


def test_an_open_transaction_is_shown_and_aborted(own_log: Path) -> None:
    async def scenario() -> None:
        with (
            embedlog.open(own_log, config=QUICK) as log,
            log.producer(transactional_id="tx") as producer,
        ):
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("orders", b"open", partition=1).result(timeout=DEADLINE_S)
            async with opened(own_log, write=True) as screen:
                await screen.tab(4)
                await screen.shows("tx", "Ongoing", "orders-1")
                await screen.press("a")
                await confirm(screen, "tx", "aborted the transaction of tx")
                await screen.shows("Empty")
                await screen.hides("Ongoing")
            with pytest.raises(embedlog.FencedError):
                producer.commit_transaction()

    run(scenario)


@pytest.mark.slow
def test_a_refused_change_is_a_line(own_log: Path) -> None:
    async def scenario() -> None:
        async with opened(own_log, write=True) as screen:
            await screen.shows("2 topics")
            await form(screen, "c", "Create a topic", topic="orders")
            await confirm(screen, "orders", "error: ")
            await screen.press("c")
            await screen.fill(topic="x", partitions="0")
            await screen.press("enter")
            await screen.shows("partitions: expected a number of at least 1, found '0'")

    run(scenario)


@pytest.mark.slow
def test_rates_and_new_records_are_shown_while_another_process_writes(own_log: Path) -> None:
    async def scenario() -> None:
        with embedlog.open(own_log, config=QUICK) as log, log.producer() as producer:
            async with opened(own_log, interval_s=0.05) as screen:
                rates = screen.app.panes["topics"]._rates
                await screen.until(lambda: rates.of([("orders", 0)]).records == 0.0)
                for number in range(1000):
                    producer.send(
                        "orders", b"live %d" % number, partition=0, timestamp_ms=TIME_MS + 10**6
                    )
                    if number % 100 == 0:
                        producer.flush(timeout=DEADLINE_S)
                        await screen.pilot.pause()
                    if (rates.of([("orders", 0)]).records or 0) > 0:
                        break
                producer.flush(timeout=DEADLINE_S)
                await screen.until(
                    lambda: (
                        (rates.of([("orders", 0)]).records or 0) > 0
                        or rates.of([("orders", 0)]).size_bytes
                    )
                )
                await screen.press("down", "enter")
                await screen.shows("topic orders, id")
                await screen.press("enter")
                await screen.shows("topic orders · partition 0", f"live {number}")
                await screen.press("f")
                await screen.shows("following")
                producer.send(
                    "orders", b"newest of all", partition=0, timestamp_ms=TIME_MS + 2 * 10**6
                ).result(timeout=DEADLINE_S)
                await screen.shows("newest of all")

    run(scenario)


@pytest.mark.slow
def test_a_removed_directory_is_a_line_and_the_application_goes_on(own_log: Path) -> None:
    async def scenario() -> None:
        async with opened(own_log, size=(250, 30), interval_s=0.05) as screen:
            await screen.shows("2 topics")
            own_log.rename(own_log.with_name("moved"))
            for number in range(1, 8):
                await screen.tab(number)
                await screen.shows(
                    "error: ", "does not exist" if number != 7 else "no such log directory"
                )
            await screen.tab(1)
            own_log.with_name("moved").rename(own_log)
            await screen.hides("error: ")
            await screen.shows("2 topics")

    run(scenario)


@pytest.mark.slow
def test_damage_is_a_line_in_records_and_a_row_of_the_check(own_log: Path) -> None:
    file = own_log / "orders-0" / "00000000000000000000.log"
    data = bytearray(file.read_bytes())
    data[-20] ^= 1
    file.write_bytes(data)

    async def scenario() -> None:
        async with opened(own_log, size=(250, 30)) as screen:
            screen.app.panes["records"].topic = "orders"
            await screen.tab(2)
            await screen.shows("error: ", "00000000000000000000.log")
            await screen.tab(8)
            await screen.press("c")
            await screen.shows(
                "damage", "these records cannot be read", "orders-0/00000000000000000000.log"
            )

    run(scenario)


@pytest.mark.slow
def test_a_damaged_topic_is_a_row_beside_the_others(own_log: Path) -> None:
    segment = own_log / "orders-0" / "00000000000000000000.log"
    data = bytearray(segment.read_bytes())
    data[500] ^= 1
    segment.write_bytes(data)

    async def scenario() -> None:
        async with opened(own_log, size=(200, 24)) as screen:
            await screen.shows(
                "2 topics · 1 not readable: press 8, then c", "evil", "checksum of a batch"
            )
            await screen.tab(3)
            await screen.shows("readers")
            await screen.tab(6)
            await screen.shows("1 not readable", "evil")
            await screen.tab(8)
            await screen.press("c")
            await screen.shows("1 × damage", "0-124")

    run(scenario)


def test_eighty_columns_show_all_tabs_and_the_keys_of_help(known_log: Path) -> None:
    async def scenario() -> None:
        async with opened(known_log, size=(80, 24)) as screen:
            await screen.shows("orders", "8 Damage", "4 Txns", "? keys  q quit")

    run(scenario)


def test_an_empty_log_says_how_to_create_a_topic(tmp_path: Path) -> None:
    embedlog.open(tmp_path / "empty", config=QUICK).close()

    async def scenario() -> None:
        async with opened(tmp_path / "empty") as screen:
            await screen.shows("no topic: c creates one")

    run(scenario)


def test_find_limits_the_rows_and_keeps_the_cursor(known_log: Path) -> None:
    async def scenario() -> None:
        async with opened(known_log) as screen:
            await screen.tab(6)
            await screen.shows("cleanup.policy")
            await screen.press("slash")
            await screen.shows("only rows with this text")
            await screen.press(*"retention", "full_stop", *"ms")
            await screen.hides("cleanup.policy")
            await screen.press("enter")
            table = screen.app.pane.sections[0].table
            await screen.until(lambda: screen.app.focused is table)
            await screen.press("end")
            await screen.until(
                lambda: table.selected is not None and table.selected.key == "orders retention.ms"
            )
            before = table.selected.key
            await screen.press("escape")
            await screen.shows("cleanup.policy")
            assert table.selected.key == before
            await screen.press("o")
            await screen.hides("cleanup.policy")
            await screen.tab(1)
            await screen.press("i")
            await screen.shows("__consumer_offsets")

    run(scenario)


def test_the_keys_are_those_of_the_page() -> None:
    page = (ROOT / "docs" / "console.md").read_text()
    assert re.findall(r"^\| (\w+) \| `(\S+)` \| (.*) \|$", page, re.MULTILINE) == list_keys()
