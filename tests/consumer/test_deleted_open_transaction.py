"""An open transaction whose first records are deleted: no end is before a start, and readers go on
after its end.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import embedlog
from embedlog import TopicPartition

T0 = TopicPartition("t", 0)


@pytest.mark.parametrize("count", [1, 2], ids=["one directory", "a set"])
def test_the_last_stable_offset_is_not_before_the_log_start(tmp_path: Path, count: int) -> None:
    """It was the first offset of the transaction: the committed end was 3, and the log began at
    5.
    """
    paths: Any = (
        [tmp_path / f"d{number}" for number in range(count)] if count > 1 else tmp_path / "d0"
    )
    with embedlog.open(paths, config={"housekeeping": False}) as log:
        log.create_topic("t")
        with log.producer() as plain:
            plain.send_batch("t", [b"a", b"b", b"c"]).result()
            writer = log.producer(transactional_id="x")
            writer.init_transactions()
            writer.begin_transaction()
            writer.send("t", b"deleted").result()
            plain.send("t", b"after it").result()
            assert log.delete_records({T0: -1}) == {T0: 5}
            with log.consumer(
                group_id="g", isolation_level="read_committed", auto_offset_reset="earliest"
            ) as reader:
                reader.assign([T0])
                assert reader.beginning_offsets([T0]) == {T0: 5}
                assert reader.end_offsets([T0]) == {T0: 5}
                assert log.describe_topic("t").partitions[0].last_stable_offset == 5
                assert reader.poll(0) == []
                assert reader.position(T0) == 5
                plain.send("t", b"held back").result()
                assert reader.end_offsets([T0]) == {T0: 5}
                assert reader.poll(0) == []
                writer.commit_transaction()
                assert [record.value for record in reader.poll(10)] == [b"held back"]
                assert reader.end_offsets([T0]) == {T0: 7}
