"""Checks the file system of a log directory.

A file system without known locks and shared mappings is refused, unless `shared="locks"` accepts
that.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from embedlog._native import system
from embedlog.errors import StorageError, UnsupportedFilesystemError

# f_type of statfs for file systems whose locks and shared mappings hold between processes of one
# host.
LOCAL_FILESYSTEMS: Final = {
    0xEF53: "ext4",
    0x58465342: "xfs",
    0x9123683E: "btrfs",
    0x01021994: "tmpfs",
    0x794C7630: "overlayfs",
    0x2FC12FC1: "zfs",
    0xF2F52010: "f2fs",
    0xCA451A4E: "bcachefs",
    0x858458F6: "ramfs",
}
REMOTE_FILESYSTEMS: Final = {
    0x6969: "NFS",
    0xFF534D42: "SMB",
    0xFE534D42: "SMB",
    0x517B: "SMB",
    0x65735546: "FUSE",
    0x00C36400: "Ceph",
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
    0x01021997: "9p",
}


def check_filesystem(path: Path, shared: str) -> None:
    """Refuse a file system with unreliable locks or mappings, unless `shared="locks"` accepts
    that.
    """
    kind = system.filesystem(os.fspath(path))
    if kind < 0:
        raise StorageError(
            "cannot read the type of the file system", errno=system.errno_of(kind), path=path
        )
    if kind in LOCAL_FILESYSTEMS or shared == "locks":
        return
    name = REMOTE_FILESYSTEMS.get(kind, f"type 0x{kind:x}")
    raise UnsupportedFilesystemError(
        f"file system {name} is not known to keep locks and mapped pages between processes; "
        'shared="locks" opens it without any mapping, by locks alone: that is slower, and a lock '
        "that the file system loses can corrupt the log",
        path=path,
        expected="one of " + ", ".join(sorted(LOCAL_FILESYSTEMS.values())),
        found=name,
    )
