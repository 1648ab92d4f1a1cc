"""Writers and group members of several processes share a log on each file system that this machine
can mount.

`tmpfs`, an overlay and a bind mount are used as a local file system; a FUSE mount (bindfs) needs
`shared="locks"`. The mounts are in a mount namespace of the child that runs the experiment, so they
end with it. docs/network-file-systems.md has the results.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import embedlog

WRITERS = 3
COUNT = 100
MOUNTS = {
    "tmpfs": "mount -t tmpfs tmpfs {at}",
    "overlayfs": "mkdir {other}/l {other}/u {other}/w && "
    "mount -t overlay overlay -o lowerdir={other}/l,upperdir={other}/u,workdir={other}/w {at}",
    "bind": "mount --bind {other} {at}",
    "FUSE": "bindfs --no-allow-other {other} {at}",
}

PROGRAM = """
import multiprocessing, os, signal, sys
import embedlog

DIRECTORY, CONFIG, WRITERS, COUNT = sys.argv[1], {"shared": sys.argv[2]}, int(sys.argv[3]), int(sys.argv[4])

def opened():
    return embedlog.open(DIRECTORY, config=CONFIG)

def write(number, count, ready=None):
    with opened() as log, log.producer() as producer:
        for n in range(count):
            producer.send("t", b"%d-%d" % (number, n), key=b"%d" % number).result(timeout=100)
            if ready is not None and n == 10:
                ready.set()

def read(total, found):
    with opened() as log, log.consumer("t", group_id="g", auto_offset_reset="earliest") as consumer:
        while not total.value or found["count"].value < total.value:
            records = consumer.poll(timeout=0.2)
            with found["count"].get_lock():
                found["count"].value += len(records)
            for record in records:
                found["queue"].put(record.value)
            consumer.commit()

if __name__ == "__main__":
    with opened() as log:
        log.create_topic("t", partitions=3)
    queue, ready = multiprocessing.Queue(), multiprocessing.Event()
    count, total = multiprocessing.Value("q", 0), multiprocessing.Value("q", 0)
    writers = [multiprocessing.Process(target=write, args=(n, COUNT)) for n in range(WRITERS)]
    victim = multiprocessing.Process(target=write, args=(9, 1 << 40, ready))
    readers = [multiprocessing.Process(target=read, args=(total, {"queue": queue, "count": count})) for _ in range(2)]
    for each in (*writers, victim, *readers):
        each.start()
    assert ready.wait(100)
    os.kill(victim.pid, signal.SIGKILL)
    for each in (*writers, victim):
        each.join(200)
    assert [each.exitcode for each in writers] == [0] * WRITERS
    with opened() as log:
        written = {}
        for record in log.scan("t").records():
            number, n = map(int, record.value.split(b"-"))
            written.setdefault(number, []).append(n)
        assert all(written[n] == list(range(COUNT)) for n in range(WRITERS)), written
        assert written[9] == list(range(len(written[9])))
        assert log.check().good
    total.value = sum(map(len, written.values()))
    seen = [queue.get(timeout=100) for _ in range(total.value)]
    for each in readers:
        each.join(100)
    assert len(set(seen)) == len(seen)
"""


def shared(name: str, folder: Path, shared: str) -> subprocess.CompletedProcess[str]:
    """Run the experiment on a new mount. Skips where such a mount is not possible."""
    at = folder / "at"
    other = folder / "other"
    at.mkdir(), other.mkdir()
    (folder / "program.py").write_text(PROGRAM)
    mount = MOUNTS[name].format(at=at, other=other)
    if (
        os.geteuid() != 0
        or shutil.which("unshare") is None
        or (name == "FUSE" and shutil.which("bindfs") is None)
    ):
        pytest.skip(f"a mount of {name} needs root, unshare, and bindfs for FUSE")
    probe = subprocess.run(
        ["unshare", "-m", "sh", "-c", mount], capture_output=True, text=True, timeout=60
    )
    if probe.returncode != 0:
        pytest.skip(f"no mount of {name}: {probe.stderr.strip()[-200:]}")
    for each in other.iterdir():
        shutil.rmtree(each)
    run = (
        f"{sys.executable} {folder}/program.py {at}/log {shared} {WRITERS} {COUNT}; result=$?; "
        f"umount {at}; exit $result"
    )
    return subprocess.run(
        ["unshare", "-m", "sh", "-c", f"{mount} && {{ {run}; }}"],
        capture_output=True,
        text=True,
        timeout=280,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "setting"), [("tmpfs", "no"), ("overlayfs", "no"), ("bind", "no"), ("FUSE", "locks")]
)
def test_processes_share_a_log_on_this_file_system(name: str, setting: str, tmp_path: Path) -> None:
    answer = shared(name, tmp_path, setting)
    assert answer.returncode == 0, answer.stderr[-3000:]


@pytest.mark.slow
def test_a_mapped_log_on_fuse_is_refused(tmp_path: Path) -> None:
    answer = shared("FUSE", tmp_path, "no")
    assert embedlog.UnsupportedFilesystemError.__name__ in answer.stderr
