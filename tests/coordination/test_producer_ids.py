"""Producer ids: their range and their uniqueness."""

from __future__ import annotations

from embedlog.coordination.producer_ids import new_producer_id


def test_producer_ids_are_far_from_those_of_brokers() -> None:
    ids = {new_producer_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(2**62 <= each < 2**62 + 2**61 for each in ids)
