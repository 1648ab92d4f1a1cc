"""Mutants of files, digests, checkpoints, process slots and leases."""

from __future__ import annotations

import os

from embedlog.storage import checkpoints, files
from tests.support.mutants.registry import replaces


@replaces("skip_dir_fsync", "embedlog.storage.files:sync_directory")
def _no_sync_of_a_directory(original, path):
    return None


@replaces("skip_checkpoint_fsync", "embedlog.storage.files:sync")
def _no_sync_of_a_temporary_file(original, fd, path=""):
    if not os.fspath(path).endswith(files.TEMPORARY):
        original(fd, path)


@replaces("blind_checkpoints", "embedlog.storage.checkpoints:update")
def _written_without_reading(original, path, changes, mode=0o666):
    checkpoints.write_offsets(
        path, {key: offset for key, offset in changes.items() if offset is not None}, mode
    )


@replaces("no_interval_digest", "embedlog.storage.interval_digests:open_records")
def _no_digests(original, directory, base, *, usable=True):
    return original(directory, base, usable=False)


# ---- process slots -----------------------------------------------------------------------------------


@replaces("no_nonce", "embedlog.storage.liveness:_state_of")
def _sign_of_any_holder(original, process_slot, entry):
    return original(process_slot, entry._replace(nonce=process_slot.nonce))


@replaces("no_probe", "embedlog.storage.liveness:_state_of")
def _sign_of_life(original, process_slot, entry):
    return original(process_slot, entry._replace(is_locked=True, nonce=process_slot.nonce))


@replaces("keep_inherited", "embedlog.storage.liveness:Liveness.abandon")
def _descriptors_stay_open_in_the_child(original, self):
    self._holder_fd = self._probe_fd = -1
    original(self)


@replaces("no_lease_check", "embedlog.storage.liveness:Lease.is_expired")
def _never_lapsed(original, self):
    return False
