"""Type checkers and the API: documented code passes, misspelt options and wrong values do not;
types exist at run time.

All code of the documents, the examples and the samples below go through strict mypy and pyright
once each. A checker that cannot run here is skipped with the reason.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import embedlog
from embedlog.config.client import ConsumerConfig, ProducerConfig
from embedlog.config.options import Options, options_of, parse
from embedlog.config.topic import LogConfig, TopicConfig
from embedlog.config.typed_options import ConsumerOptions, LogOptions, ProducerOptions, TopicOptions
from tests.conftest import ROOT
from tests.support.documents import BLOCK, PAGES, PROGRAMS, program

GENERIC = ("Producer", "Consumer", "Record", "AsyncProducer", "AsyncConsumer")
APART = {"key_serializer", "value_serializer", "key_deserializer", "value_deserializer", "group_id"}

# Inferred types: checkers compare each type with the one written here.
RIGHT = """
import json
from typing import Any, assert_type
import embedlog
from embedlog import AsyncConsumer, AsyncProducer, Consumer, Future, Producer, Record, RecordMetadata, serializers
from embedlog.schemas import AvroDeserializer, AvroSerializer, JsonSchemaSerializer, Schema, SchemaRegistry

class Point:
    x: int = 0

class PointSerializer:
    def serialize(self, topic: str, headers: Any, data: Point) -> bytes:
        return b"%d" % data.x

def point(data: bytes) -> Point:
    return Point()

def annotated(producer: Producer[str, bytes], consumer: Consumer[bytes, Point], bare: Producer, record: Record) -> None:
    producer.send("t", b"v", "k")
    for each in consumer:
        assert_type(each, Record[bytes, Point])
        assert_type(each.offset, int)
        print(each.value.x, each.key.hex())

def newest(log: embedlog.Log, start: embedlog.OffsetBound, level: embedlog.IsolationLevel = "read_committed") -> embedlog.Scan:
    return log.scan("t", start_offset=start, isolation_level=level)

log = embedlog.open("data", log_retention_ms=5, config={"log.segment.bytes": "1000"})
log.create_topic("t", 3, compression_type="zstd", cleanup_policy=["compact", "delete"], exist_ok=True)
assert_type(log.create_topics(["a", embedlog.NewTopic("b", 3)]), list[str])
assert_type(log.producer(), Producer[bytes, bytes])
assert_type(log.producer(linger_ms=0.5, acks=1), Producer[bytes, bytes])
assert_type(log.producer(key_serializer=str.encode), Producer[str, bytes])
assert_type(log.producer(value_serializer=PointSerializer()), Producer[bytes, Point])
assert_type(log.producer(value_serializer=serializers.json), Producer[bytes, Any])
log.producer(value_serializer=lambda value: json.dumps(value).encode()).send("t", {"a": 1})
log.producer({"value.serializer": serializers.json}).send("t", {"a": 1})
assert_type(log.producer().send("t", b"v"), Future[RecordMetadata])
assert_type(log.producer().send("t", b"v").result().offset, int)
assert_type(log.producer().send_batch("t", [b"v"]).result(), list[tuple[str, int, int, int]])
assert_type(log.consumer("t"), Consumer[bytes, bytes])
assert_type(log.consumer("t", value_deserializer=point), Consumer[bytes, Point])
assert_type(log.consumer("t", value_deserializer=serializers.from_string).poll(), list[Record[bytes, str]])
assert_type(log.producer(value_serializer=serializers.msgpack), Producer[bytes, Any])
assert_type(log.consumer("t", value_deserializer=serializers.from_arrow), Consumer[bytes, Any])
assert_type(log.producer().send("t", b"v", expected_offset=5), Future[RecordMetadata])
registry = SchemaRegistry(log)
assert_type(registry.register("t-value", Schema("{}", "JSON")), int)
def to_dict(point: Point) -> dict[str, Any]:
    return {"x": point.x}
def from_dict(datum: Any) -> Point:
    return Point()
assert_type(log.producer(value_serializer=AvroSerializer(registry, {"type": "int"})), Producer[bytes, Any])
assert_type(log.producer(value_serializer=AvroSerializer(registry, "{}", to_dict)), Producer[bytes, Point])
assert_type(log.producer(key_serializer=AvroSerializer(registry, "{}", to_dict, field="key")), Producer[Point, bytes])
assert_type(log.producer(value_serializer=JsonSchemaSerializer(registry, {})), Producer[bytes, Any])
assert_type(log.consumer("t", value_deserializer=AvroDeserializer(registry, None, from_dict)), Consumer[bytes, Point])
assert_type(log.consumer("t", value_deserializer=AvroDeserializer(registry)), Consumer[bytes, Any])
log.consumer("t", config={"auto.offset.reset": "by_duration:P3D"})
log.producer().send("t", b"v").add_done_callback(lambda future: print(future.result().partition))
with log.producer(transactional_id="x") as producer, log.consumer("t", group_id="g") as consumer:
    with producer.transaction() as same:
        assert_type(same, Producer[bytes, bytes])
        producer.send_offsets_to_transaction({embedlog.TopicPartition("t", 0): 5}, consumer.group_metadata())
