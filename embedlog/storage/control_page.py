"""A partition's control page and its durable record, which states how much of the log is on stable
storage.

- Page and lock file are never unlinked and never renamed over; link(2) of a finished temporary
  creates a page, and a rebuild happens in place. Both need the append lock.
- A page counts only in the incarnation of the directory that it names, and only as the inode that it
  names. A writer rebuilds a page with a damaged tuple from the log, also while others have it
  mapped.
- A page of an earlier incarnation is only a lower bound: the offsets it published were written,
  unless the page cache was lost.
- The durable record is stored after the sync that it describes, so it is never too high but may be
  low. The slot on disk does not change until the other slot is on disk.
"""

from __future__ import annotations

import os
import struct
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from embedlog._native import codec, system
from embedlog._native.system import Published
from embedlog.errors import StorageError, UnsupportedFormatError
from embedlog.storage import file_names, files

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


@cache
def boot_number() -> int:
    """A number for this boot of the machine: no process and no monotonic clock outlives it. 0 if
    the boot is unknown.
    """
    try:
        text = _BOOT_ID.read_text(encoding="ascii")
    except OSError:
        return 0  # no such file: every opening then counts as one after a reboot
    return _hash(text.encode()) if text else 0


def boot_and_mount_number(path: Path) -> int:
    """A number for the page cache of a directory: this boot and this mount. 0 if either is unknown.

    A file system that is unmounted, detached or shut down loses unsynced data even if the machine
    keeps running. Two mounts of one file system (bind mounts, containers) have two numbers: that
    costs a recovery as after a reboot, never a record. Before Linux 6.8 mounts have no unique id,
    so the number identifies the boot only.
    """
    boot = boot_number()
    mount = system.mount_id(os.fspath(path))
    if not boot or mount < 0:
        return 0
    if not mount:
        return boot
    return _hash(b"%d %d" % (boot, mount))


def exact_boot_and_mount_number(path: Path) -> int:
    """As `boot_and_mount_number`, and 0 also if the mount has no number: the disk may have been
    detached.
    """
    if system.mount_id(os.fspath(path)) <= 0:
        return 0
    return boot_and_mount_number(path)


def _hash(text: bytes) -> int:
    # a word of a page is signed. hashlib loads OpenSSL, which each program would pay
    return codec.xxh3_64(text, 0) >> 8


class PageFile:
    """The mapped page of one partition. Threads: as `system.Page`."""

    def __init__(self, path: Path, page: system.Page, device: int, inode: int) -> None:
        self.path = path
        self.page = page
        self.device = device
        self.inode = inode

    @property
    def identity_device(self) -> int:
        """The device number in the page; 0 on a network file system, where each host has its own
        number.
        """
        return 0 if self.page.locked else self.device

    def close(self) -> None:
        self.page.close()


def map_page(path: Path, writable: bool, locked: bool = False) -> PageFile | None:
    """Map an existing page; None if it is absent or too short."""
    page_facts = files.facts_of(path)
    if page_facts is None or page_facts.size < system.PAGE_BYTES:
        return None
    with files.opened(path, files.WRITE if writable else files.READ) as fd:
        facts = files.facts(fd, path)
        page = system.Page(fd, writable, locked)
    return PageFile(path, page, facts.device, facts.inode)


def make_page(path: Path, mode: int, locked: bool = False) -> PageFile:
    """Map the page; create it if it is absent. REQUIRES the append lock; the caller writes the
    content.
    """
    page_facts = files.facts_of(path)
    if page_facts is not None and page_facts.size < system.PAGE_BYTES:
        # a foreign process truncated it: keep the inode, rebuild the content
        with files.opened(path, files.WRITE) as fd:
            files.allocate(fd, system.PAGE_BYTES, path)
    elif page_facts is None:
        temporary = path.with_name(path.name + "-new")
        files.unlink(temporary, missing_ok=True)
        with files.opened(temporary, files.EXCLUSIVE, mode) as fd:
            files.allocate(fd, system.PAGE_BYTES, temporary)
        files.link(temporary, path)
        files.unlink(temporary)
    mapped = map_page(path, writable=True, locked=locked)
    if mapped is None:
        raise StorageError("the control page disappeared while it was created", path=path)
    return mapped


def check(mapped: PageFile, expected: Any) -> bool:
    """Whether this page is valid now. Raises UnsupportedFormatError if another version of embedlog
    wrote it.
    """
    state = mapped.page.check(expected)
    if state == system.NEWER:
        raise UnsupportedFormatError(
            "the control page was written by a newer embedlog; close its processes first",
            path=mapped.path,
            expected=f"version {system.PAGE_VERSION}",
            found=mapped.page.version(),
        )
    if state == system.OLDER:
        raise UnsupportedFormatError(
            "an older embedlog has this log open; close its processes first",
            path=mapped.path,
            expected=f"version {system.PAGE_VERSION}",
            found=mapped.page.version(),
        )
    return state == system.VALID


