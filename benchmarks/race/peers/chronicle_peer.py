"""Chronicle Queue: a Java program does its turns; here are its facts, its jars and its command."""

from __future__ import annotations

import dataclasses
import fcntl
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import ClassVar

from ..job import Job
from .base import Peer

PROGRAM = Path(__file__).resolve().parent.parent / "chronicle"
BUILD = PROGRAM.parent.parent.parent / "build" / "race-chronicle"
# What Java 17 must let it see: the list of its README.
OPENED = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=jdk.unsupported/sun.misc=ALL-UNNAMED",
    "--add-exports=jdk.compiler/com.sun.tools.javac.file=ALL-UNNAMED",
    "--add-opens=jdk.compiler/com.sun.tools.javac=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.lang.reflect=ALL-UNNAMED",
    "--add-opens=java.base/java.io=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
)
FLAGS = (
    "-Xmx1g",
    "-XX:+UseSerialGC",
    "-Dchronicle.analytics.disable=true",
    "-Dchronicle.disk.monitor.disable=true",
)


class ChroniclePeer(Peer):
    NAME = "chronicle"
    TITLE = "Chronicle Queue (Java)"
    LANGUAGE = "Java"
    INSTALL = "Java 17 with its compiler, and Maven: `make race` fetches the jars"
    CHECKSUM = "none"
    SETTINGS = (
        "a warm JVM; `writingDocument`, blocks of 256 MB, `SyncMode.NONE`; its reader looks each "
        "0.5 ms; "
        "for columns the same loop over records"
    )
    DURABLE = "`SyncMode.SYNC` and `appender.sync()` after each record; threads share an appender"
    LACKS: ClassVar = {"codec": "no compression"}

    @classmethod
    def missing(cls) -> str:
        return ", ".join(name for name in ("java", "javac", "mvn") if shutil.which(name) is None)

    @classmethod
    def version(cls) -> str:
        found = re.search(
            r"chronicle-queue</artifactId><version>([^<]+)", (PROGRAM / "pom.xml").read_text()
        )
        assert found, "no version in pom.xml"
        return found[1]


@cache
def class_path() -> str:
    """The jars and the compiled program, made on first use."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        source = PROGRAM / "ChronicleTurn.java"
        pom = PROGRAM / "pom.xml"
        jars = BUILD / "lib"
        done = BUILD / "ChronicleTurn.class"
        if not any(jars.glob(f"chronicle-queue-{ChroniclePeer.version()}.jar")):
            fetch = [
                "mvn",
                "-q",
                "-B",
                "-f",
                str(pom),
                "dependency:copy-dependencies",
                f"-DoutputDirectory={jars}",
            ]
            _run([*fetch, "-DincludeScope=runtime"])
        if not done.exists() or done.stat().st_mtime < source.stat().st_mtime:
            _run(["javac", "-nowarn", "-cp", f"{jars}/*", "-d", str(BUILD), str(source)])
    return f"{BUILD}:{jars}/*"


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(command[:3])} ended with {done.returncode}: "
            f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )


def command(workload: str, job: Job) -> list[str]:
    """The command line of one turn."""
    words = [f"{key}={value}" for key, value in dataclasses.asdict(job).items()]
    return ["java", *OPENED, *FLAGS, "-cp", class_path(), "ChronicleTurn", workload, *words]
