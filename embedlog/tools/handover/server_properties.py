"""Writes and reads `embedlog.server.properties`, the configuration file of the broker that a
directory is given to.

- The file exists from the end of a handover to the broker until the end of the handover back.
- Settings that make the broker find the directory are fixed; others may be given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from embedlog.errors import ConfigError, ForeignDirectoryError
from embedlog.storage import file_names, files
from embedlog.tools.handover.settings import broker_defaults

_FIXED: Final = (
    "process.roles",
    "node.id",
    "broker.id",
    "log.dir",
    "log.dirs",
    "metadata.log.dir",
    "controller.quorum.voters",
    "controller.quorum.bootstrap.servers",
    "offsets.topic.num.partitions",
    "transaction.state.log.num.partitions",
)
_ADDRESS = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})")
_PORT_MAX = 65_535
# what an escape precedes
_IN_NAMES = r"[\\=:#! ]"
_IN_VALUES = r"\\|^ "


class Addresses(NamedTuple):
    """The addresses of the broker's clients and of its controller."""

    clients: str = "127.0.0.1:9092"
    controller: str = "127.0.0.1:9093"


def check_address(text: str) -> str:
    """The address, if it is one. Raises ConfigError."""
    match = _ADDRESS.fullmatch(text)
    if match is None or not 0 < int(match["port"]) <= _PORT_MAX:
        raise ConfigError("an address of the broker", expected="HOST:PORT", found=repr(text))
    return text


def properties(
    directory: Path,
    metadata: Path,
    node: int,
    partitions: Mapping[str, int],
    addresses: Addresses,
    *,
    dynamic: bool,
    given: Mapping[str, str],
) -> dict[str, str]:
    """The settings of the broker. `dynamic`: the voters of the controller are in the metadata log.

    Raises ConfigError for a fixed setting, and ForeignDirectoryError for a path that a broker
    cannot have.
    """
    for name in given:
        if name in _FIXED:
            raise ConfigError(
                f"{name} follows from the directory",
                expected="another setting of a broker",
                found=name,
            )
    clients, controller = map(check_address, addresses)
    if clients == controller:
        raise ConfigError(
            "the addresses of clients and controller", expected="two addresses", found=clients
        )
    for path in (directory, metadata):
        if "," in str(path):
            raise ForeignDirectoryError(
                "a broker cannot have a comma in the path of a log directory", path=path
            )
    quorum = {"bootstrap.servers": controller} if dynamic else {"voters": f"{node}@{controller}"}
    internal = {
        "offsets.topic": "__consumer_offsets",
        "transaction.state.log": "__transaction_state",
    }
    return {
        "process.roles": "broker,controller",
        "node.id": str(node),
        **{f"controller.quorum.{key}": value for key, value in quorum.items()},
        "listeners": f"PLAINTEXT://{clients},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{clients}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(directory),
        "metadata.log.dir": str(metadata),
        **{
            f"{key}.num.partitions": str(partitions[topic])
            for key, topic in internal.items()
            if topic in partitions
        },
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        **broker_defaults(),
        **given,
    }


def write(directory: Path, values: Mapping[str, str], mode: int = 0o666) -> Path:
    """Write the file, with the characters of Latin-1 that Java reads."""
    path = directory / file_names.SERVER_PROPERTIES
    head = "# Written by `embedlog handover to-kafka`; removed by `embedlog handover from-kafka`.\n"
    lines = (
        f"{_escape(name, _IN_NAMES)}={_escape(value, _IN_VALUES)}\n"
        for name, value in values.items()
    )
    files.write_atomically(path, (head + "".join(lines)).encode("ascii"), mode)
    return path


def read(directory: Path) -> dict[str, str]:
    """The settings in the file; empty without one."""
    data = files.read_bytes(directory / file_names.SERVER_PROPERTIES) or b""
    settings = {}
    for line in data.decode("latin-1").splitlines():
        if not line.startswith(("#", "!")):
            name, sign, value = line.partition("=")
            if sign:
                settings[name.strip()] = _unescape(value)
    return settings


def _escape(text: str, special: str) -> str:
    text = re.sub(special, lambda match: "\\" + match[0], text)
    text = text.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    units = text.encode("utf-16-be", "surrogatepass")
    codes = [int.from_bytes(units[start : start + 2], "big") for start in range(0, len(units), 2)]
    return "".join(chr(code) if 0x20 <= code < 0x7F else f"\\u{code:04x}" for code in codes)


def _unescape(text: str) -> str:
    plain = {"n": "\n", "r": "\r", "t": "\t"}

    def unescape(match: re.Match[str]) -> str:
        escaped = match[1]
        if len(escaped) > 1:
            return chr(int(escaped[1:], 16))
        return plain.get(escaped, escaped)

    unescaped = re.sub(r"\\(u[0-9a-fA-F]{4}|.)", unescape, text)
    return unescaped.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "replace")
