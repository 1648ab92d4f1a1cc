"""Threads that decode or compress batches of one buffer. Without the GIL a lost
count released the buffer.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import embedlog

RECORDS = 4000  # a batch each
SCANS = 4


@pytest.fixture(autouse=True)
def several_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr("embedlog.format.compression._workers", None)


@pytest.mark.sample(0.3)
@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_batches_of_one_buffer_are_compressed_and_decoded_by_several_threads(
    tmp_path: Path, codec: str
) -> None:
    values = [b"%0150d" % number for number in range(RECORDS)]
    with embedlog.open(tmp_path / "log") as log:
        log.create_topic("t", config={"compression.type": codec})
        with log.producer(linger_ms=0, batch_size=200) as producer:
            for value in values:
                producer.send("t", value)
        for _ in range(SCANS):
            assert sum(batch.num_rows for batch in log.scan("t")) == RECORDS
        assert [record.value for record in log.scan("t").records()] == values
