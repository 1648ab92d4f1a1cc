"""Identity of topics and log directories, and the marks by which a broker's use is noticed.

| file | what it has | written by |
| --- | --- | --- |
| partition.metadata | topic id | the creation of a partition's directory |
| meta.properties | ids of cluster, node and directory | the first opening, and one that misses a part |
| `CLEAN_MARK` | broker epoch, incarnation that closed | the last process that leaves; the first one removes it |
| `VISIT` | number of the last visit of a broker | the first process that notices a visit |

- An identity is a UUID of 16 bytes, written as 22 characters; topic ids and directory ids are never
  generated twice.
- Properties that another version or a broker wrote beside the known ones are kept when a file is
  rewritten.
- The clean mark counts by its existence, as in Kafka; its content is optional.
- embedlog's mark names its writer, the incarnation: this is its signature. A broker deletes the
  mark at its start, and never signs its own. So a signed mark, also in a copy, proves that embedlog
  closed the directory and that no broker has used it since.
- A manifest names the visit that it has taken into account: with any other number than that of
  `VISIT` it proves nothing. A visit's number is random and odd; 0: no visit was noticed yet.
  `BEFORE_VISITS` is even, so it is never the number of a visit.
"""

from __future__ import annotations

import base64
import itertools
import json
import logging
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from embedlog._native import codec
from embedlog.errors import ForeignDirectoryError, UnsupportedFormatError
from embedlog.storage import files
from embedlog.storage.checkpoints import WAY_OUT, lines_of, malformed_line_error, number_of
from embedlog.storage.file_names import (
    CLEAN_MARK,
    INT_MAX,
    META_PROPERTIES,
    PARTITION_METADATA,
    VISIT,
)

logger = logging.getLogger("embedlog")

_NUMBER = re.compile(r"[0-9]{1,10}")
_UUID_TEXT = re.compile(r"[A-Za-z0-9_-]{22}")
_SIGNATURE = "embedlog"
_VISIT = re.compile(rb"[0-9a-f]{8} [0-9a-f]{8}\n")
_VISIT_BYTES = 64
BEFORE_VISITS: Final = 2  # what a manifest names before its partition was loaded


