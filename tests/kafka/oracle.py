#!/usr/bin/env python3
"""A real Apache Kafka 4.x as the judge of our files: broker, dump-log and command-line tools.

The broker may be of any of VERSIONS: EMBEDLOG_KAFKA names the one of this run. The tools are of the
same version, or of REFERENCE for a version whose tools are not fetched.

Needs Java 17 and, the first time, Maven with a reachable repository. Only the standard library is
imported. Everything listens on 127.0.0.1 only.

    oracle.py jars                            fetch the jars of all versions once, print their class
    paths oracle.py tool NAME [ARG …]               run one of Kafka's own tools (see TOOLS), e.g.
    tool dump-log --files F oracle.py verify DIR [--gaps]             dump every segment of every
    partition under DIR; exit 1 and say why if one is bad oracle.py broker DIR [-c key=value …]
    a broker on DIR until standard input closes; prints its address first oracle.py serve DIR [-c
    key=value …]      a broker that serves a copy of a directory some other program wrote oracle.py
    read DIR TOPIC                  serve a copy of DIR and print every record that Kafka's consumer
    gets, as JSON lines
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REFERENCE = "4.4.0"
VERSIONS = {
    REFERENCE: HERE / "pom.xml",
    "4.3.1": HERE / "pom-4.3.1.xml",
    "3.9.1": HERE / "pom-3.9.1.xml",
}
WITHOUT_TOOLS = frozenset({"3.9.1"})
KAFKA_VERSION = os.environ.get("EMBEDLOG_KAFKA", REFERENCE)  # of this run's broker
TOOLS_VERSION = REFERENCE if KAFKA_VERSION in WITHOUT_TOOLS else KAFKA_VERSION
CACHE = Path(os.environ.get("EMBEDLOG_ORACLE_DIR", Path.home() / ".cache" / "embedlog-oracle"))

TOOLS = {
    "broker": "kafka.Kafka",
    "storage": "kafka.tools.StorageTool",
    "dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "topics": "org.apache.kafka.tools.TopicCommand",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "producer-perf": "org.apache.kafka.tools.ProducerPerformance",
    "consumer-perf": "org.apache.kafka.tools.ConsumerPerformance",
    "verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
}
OF_THE_BROKER = frozenset({"broker", "storage"})  # they belong to the broker's version
# dump-log exits 0 in any case; these are its error messages.
COMPLAINT = re.compile(
    r"isvalid: false|Mismatches in |Found timestamp mismatch|Found out of order|Non-consecutive "
    r"offsets in "
    r"|Found .* invalid bytes|^Exception|Index offset: \d+, log offset"
)
PARTITION = re.compile(r"^(?P<topic>[A-Za-z0-9._-]{1,249})-(?P<partition>\d+)$")
SEGMENT_FILES = frozenset({".log", ".index", ".timeindex", ".txnindex", ".snapshot"})
FILES_PER_DUMP = 200  # of one command line
# its start takes two thirds of the time with an archive of its classes, and it is started most often
ARCHIVED = "dump-log"


class OracleUnavailable(RuntimeError):
    """Java, Maven or the jars are missing here; the message names them, in one line."""


class OracleComplaint(AssertionError):
    """Kafka refuses its input; the message has Kafka's own text."""


# ---- the jars ------------------------------------------------------------------------------------


def class_path(version: str = TOOLS_VERSION) -> str:
    """The class path of one version's jars, fetched on first use."""
    if version not in VERSIONS:
        raise OracleUnavailable(f"EMBEDLOG_KAFKA={version} is none of {', '.join(VERSIONS)}")
    if shutil.which("java") is None:
        raise OracleUnavailable("no `java` on the path: install a Java 17 runtime")
    done = CACHE / version / "complete"
    if not _is_complete(done, version):
        if shutil.which("mvn") is None:
            raise OracleUnavailable(
                "no `mvn` on the path: install Maven, or set EMBEDLOG_ORACLE_DIR to a filled cache"
            )
        done.parent.mkdir(parents=True, exist_ok=True)
        with (done.parent / "lock").open("w") as turn:  # two test processes may come here at once
            fcntl.lockf(turn, fcntl.LOCK_EX)
            if not _is_complete(done, version):
                _fetch(version, done)
    return f"{done.parent / 'lib'}/*"


def _is_complete(done: Path, version: str) -> bool:
    """Whether all jars are there: a cache of the time before Maven had the tools of a version has
    those of another one.
    """
    tools = done.parent / "lib" / f"kafka-tools-{version}.jar"
    return done.exists() and (version in WITHOUT_TOOLS or tools.exists())