def read_earlier_publication(
    mapped: PageFile, topic_id_bytes: bytes, partition: int
) -> Published | None:
    """The state that a page of an earlier incarnation published into the present page cache; None
    if it proves nothing.
    """
    page = mapped.page
    cache = boot_and_mount_number(mapped.path)
    if not cache or page.word(system.WORD_CACHE) != cache:
        return None
    if not is_in_place(mapped, topic_id_bytes, partition) or page.word(system.WORD_CUT_INTENT):
        return None  # published bytes may be cut already
    return page.read()


def is_in_place(mapped: PageFile, topic_id_bytes: bytes, partition: int) -> bool:
    """Whether the page was written at its current place, in any incarnation; False for a copied
    page.
    """
    own = system.identity(
        mapped.page.incarnation(), topic_id_bytes, partition, mapped.identity_device, mapped.inode
    )
    return bool(mapped.page.check(own) == system.VALID)


class Durable(NamedTuple):
    """The end offset that was on stable storage when this was stored, and its segment."""

    offset: int
    segment_base: int
    sequence: int


# magic, sequence, topic id, offset, segment base, CRC-32C of the preceding fields
_SLOT = struct.Struct(">8sQ16sqqI")
_DURABLE_MAGIC: Final = b"ELOGDUR1"
# the record on disk may be this much older than the acknowledged offset
RECORD_AGE_NS: Final = 100_000_000


class DurableRecord:
    """`embedlog.durable`: two slots; the parity of the sequence selects the slot. Threads: under
    the sync lock.
    """

    def __init__(self, directory: Path, topic_id_bytes: bytes) -> None:
        self.path = directory / file_names.DURABLE
        self._topic_id_bytes = topic_id_bytes
        self._synced_ns = -RECORD_AGE_NS

    def read(self) -> Durable | None:
        return self._newest_of(files.read_bytes(self.path) or b"")

    def invalid_slots(self) -> list[int]:
        """The positions of slots that were written, and are not valid."""
        raw = files.read_bytes(self.path) or b""
        positions = []
        for position in range(0, len(raw), _SLOT.size):
            slot = raw[position : position + _SLOT.size]
            is_written = bool(slot.strip(b"\0"))
            if is_written and self._decode(slot) is None:
                positions.append(position)
        return positions

    def _newest_of(self, raw: bytes) -> Durable | None:
        """The valid record with the highest sequence in the two slots."""
        first = self._decode(raw[: _SLOT.size])
        second = self._decode(raw[_SLOT.size : 2 * _SLOT.size])
        if first is None or second is None:
            return first or second
        return second if second.sequence > first.sequence else first

    def _decode(self, raw: bytes) -> Durable | None:
        """The record in a slot; None if the slot is not valid."""
        if len(raw) < _SLOT.size:
            return None
        magic, sequence, topic_id_bytes, offset, base, check_sum = _SLOT.unpack(raw)
        if (
            magic != _DURABLE_MAGIC
            or topic_id_bytes != self._topic_id_bytes
            or check_sum != codec.crc32c(raw[: _SLOT.size - 4])
        ):
            return None
        return Durable(offset, base, sequence)

    def store(self, offset: int, segment_base: int, mode: int) -> None:
        """Store a new value; every RECORD_AGE_NS, sync the previous value and continue in the other
        slot.

        A sync of the record for each sync of the log would make every durable append wait twice.
        """
        with files.opened(self.path, files.CREATE, mode) as fd:
            before = self._newest_of(files.pread(fd, 2 * _SLOT.size, 0, self.path))
            sequence = before.sequence + 2 if before else 1
            if before and system.boot_ns() - self._synced_ns >= RECORD_AGE_NS:
                files.datasync(fd, self.path)
                self._synced_ns = system.boot_ns()
                sequence = before.sequence + 1
            self._write(fd, sequence, offset, segment_base)

    def lower(self, offset: int, segment_base: int, mode: int) -> None:
        """Store a lower value in both slots, on disk when this returns: the log is about to be cut
        there. No effect on a record that is not above it. REQUIRES the sync lock.
        """
        before = self.read()
        if before is None or before.offset <= offset:
            return
        with files.opened(self.path, files.WRITE) as fd:
            for sequence in (before.sequence + 1, before.sequence + 2):
                self._write(fd, sequence, offset, segment_base)
                files.datasync(fd, self.path)

    def _write(self, fd: int, sequence: int, offset: int, segment_base: int) -> None:
        """Write the slot that the parity of the sequence selects."""
        fields = (_DURABLE_MAGIC, sequence, self._topic_id_bytes, offset, segment_base, 0)
        body = _SLOT.pack(*fields)[:-4]
        slot = body + struct.pack(">I", codec.crc32c(body))
        files.write_all(fd, slot, _SLOT.size * (sequence & 1), self.path)

    def sync(self) -> None:
        if files.exists(self.path):
            with files.opened(self.path) as fd:
                files.datasync(fd, self.path)