def new_id(random_bytes: Callable[[int], bytes] = os.urandom) -> str:
    """A UUID (version 4) as Kafka writes it: 22 characters that never begin with "-"."""
    while True:
        raw = bytearray(random_bytes(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        text = id_text(bytes(raw))
        if not text.startswith("-"):
            return text


def id_of_name(name: str) -> str:
    """An identity derived from the name, always the same: for callers that may not write an id for
    a topic that has none.
    """
    from hashlib import sha256  # loads OpenSSL

    tries = (sha256(f"{number} {name}".encode()).digest() for number in itertools.count())
    return new_id(lambda size: next(tries)[:size])


def id_text(raw: bytes) -> str:
    """16 bytes in URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def id_bytes(text: str) -> bytes:
    """The 16 bytes of an identity. Raises ValueError for any other text, and for the all-zero UUID,
    which Kafka refuses.
    """
    if not _UUID_TEXT.fullmatch(text):
        raise ValueError(f"not the 22 characters of a UUID: {text!r}")
    raw = base64.urlsafe_b64decode(text + "==")
    if raw == bytes(16):
        raise ValueError("the all-zero UUID is not an identity")
    return raw


class UnsupportedTopicIdError(UnsupportedFormatError, ForeignDirectoryError):
    """A partition.metadata of an unsupported version: for a set it is as unreadable as a malformed
    one.
    """


def read_topic_id(directory: str | os.PathLike[str]) -> str | None:
    """The topic id in a partition's partition.metadata; None if there is no such file.

    Raises ForeignDirectoryError for a malformed file, UnsupportedTopicIdError.
    """
    path = Path(directory, PARTITION_METADATA)
    data = files.read_bytes(path)
    if data is None:
        return None
    fields = {}
    lines = lines_of(path, data)
    for number, name in enumerate(("version", "topic_id"), 1):
        line = lines[number - 1] if number <= len(lines) else ""
        key, colon, value = line.partition(":")
        if key.strip() != name or not colon:
            raise malformed_line_error(path, number, f"{name}: …", repr(line))
        fields[name] = value.strip()
    version = number_of(path, 1, fields["version"], INT_MAX)
    if version != 0:
        raise UnsupportedTopicIdError(
            "version of partition.metadata", path=path, expected=0, found=version
        )
    try:
        id_bytes(fields["topic_id"])
    except ValueError as problem:
        raise malformed_line_error(path, 2, "a UUID in base64", str(problem)) from None
    return fields["topic_id"]


def write_topic_id(
    directory: str | os.PathLike[str], topic_id: str, mode: int = 0o666, *, named: bool = True
) -> None:
    """Write partition.metadata: 43 bytes, no newline at the end. With `named` false the caller
    syncs the directory.
    """
    id_bytes(topic_id)
    data = f"version: 0\ntopic_id: {topic_id}".encode()
    files.write_atomically(Path(directory, PARTITION_METADATA), data, mode, named=named)


class MetaProperties(NamedTuple):
    """Content of meta.properties: the identity of a log directory. `others` keeps the unknown
    properties.

    `cluster_id` is empty in a file of version 0 without it: brokers before 0.10.1 knew none.
    """

    version: int
    cluster_id: str
    node_id: int
    directory_id: str | None = None
    others: Mapping[str, str] = MappingProxyType({})


def read_meta(directory: str | os.PathLike[str]) -> MetaProperties | None:
    """The identity of a log directory; None if it has no meta.properties yet. Version 0 has
    broker.id for node.id. Raises ForeignDirectoryError, UnsupportedFormatError, StorageError.
    """
    path = Path(directory, META_PROPERTIES)
    data = files.read_bytes(path)
    if data is None:
        return None
    properties = _parse_properties(lines_of(path, data))
    version = _take_number(path, properties, "version", "0")
    if version > 1:
        raise UnsupportedFormatError(
            "version of meta.properties", path=path, expected="0 or 1", found=version
        )
    node_key = "node.id" if version == 1 else "broker.id"
    node = _take_number(path, properties, node_key, None)
    cluster = properties.pop("cluster.id", "")
    if not cluster and version > 0:
        raise ForeignDirectoryError(f"cluster.id is missing; {WAY_OUT}", path=path)
    directory_id = properties.pop("directory.id", None)
    if directory_id is not None:
        _check_directory_id(path, directory_id)
    return MetaProperties(version, cluster, node, directory_id, properties)


def ensure_meta(directory: str | os.PathLike[str], mode: int = 0o666) -> MetaProperties:
    """The identity of a log directory; missing parts (the file, cluster.id, directory.id) are
    written, as a newer broker does.

    **Threads and processes**: the caller uses the directory exclusively, or holds its lock.
    """
    meta = read_meta(directory) or MetaProperties(1, new_id(), 1)
    if not meta.cluster_id or meta.directory_id is None:
        meta = meta._replace(
            cluster_id=meta.cluster_id or new_id(), directory_id=meta.directory_id or new_id()
        )
        write_meta(directory, meta, mode)
    return meta


def write_meta(directory: str | os.PathLike[str], meta: MetaProperties, mode: int = 0o666) -> None:
    """Replace meta.properties."""
    node_key = "node.id" if meta.version == 1 else "broker.id"
    values = {**meta.others, "version": str(meta.version), node_key: str(meta.node_id)}
    if meta.cluster_id:
        values["cluster.id"] = meta.cluster_id
    if meta.directory_id is not None:
        values["directory.id"] = meta.directory_id
    text = "".join(f"{_escape(key)}={_escape(value)}\n" for key, value in sorted(values.items()))
    files.write_atomically(Path(directory, META_PROPERTIES), text.encode(), mode)


def _check_directory_id(path: Path, text: str) -> None:
    try:
        raw = id_bytes(text)
    except ValueError as problem:
        message = f"directory.id; {WAY_OUT}"
        raise ForeignDirectoryError(
            message, path=path, expected="a UUID in base64", found=str(problem)
        ) from None
    if raw[:8] == bytes(8) and int.from_bytes(raw[8:]) < 100:
        raise ForeignDirectoryError(
            f"directory.id is one that Kafka reserves; {WAY_OUT}", path=path, found=text
        )


def _take_number(path: Path, properties: dict[str, str], key: str, default: str | None) -> int:
    """Remove a number from the properties. Raises ForeignDirectoryError."""
    text = properties.pop(key, default)
    if text is None or not _NUMBER.fullmatch(text) or not 0 <= int(text) <= INT_MAX:
        raise ForeignDirectoryError(
            f"{key}; {WAY_OUT}", path=path, expected="an integer from 0", found=repr(text)
        )
    return int(text)


def _parse_properties(lines: list[str]) -> dict[str, str]:
    """Parse a Java properties file without line continuations, which a node's identity never
    has.
    """
    properties = {}
    for line in lines:
        line = line.lstrip(" \t\f")
        if not line or line[0] in "#!":
            continue
        match = re.match(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", line)
        if match:
            properties[_unescape(match[1])] = _unescape(match[2])
    return properties


_CONTROL_OF_LETTER = {"t": "\t", "n": "\n", "f": "\f", "r": "\r"}
_LETTER_OF_CONTROL = {control: letter for letter, control in _CONTROL_OF_LETTER.items()}


def _escape(text: str) -> str:
    return re.sub(
        r"[\\=:#! \t\n\f\r]",
        lambda match: "\\" + _LETTER_OF_CONTROL.get(match[0], match[0]),
        text,
    )


def _unescape(text: str) -> str:
    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", _character_of, text)


def _character_of(match: re.Match[str]) -> str:
    code = match[1]
    if len(code) == 5:  # u and four digits
        return chr(int(code[1:], 16))
    return _CONTROL_OF_LETTER.get(code, code)


# ---- the clean mark ------------------------------------------------------------------------------


def read_clean_mark(directory: str | os.PathLike[str]) -> int | None:
    """The broker epoch in the mark; -1 if the mark has none; None without a mark: then the
    directory was not shut down cleanly.
    """
    data = files.read_bytes(Path(directory, CLEAN_MARK))
    if data is None:
        return None
    try:
        epoch = json.loads(data)["brokerEpoch"]
    except (ValueError, KeyError, TypeError, RecursionError):
        # older brokers leave an empty file: existence alone counts
        return -1
    return epoch if type(epoch) is int else -1


def mark_owner(directory: str | os.PathLike[str]) -> bytes | None:
    """The incarnation that wrote the mark; None without a mark, and for an unsigned mark (a
    broker's or an old embedlog's).
    """
    data = files.read_bytes(Path(directory, CLEAN_MARK)) or b""
    try:
        return bytes.fromhex(json.loads(data)[_SIGNATURE])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def read_visit(directory: str | os.PathLike[str]) -> int:
    """The number of the last visit of a broker to the directory; 0: no visit was detected, -1: the
    file is damaged.
    """
    path = Path(directory, VISIT)
    data = files.read_bytes(path, _VISIT_BYTES)
    if data is None:
        return 0
    if _VISIT.fullmatch(data) and int(data[9:17], 16) == codec.crc32c(data[:8]):
        return int(data[:8], 16)
    logger.warning("%s is damaged: all partitions are checked as after a visit of a broker", path)
    return -1


def write_visit(directory: str | os.PathLike[str], mode: int = 0o666) -> int:
    """Write a new number for a visit that was just detected; on disk when it returns.

    Older manifests describe the time before it.
    """
    number = b"%08x" % (int.from_bytes(os.urandom(4)) | 1)
    files.write_atomically(
        Path(directory, VISIT), b"%s %08x\n" % (number, codec.crc32c(number)), mode
    )
    return int(number, 16)


def write_clean_mark(
    directory: str | os.PathLike[str],
    broker_epoch: int = -1,
    mode: int = 0o666,
    *,
    incarnation: bytes | None = None,
) -> None:
    """Write the mark of a clean shutdown; everything else must be on disk before.

    `incarnation` signs it.
    """
    path = Path(directory, CLEAN_MARK)
    content: dict[str, int | str] = {"version": 0, "brokerEpoch": broker_epoch}
    if incarnation:
        content[_SIGNATURE] = incarnation.hex()
    # Kafka writes it in place; here a crash must not leave half a mark, which would not be signed
    files.write_atomically(path, json.dumps(content, separators=(",", ":")).encode(), mode)


def remove_clean_mark(directory: str | os.PathLike[str]) -> bool:
    """Remove the mark durably, before any other change; True if there was one."""
    existed = files.unlink(Path(directory, CLEAN_MARK), missing_ok=True)
    if existed:
        files.sync_directory(directory)
    return existed