def _fetch(version: str, done: Path) -> None:
    fresh = done.parent / "lib.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fetch = [
        "mvn",
        "-q",
        "-B",
        "-f",
        str(VERSIONS[version]),
        "dependency:copy-dependencies",
        f"-DoutputDirectory={fresh}",
    ]
    answer = subprocess.run(fetch, capture_output=True, text=True, timeout=600)
    if answer.returncode:
        said = next(
            (line for line in answer.stdout.splitlines() if "ERROR" in line), answer.stderr[-200:]
        )
        raise OracleUnavailable(f"Maven could not fetch Kafka {version}: {said[:300]}")
    shutil.rmtree(done.parent / "lib", ignore_errors=True)
    fresh.rename(done.parent / "lib")
    done.touch()


def _jars(name: str, version: str) -> str:
    is_of_the_version = name in OF_THE_BROKER or version not in WITHOUT_TOOLS
    return class_path(version if is_of_the_version else REFERENCE)


def command(
    name: str,
    *arguments: str | Path,
    heap: str = "512m",
    log_level: str = "ERROR",
    version: str = KAFKA_VERSION,
    options: Iterable[str] = (),
) -> list[str]:
    """The command line that runs one of TOOLS; `version` is the broker's, `options` are Java's."""
    return [
        "java",
        f"-Xmx{heap}",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Xshare:auto",
        *options,
        f"-Dlog4j2.configurationFile={HERE / 'log4j2.xml'}",
        f"-Doracle.log.level={log_level}",
        "-cp",
        _jars(name, version),
        TOOLS[name],
        *map(str, arguments),
    ]