for record in log.scan("t").records():
    assert_type(record, Record[bytes, bytes])
for texts in log.scan("t").records(value_deserializer=bytes.decode):
    assert_type(texts, Record[bytes, str])
assert_type(log.last_record("t", 0, isolation_level="read_committed"), Record[bytes, bytes] | None)

async def coroutine() -> None:
    async with log.async_producer(value_serializer=str.encode) as producer:
        assert_type(producer, AsyncProducer[bytes, str])
        future = await producer.send("t", "v")
        assert_type(await future, RecordMetadata)
    async with log.async_consumer("t", value_deserializer=bytes.decode) as consumer:
        assert_type(consumer, AsyncConsumer[bytes, str])
        async for record in consumer:
            print(record.value.upper())
"""

# Each line after the marker is wrong, and a checker must say so.
WRONG = """
import embedlog
from embedlog import serializers
log = embedlog.open("data")
# ---- wrong from here
log.producer(linger_sm=3)
log.producer(linger_ms="3")
log.producer(acks=2)
log.producer(compression_type="zip")
log.async_producer(linger_sm=3)
log.consumer("orders", auto_offset_reset="first")
log.consumer("orders", isolation_level="committed")
log.async_consumer("orders", max_pol_records=3)
log.consumer(["orders"])
log.scan("orders", isolation_level="committed")
log.scan("orders", start_offset="5")
log.create_topic("t", num_partitions=3)
log.create_topic("t", compression_type="zip")
log.alter_topic("t", retention_ms="7d")
embedlog.open("data", log_retention_hour=3)
log.producer().send("t", "text")
log.producer(value_serializer=str.encode).send("t", b"bytes")
log.producer(key_serializer=str.encode).send("t", b"v", 5)
log.producer().send("t", b"v", timestamp=5)
log.producer().send("t", b"v", expected_offset="5")
log.consumer("t").poll(timeout_ms=5)
log.producer().send("t", b"v").result().ofset
next(iter(log.consumer("t"))).valu
next(iter(log.consumer("t"))).value.encode()
"""

# What a recipe overrides: a class that is Any has no subclass in strict code.
UVICORN = """
from types import FrameType
from typing import Any

class Server:
    def __init__(self, config: Any) -> None: ...
    def handle_exit(self, sig: int, frame: FrameType | None) -> None: ...
    def run(self) -> None: ...

