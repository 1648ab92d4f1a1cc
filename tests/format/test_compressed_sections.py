"""A records section is read as Kafka reads it, with the same bytes, and refused as Kafka refuses
it, but for known forms.
"""

from __future__ import annotations

from typing import Final

import pytest

from embedlog.errors import CorruptRecordError
from embedlog.format import compression
from embedlog.types import CODECS
from tests.support import compressed_sections
from tests.support.compressed_sections import ONE, Section

# Forms that Kafka's decoders refuse, or of which they read less, and this one reads:
# `docs/format.md`, 1.4. Their records are counted, so nothing is missed.
READ_HERE_ONLY: Final[dict[tuple[str, str], bytes]] = {
    ("zstd", "half a frame without its size"): b""
}


def expected(section: Section) -> bytes | None:
    return READ_HERE_ONLY.get((section.codec, section.name), section.plain)


def read(section: Section) -> bytes | None:
    try:
        return bytes(compression.decompress(CODECS.index(section.codec), section.data))
    except CorruptRecordError:
        return None


@pytest.mark.parametrize(
    "section", compressed_sections.stored(), ids=lambda section: f"{section.codec}, {section.name}"
)
def test_a_section_is_read_as_kafka_reads_it(section: Section) -> None:
    assert read(section) == expected(section)


def test_the_file_has_every_form() -> None:
    stored = {(each.codec, each.name) for each in compressed_sections.stored()}
    assert stored == {(each.codec, each.name) for each in compressed_sections.made()}
    assert sum(each.plain == ONE for each in compressed_sections.stored()) > 12


@pytest.mark.kafka
def test_kafka_reads_the_sections_as_stored(kafka: None) -> None:
    """Also sections that the codecs' libraries of today make."""
    stored = compressed_sections.stored()
    assert compressed_sections.read_by_kafka(stored) == stored
    for section in compressed_sections.read_by_kafka(compressed_sections.made()):
        assert read(section) == expected(section), section