def tool(
    name: str,
    *arguments: str | Path,
    timeout: float = 300,
    check: bool = True,
    version: str = KAFKA_VERSION,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Run one of TOOLS to its end and return its output."""
    options = {"encoding": "utf-8", "errors": "replace", **options}
    with _archive_of_classes(name, version) as of_java:
        line = command(name, *arguments, version=version, options=of_java)
        answer = subprocess.run(line, capture_output=True, text=True, timeout=timeout, **options)
    if check and answer.returncode:
        raise OracleComplaint(
            f"{name} exited {answer.returncode}: {answer.stdout[-2000:]}{answer.stderr[-2000:]}"
        )
    return answer


@contextlib.contextmanager
def _archive_of_classes(name: str, version: str) -> Iterator[list[str]]:
    """Java's options for the archive of the classes of a tool, which its first run writes beside the
    jars. Java ignores one of other jars, or of another Java.
    """
    if name != ARCHIVED:
        yield []
        return
    archive = Path(_jars(name, version)).parent.with_name(f"{name}.jsa")
    if archive.exists():
        yield ["-Xlog:disable", f"-XX:SharedArchiveFile={archive}"]
        return
    if not os.access(archive.parent, os.W_OK):
        yield []
        return
    with tempfile.TemporaryDirectory(dir=archive.parent) as directory:
        written = Path(directory) / archive.name
        yield ["-Xlog:disable", f"-XX:ArchiveClassesAtExit={written}"]
        with contextlib.suppress(FileNotFoundError):  # a Java that writes none
            written.rename(archive)


# ---- dump-log ------------------------------------------------------------------------------------


def complaints(printed: str, gaps: bool) -> list[str]:
    """The lines of dump-log's output that tell of something wrong.

    It also complains of every segment whose base offset is not 0 ("-1 is followed by BASE"): that
    is its own flaw and left out. Gaps between offsets are natural after compaction and allowed
    where `gaps` says so.
    """
    found = []
    lines = printed.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("| offset") or not COMPLAINT.search(line):
            continue
        if line.startswith("Non-consecutive offsets in "):
            base = int(Path(line.removeprefix("Non-consecutive offsets in ")).stem)
            following = []
            for after in lines[number + 1 :]:
                if " is followed by " not in after:
                    break
                following.append(after.strip())
            if gaps or following == [f"-1 is followed by {base}"]:
                continue
            line += ": " + "; ".join(following[:5])
        found.append(line)
    return found


def verify(directory: str | Path, gaps: bool = False, compacted: Collection[str] = ()) -> int:
    """Let dump-log read every segment and index below `directory`; return how many files it read.

    The directory must have been closed cleanly (indexes trimmed). Raises OracleComplaint with
    dump-log's words if it finds anything wrong; `gaps` allows holes between offsets, as compaction
    leaves them, everywhere, `compacted` in these topics.
    """
    below = sorted(Path(directory).rglob("*"))
    files = [
        path for path in below if path.suffix in SEGMENT_FILES and PARTITION.match(path.parent.name)
    ]
    # dump-log fails on the index of an empty segment
    files = [path for path in files if path.stat().st_size]
    if not files:
        raise OracleComplaint(f"{directory}: no segment files")
    holey = [path for path in files if gaps or path.parent.name.rpartition("-")[0] in compacted]
    for allowed, some in ((True, holey), (False, [path for path in files if path not in holey])):
        for first in range(0, len(some), FILES_PER_DUMP):
            names = ",".join(map(str, some[first : first + FILES_PER_DUMP]))
            answer = tool(
                "dump-log", "--deep-iteration", "--files", names, timeout=600, check=False
            )
            said = complaints(answer.stdout + answer.stderr, allowed)
            if answer.returncode or said:
                raise OracleComplaint(
                    f"{directory}: dump-log exited {answer.returncode}\n" + "\n".join(said[:40])
                )
    return len(files)


# ---- the broker ----------------------------------------------------------------------------------


def free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Broker:
    """One node, broker and controller at once, over `log_dir`; its metadata log is in
    `log_dir + "-metadata"`.

    Use it as a context manager. `stop()` asks for a controlled shutdown, `kill()` is kill -9.
    """

    def __init__(
        self,
        log_dir: str | Path,
        config: Mapping[str, object] | None = None,
        heap: str = "1g",
        version: str = KAFKA_VERSION,
    ) -> None:
        self.version = version
        self.log_dir = Path(log_dir).resolve()
        self.metadata_dir = Path(f"{self.log_dir}-metadata")
        self.heap = heap
        self.port = free_port()
        controller = free_port()
        self.bootstrap = f"127.0.0.1:{self.port}"
        self.config = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": self.log_dir,
            "metadata.log.dir": self.metadata_dir,
            "num.partitions": 1,
            "offsets.topic.num.partitions": 1,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "auto.create.topics.enable": "false",
            "controlled.shutdown.enable": "true",
            "log.retention.ms": -1,
            "log.segment.delete.delay.ms": 1000,
        } | dict(config or {})
        self.process: subprocess.Popen[bytes] | None = None
        self._log = Path(f"{self.log_dir}-broker.txt")
        self._properties = Path(f"{self.log_dir}-broker.properties")

    def start(self, timeout: float = 180) -> Broker:
        self.log_dir.mkdir(parents=True, exist_ok=True)
        self._properties.write_text(
            "".join(f"{key}={value}\n" for key, value in self.config.items())
        )
        if not (self.metadata_dir / "meta.properties").exists():
            identity = ("-t", "embedlogoracle000000AA", "-c", self._properties)
            tool("storage", "format", "--ignore-formatted", *identity, version=self.version)
        with self._log.open("ab") as log:
            line = command(
                "broker", self._properties, heap=self.heap, log_level="INFO", version=self.version
            )
            self.process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + timeout
        while True:
            if self.process.poll() is not None:
                raise OracleComplaint(
                    f"the broker exited {self.process.returncode}: {self.said()[-4000:]}"
                )
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), timeout=1),
            ):
                return self
            if time.monotonic() > deadline:
                self.kill()
                raise OracleComplaint(
                    f"the broker did not listen within {timeout} s: {self.said()[-4000:]}"
                )
            # a foreign process; its port is the only sign, and the deadline is above
            time.sleep(0.05)

    def said(self) -> str:
        """The log output of the broker: its recovery decisions are there."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def forget(self) -> None:
        """Empty the broker's log, so that `said` returns later lines only."""
        self._log.write_text("")

    def stop(self, timeout: float = 60) -> None:
        self._end(signal.SIGTERM, timeout)

    def kill(self) -> None:
        self._end(signal.SIGKILL, 10)

    def _end(self, how: signal.Signals, timeout: float) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            try:
                self.process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)
                raise
            finally:
                self.process = None

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def tool(
        self, name: str, *arguments: str | Path, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        return tool(name, "--bootstrap-server", self.bootstrap, *arguments, **options)

    def create_topic(
        self, topic: str, partitions: int = 1, config: Mapping[str, object] | None = None
    ) -> None:
        options = [
            word for key, value in (config or {}).items() for word in ("--config", f"{key}={value}")
        ]
        self.tool(
            "topics",
            "--create",
            "--topic",
            topic,
            "--partitions",
            str(partitions),
            "--replication-factor",
            "1",
            *options,
        )

    def read(
        self, topic: str, isolation: str = "read_uncommitted", timeout_ms: int = 5000
    ) -> Iterator[dict[str, object]]:
        """Every record of `topic`, as Kafka's console consumer prints it; keys and values in
        Latin-1, one character a byte.

        Values must hold no newline and keys no tab: the tool separates with them.
        """
        shown = [
            f"print.{name}=true"
            for name in ("partition", "offset", "timestamp", "key", "value", "headers")
        ]
        shown += ["key.separator=\t", "null.literal=\\N"]
        answer = self.tool(
            "console-consumer",
            "--topic",
            topic,
            "--from-beginning",
            "--timeout-ms",
            str(timeout_ms),
            "--isolation-level",
            isolation,
            *(word for each in shown for word in ("--formatter-property", each)),
            check=False,
            timeout=600,
            encoding="latin-1",
        )
        for line in answer.stdout.removesuffix("\n").split("\n") if answer.stdout else ():
            stamp, partition, offset, headers, key, value = line.split("\t", 5)
            kind, _, time_ms = stamp.partition(":")
            yield {
                "partition": int(partition.removeprefix("Partition:")),
                "offset": int(offset.removeprefix("Offset:")),
                "timestamp_type": kind,
                "timestamp_ms": int(time_ms),
                "headers": headers,
                "key": None if key == "\\N" else key,
                "value": None if value == "\\N" else value,
            }


# ---- serving the files of another program --------------------------------------------------------


def topics_in(directory: Path) -> dict[str, int]:
    """Topic names and partition counts found below a log directory, internal topics left out."""
    found: dict[str, int] = {}
    for path in directory.iterdir():
        match = PARTITION.match(path.name)
        if match and path.is_dir() and not match["topic"].startswith("__"):
            found[match["topic"]] = max(found.get(match["topic"], 0), int(match["partition"]) + 1)
    return found


def move_in(broker: Broker, source: Path, topics: Iterable[str]) -> None:
    """Put a copy of `source`'s files below a stopped broker that has made the topics already; its
    own topic ids stay.
    """
    wanted = set(topics)
    for path in source.iterdir():
        target = broker.log_dir / path.name
        match = PARTITION.match(path.name)
        if match and match["topic"] in wanted:
            metadata = (target / "partition.metadata").read_bytes()
            shutil.rmtree(target)
            shutil.copytree(path, target)
            (target / "partition.metadata").write_bytes(metadata)
        elif path.is_file() and (
            path.name.endswith("-checkpoint") or path.name == ".kafka_cleanshutdown"
        ):
            shutil.copy(path, target)
    if not (source / ".kafka_cleanshutdown").exists():
        (broker.log_dir / ".kafka_cleanshutdown").unlink(missing_ok=True)


@contextlib.contextmanager
def serving(
    directory: str | Path,
    config: Mapping[str, object] | None = None,
    topics: Iterable[str] | None = None,
) -> Iterator[Broker]:
    """A broker that serves a copy of `directory`, which some other program wrote.

    A broker takes topics from its metadata log, not from the directories it finds. So the topics
    are created first, in an empty broker. Then the files are moved to the broker's own topic ids,
    and the broker starts on them.
    """
    source = Path(directory)
    with tempfile.TemporaryDirectory(prefix="oracle-") as work:
        broker = Broker(Path(work) / "log", config)
        present = topics_in(source)
        wanted = {topic: present[topic] for topic in (topics or present)}
        with broker:
            for topic, partitions in wanted.items():
                broker.create_topic(topic, partitions)
        move_in(broker, source, wanted)
        broker.forget()
        with broker:
            yield broker


# ---- the command line ----------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("jars")
    run = commands.add_parser("tool", add_help=False)
    run.add_argument("name", choices=sorted(TOOLS))
    run.add_argument("arguments", nargs=argparse.REMAINDER)
    for name in ("verify", "broker", "serve", "read"):
        each = commands.add_parser(name)
        each.add_argument("directory", type=Path)
        if name == "verify":
            each.add_argument(
                "--gaps",
                action="store_true",
                help="allow holes between offsets, as compaction leaves them",
            )
        if name == "read":
            each.add_argument("topic")
        if name in ("broker", "serve"):
            each.add_argument("-c", "--config", action="append", default=[], metavar="KEY=VALUE")
    return parser.parse_args()


def run(options: argparse.Namespace) -> int:
    if options.command == "jars":
        for version in VERSIONS:
            print(class_path(version))
    elif options.command == "tool":
        return subprocess.call(command(options.name, *options.arguments))
    elif options.command == "verify":
        print(f"{verify(options.directory, options.gaps)} files, nothing to complain of")
    elif options.command == "read":
        with serving(options.directory, topics=[options.topic]) as broker:
            for record in broker.read(options.topic):
                print(json.dumps(record))
    else:
        config = dict(item.split("=", 1) for item in options.config)
        with (
            serving(options.directory, config)
            if options.command == "serve"
            else Broker(options.directory, config) as broker
        ):
            print(broker.bootstrap, flush=True)
            sys.stdin.read()
    return 0


def main() -> int:
    try:
        return run(arguments())
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OracleUnavailable, OracleComplaint) as problem:
        print(f"oracle: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