def __getattr__(name: str) -> Any: ...
"""


def stubs(folder: Path) -> Path:
    """Packages in the documents without types: those of others change with their versions, and
    `application` is the reader's.
    """
    spark = "pyspark", "pyspark/sql", "pyspark/sql/streaming", "pyspark/sql/streaming/query"
    packages = (
        "pandas",
        "polars",
        "pyarrow",
        "pyarrow/compute",
        "google/protobuf/timestamp_pb2",
        "application",
    )
    for name in ("duckdb", "fastavro", *spark, *packages):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.pyi").write_text(
            "from typing import Any\n\ndef __getattr__(name: str) -> Any: ...\n"
        )
    (folder / "uvicorn.pyi").write_text(UVICORN)
    return folder


def sources(folder: Path) -> dict[str, str]:
    """File names and texts of all that is checked; each page is one program, each recipe one of its
    own.
    """
    texts = {"right.py": RIGHT, "wrong.py": WRONG} | {
        path.name: path.read_text() for path in (ROOT / "examples").glob("*.py")
    }
    for page in PAGES:
        if page == PROGRAMS:
            blocks = BLOCK.findall(page.read_text())
            texts |= {f"recipe_{number}.py": block for number, block in enumerate(blocks)}
        elif BLOCK.search(page.read_text()):
            texts[f"page_{re.sub(r'[^a-z]', '_', str(page.relative_to(ROOT)).lower())}.py"] = (
                program(page)
            )
    for name, text in texts.items():
        (folder / name).write_text(text)
    return texts


def judge(texts: dict[str, str], errors: list[tuple[str, int, str]]) -> None:
    """Every wrong line has an error, everything else none. Lines count from 1."""
    wrong = texts["wrong.py"].splitlines()
    first = wrong.index("# ---- wrong from here") + 2
    missed = [
        wrong[line - 1]
        for line in range(first, len(wrong) + 1)
        if ("wrong.py", line) not in {each[:2] for each in errors}
    ]
    assert missed == [], "wrong code that passes"
    refused = [
        f"{name}:{line}: {text}"
        for name, line, text in errors
        if name != "wrong.py" or line < first
    ]
    assert not refused, "right code that is refused:\n" + "\n".join(refused)


@pytest.mark.parametrize("name", GENERIC)
def test_a_generic_type_can_be_written_at_run_time(name: str) -> None:
    generic = getattr(embedlog, name)
    assert typing.get_args(generic[str, bytes]) == (str, bytes)
    assert typing.get_origin(generic[str, bytes]) is generic
    assert typing.get_args(embedlog.Future[embedlog.RecordMetadata]) == (embedlog.RecordMetadata,)


def test_the_asyncio_types_are_named_without_being_imported() -> None:
    assert {"AsyncProducer", "AsyncConsumer"} <= set(dir(embedlog))
    code = (
        "import sys, embedlog; assert 'asyncio' not in sys.modules; embedlog.AsyncProducer; "
        "assert 'asyncio' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    with pytest.raises(AttributeError, match="no attribute 'AsyncLog'"):
        embedlog.AsyncLog  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("config", "typed"),
    [
        (LogConfig, LogOptions),
        (TopicConfig, TopicOptions),
        (ProducerConfig, ProducerOptions),
        (ConsumerConfig, ConsumerOptions),
    ],
    ids=lambda each: each.__name__,
)
def test_every_option_is_typed_and_every_literal_is_taken(
    config: type[Options], typed: type
) -> None:
    hints = typing.get_type_hints(typed)
    assert set(hints) == set(options_of(config)) - APART
    for name, hint in hints.items():
        known = options_of(config)[name]
        literals = (
            {each for part in (hint, *typing.get_args(hint)) for each in typing.get_args(part)}
            if known.choices
            else ()
        )
        for literal in literals:
            if isinstance(literal, (str, int)) and (config, name) not in REFUSED_TODAY:
                parse(config, {name: literal})
        assert type(None) in typing.get_args(hint) or not known.optional


# Options of protocols that need a server; the option is known, its value refused with the reason.
REFUSED_TODAY = {(ConsumerConfig, "group_protocol"), (ConsumerConfig, "group_remote_assignor")}


@pytest.mark.xdist_group("tests/project/checkers")
@pytest.mark.parametrize("command", [["ruff", "check", "."], ["mypy"]], ids=["ruff", "mypy"])
def test_the_checkers_are_silent(command: list[str]) -> None:
    if importlib.util.find_spec(command[0]) is None:
        pytest.skip(f"no {command[0]}: pip install 'embedlog[check]'")
    answer = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=280
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr


# after the check of the package, whose cache it uses
@pytest.mark.xdist_group("tests/project/checkers")
def test_mypy_agrees_with_the_documents(tmp_path: Path) -> None:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("no mypy: pip install 'embedlog[check]'")
    texts = sources(tmp_path)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--no-error-summary",
        *(str(tmp_path / name) for name in texts),
    ]
    environment = os.environ | {"MYPYPATH": str(stubs(tmp_path / "stubs"))}
    answer = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280
    )
    found = re.findall(r"^(\S+\.py):(\d+): error: (.*)", answer.stdout, re.MULTILINE)
    assert found, answer.stdout + answer.stderr
    judge(texts, [(Path(name).name, int(line), text) for name, line, text in found])


@pytest.mark.slow
def test_pyright_agrees_with_the_documents(tmp_path: Path) -> None:
    if importlib.util.find_spec("pyright") is None or shutil.which("node") is None:
        pytest.skip("pyright needs itself and node: pip install 'embedlog[check]', and Node.js")
    texts = sources(tmp_path)
    settings = {"extraPaths": [str(ROOT)], "pythonVersion": "3.11", "include": ["*.py"]}
    settings |= {
        "stubPath": str(stubs(tmp_path / "stubs")),
        "reportMissingImports": False,
        "reportMissingModuleSource": False,
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    if not answer.stdout.lstrip().startswith("{"):
        pytest.skip(
            f"pyright cannot run here: {(answer.stdout + answer.stderr).strip().splitlines()[-1:]}"
        )
    found = [
        each
        for each in json.loads(answer.stdout)["generalDiagnostics"]
        if each["severity"] == "error"
    ]
    judge(
        texts,
        [
            (Path(each["file"]).name, each["range"]["start"]["line"] + 1, each["message"])
            for each in found
        ],
    )
