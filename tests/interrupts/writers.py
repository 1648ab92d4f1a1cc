"""Contains those who must be able to write after an interrupt: another thread of the process, and
another process.

The process lives for many interrupts: `python -m tests.interrupts.writers DIRECTORY` answers each
line of its input.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, Self

import embedlog
from embedlog import OffsetAndMetadata, TopicPartition

TOPIC = "t"
PARTITIONS = 2
# Only a lock that nobody will release takes so long.
PATIENCE_S = 10.0
SETTINGS: dict[str, Any] = {
    "housekeeping": False,
    "lock.timeout.ms": int(PATIENCE_S * 1000),
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
}


class Writer:
    """Writes in each way that takes a lock of the directory: records, offsets of a group,
    transactions, topics.
    """

    def __init__(self, log: embedlog.Log, name: str) -> None:
        self._log = log
        self._name = name
        self._count = 0
        self._producer = log.producer(linger_ms=0)
        self._group = log.consumer(group_id=f"{name}-group", enable_auto_commit=False)
        self._group.assign([TopicPartition(TOPIC, 0)])
        self._transactions = log.producer(
            transactional_id=f"{name}-id", max_block_ms=int(PATIENCE_S * 1000)
        )
        self._transactions.init_transactions()

    def write(self, topics: bool = False) -> list[bytes]:
        """One record in each partition, a commit of offsets and a transaction. The values."""
        self._count += 1
        values = [
            b"%s %d.%d" % (self._name.encode(), self._count, number)
            for number in range(PARTITIONS + 1)
        ]
        for number in range(PARTITIONS):
            self._producer.send(TOPIC, values[number], partition=number).result(PATIENCE_S)
        self._group.commit({TopicPartition(TOPIC, 0): OffsetAndMetadata(self._count)})
        with self._transactions.transaction():
            self._transactions.send(TOPIC, values[PARTITIONS], partition=0)
        if topics:
            name = f"{self._name}-topic"
            self._log.create_topic(name)
            self._log.delete_topic(name)
        return values


class OtherThread:
    """A thread that makes one call after another."""

    def __init__(self) -> None:
        self._call: Callable[[], Any] | None = None
        self._answer: Any = None
        self._asked = threading.Semaphore(0)
        self._answered = threading.Semaphore(0)
        threading.Thread(target=self._run, name="other-thread", daemon=True).start()

    def _run(self) -> None:
        while True:
            self._asked.acquire()
            call = self._call
            if call is None:
                return
            try:
                self._answer = call()
            except BaseException as problem:  # noqa: BLE001  (raised below)
                self._answer = problem
            del call
            self._answered.release()

    def call(self, call: Callable[[], Any]) -> Any:
        """The result of the call. Raises what it raises, and AssertionError if it does not end."""
        self._call = call
        self._asked.release()
        if not self._answered.acquire(timeout=2 * PATIENCE_S):
            raise AssertionError("a call of another thread does not end")
        answer = self._answer
        self._answer = None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def close(self) -> None:
        self._call = None
        self._asked.release()


class OtherProcess:
    """A process with the directories open, which writes on request."""

    def __init__(self, paths: list[str]) -> None:
        program = [sys.executable, "-m", "tests.interrupts.writers", *paths]
        self._process = subprocess.Popen(
            program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        assert self._ask("ready") == "ready"

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        return self._process.stdout.readline().rstrip()

    def write(self, topics: bool = False) -> list[bytes]:
        """As `Writer.write`. Raises AssertionError with the error of the process."""
        answer = self._ask("topics" if topics else "write")
        if not answer.startswith("written "):
            raise AssertionError(f"another process cannot write: {answer}")
        return [value.encode() for value in answer.removeprefix("written ").split("|")]

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def main(paths: list[str]) -> None:
    log = embedlog.open(paths if len(paths) > 1 else paths[0], config=SETTINGS)
    writer = Writer(log, "process")
    for line in sys.stdin:
        if line == "ready\n":
            answer = "ready"
        else:
            try:
                answer = "written " + "|".join(
                    value.decode() for value in writer.write(line == "topics\n")
                )
            except Exception as problem:  # noqa: BLE001  (the answer)
                answer = f"{type(problem).__name__}: {problem}".replace("\n", " ")
        print(answer, flush=True)
    log.close()


if __name__ == "__main__":
    main(sys.argv[1:])
