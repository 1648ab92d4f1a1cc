"""Random programs at a real broker through confluent-kafka, and at embedlog: each call has the same
answer, and so have readers.

They contain the verbs of Kafka with an outcome that the broker's clock does not decide: no
retention, no compaction, and no record without a key and a partition.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import embedlog
from tests.kafka import oracle
from tests.kafka.scenarios import START_MS, WAIT_S, Scenario, row
from tests.machine.kafka_users import Answer, KafkaUser, OurUser, answer_of
from tests.support.campaign_report import add_counts

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.xdist_group("kafka"),
    pytest.mark.timeout(900),
    pytest.mark.may_leak("librdkafka closes a producer some time after its last reference"),
]

PROGRAMS = 5
STEPS = 40
LEVELS = ("read_uncommitted", "read_committed")
KEYS = (b"k0", b"k1", b"a longer key", b"")
IN_2100_MS = 4_102_444_800_000
REFUSALS = ("INVALID_TIMESTAMP", "RECORD_TOO_LARGE")  # a record may get either, if it deserves both
SETTINGS = {
    "max.message.bytes": ("1048588", "500"),
    "message.timestamp.before.max.ms": (str(2**63 - 1), str(365 * 86_400_000)),
    "compression.type": ("producer", "uncompressed", "gzip", "lz4", "zstd"),
}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[embedlog.Log]:
    with embedlog.open(tmp_path / "log") as opened:
        yield opened


class Program:
    """Draws calls that fit the present state; both users make each of them."""

    def __init__(
        self, rng: random.Random, scenario: Scenario, bootstrap: str, log: embedlog.Log
    ) -> None:
        self._rng = rng
        self._ours = OurUser(scenario, log)
        self._theirs = KafkaUser(scenario, bootstrap)
        self._states = dict.fromkeys(("t", "u", "v"), "fresh")
        self._serial = 0
        self.lines: list[str] = []

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()

    def both(self, verb: str, *arguments: Any) -> Answer:
        self.lines.append(f"{verb}{arguments}")
        ours = answer_of(self._ours, verb, arguments)
        theirs = answer_of(self._theirs, verb, arguments)
        are_refused = ours[1] in REFUSALS and theirs[1] in REFUSALS
        if ours != theirs and not (are_refused and verb == "send"):
            ends = {
                level: (self._ours.do_ends(level), self._theirs.do_ends(level)) for level in LEVELS
            }
            calls = "\n".join(self.lines)
            raise AssertionError(
                f"the last call: embedlog {ours}, Kafka {theirs}; ends {ends}\n{calls}"
            )
        return ours

    def step(self) -> None:
        steps = (
            "send",
            "send",
            "send",
            "send_at",
            "transact",
            "transact",
            "transact",
            "transact",
            "grow",
            "alter",
        )
        reading = ("delete_records", "commit_offsets", "read", "offset_for_time")
        getattr(self, self._rng.choice((*steps, *reading)))()

    # ---- producers -----------------------------------------------------------------------------

    def value(self) -> bytes | None:
        self._serial += 1
        text = b"%d " % self._serial
        return self._rng.choice((text, text * 30, b"", None, text + self._rng.randbytes(700)))

    def rows(self, most: int) -> list[Any]:
        rows = []
        for _ in range(self._rng.randint(1, most)):
            partition = self._rng.choice((None, 0, 0, 1))
            headers = self._rng.choice(((), (("h", b"1"),), (("h", None), ("ü", b""))))
            rows.append(row(self.value(), self._rng.choice(KEYS), partition, *headers))
        return rows

    def send(self) -> None:
        self.both("send", self._rng.choice("pq"), self.rows(1))

    def send_at(self) -> None:
        """A record at a time that the topic may refuse, and in a partition that may not exist."""
        moment = self._rng.choice((START_MS, START_MS - 5_000_000, 1, IN_2100_MS))
        number = self._rng.choice((0, 1, self._ours.partition_count))
        self.both(
            "send_at",
            self._rng.choice("pq"),
            self._rng.choice(KEYS),
            b"%d" % self._serial,
            number,
            moment,
        )

    def transact(self) -> None:
        """The next call of a transaction, or one that does not fit. `t` and `u` have one id: the
        later one fences the other.
        """
        who = self._rng.choice("tuv")
        state = self._states[who]
        verbs = {
            "fresh": ("init",),
            "ready": ("begin", "begin", "begin", "commit"),
            "open": ("send", "send", "commit", "abort"),
        }
        verb = self._rng.choice(verbs[state])
        if verb == "send":
            self.become_lax()
            # librdkafka's second call after a fencing fails in its own way
            most = 3 if who == "v" else 1
            answer = self.both(
                "send",
                who,
                [each for each in self.rows(most) if each[3] is not None] or [row(b"x", b"k", 0)],
            )
        else:
            answer = self.both(verb, who)
        if answer == ("error", "fenced"):
            self.both("forget", who)
            self._states[who] = "fresh"
        elif answer[0] == "ok":
            self._states[who] = {
                "init": "ready",
                "begin": "open",
                "send": "open",
                "commit": "ready",
                "abort": "ready",
            }[verb]

    def become_lax(self) -> None:
        """The topic takes all records: a refused one in a transaction leaves each client in a state
        of its own.
        """
        lax = {
            name: SETTINGS[name][0]
            for name in ("max.message.bytes", "message.timestamp.before.max.ms")
        }
        if self._ours.do_settings(sorted(lax)) != lax:
            self.both("alter", lax)

    # ---- the topic -----------------------------------------------------------------------------

    def grow(self) -> None:
        """More partitions. The broker's clients learn of them minutes later, so there are new
        ones.
        """
        if self.both("grow", self._rng.randint(1, 5))[0] == "ok":
            for who in "pq":
                self.both("forget", who)

    def alter(self) -> None:
        name = self._rng.choice(sorted(SETTINGS))
        self.both("alter", {name: self._rng.choice(SETTINGS[name])})
        self.both("settings", sorted(SETTINGS))

    def delete_records(self) -> None:
        number = self._rng.choice((0, 1))
        start, end = self._ours.do_ends("read_uncommitted")[number]
        self.both(
            "delete_records",
            {number: self._rng.choice((start, (start + end) // 2, end, -1, end + 5))},
        )

    # ---- readers -------------------------------------------------------------------------------

    def commit_offsets(self) -> None:
        level = self._rng.choice(LEVELS)
        self.both("commit_offsets", level, {self._rng.choice((0, 1)): self._rng.randint(0, 20)})
        self.both("committed", level, [0, 1])

    def read(self) -> None:
        level = self._rng.choice(LEVELS)
        offsets = {number: self._rng.choice((None, 0, 5, 10**6)) for number in range(2)}
        wanted = len(self._ours.do_read(level, offsets, 0))
        self.until_decided()
        self.both("read", level, offsets, wanted)

    def offset_for_time(self) -> None:
        """A broker also names markers, which no reader gets."""
        moment = START_MS + self._rng.randint(-10, 300)
        number = self._rng.choice((0, 1))
        ours = self._ours.do_offset_for_time(number, moment)
        theirs = self._theirs.do_offset_for_time(number, moment)
        self.lines.append(f"offset_for_time({number}, {moment}): {ours}, {theirs}")
        records = {row[1] for row in self._ours.do_read("read_uncommitted", {number: 0}, 0)}
        is_marker = theirs is not None and theirs not in records and (ours is None or ours > theirs)
        assert ours == theirs or is_marker, "\n".join(self.lines)

    def until_decided(self) -> None:
        """A broker tells the end of a transaction to readers some time after its producer."""
        end = time.monotonic() + WAIT_S
        while (
            any(self._ours.do_ends(level) != self._theirs.do_ends(level) for level in LEVELS)
            and time.monotonic() < end
        ):
            self._theirs.pause(0)

    def compare_everything(self) -> None:
        self.until_decided()
        for level in LEVELS:
            self.both("ends", level)
            offsets = dict.fromkeys(range(self._ours.partition_count), 0)
            self.both("read", level, offsets, len(self._ours.do_read(level, offsets, 0)))


@pytest.mark.parametrize("number", range(PROGRAMS))
def test_a_random_program_has_the_same_answers(
    number: int, seed: int, broker: oracle.Broker, log: embedlog.Log
) -> None:
    if broker.process is None:
        broker.start()
    rng = random.Random(seed * PROGRAMS + number)
    name = f"program-{seed}-{number}"
    one = {"transactional_id": f"{name}-one"}
    two = {"transactional_id": f"{name}-two"}
    codecs = [rng.choice(("none", "gzip", "snappy", "lz4", "zstd")) for _ in "pq"]
    producers = {
        "p": {"compression_type": codecs[0]},
        "q": {"compression_type": codecs[1]},
        "t": one,
        "u": one,
        "v": two,
    }
    scenario = Scenario(name, (), partition_count=2, producers=producers)
    program = Program(rng, scenario, broker.bootstrap, log)
    try:
        for _ in range(STEPS):
            program.step()
        program.compare_everything()
    finally:
        program.close()
    add_counts("state machine beside Kafka", programs=1, calls=len(program.lines))
