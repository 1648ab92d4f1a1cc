"""Defines the types of callables and objects that options take. Only types need it: no client
imports it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

# type variables have defaults from Python 3.13 on; type checkers know them earlier
if TYPE_CHECKING:
    from typing_extensions import TypeVar

    K = TypeVar("K", default=Any)
    V = TypeVar("V", default=Any)
    T_contra = TypeVar("T_contra", contravariant=True, default=Any)
    T_co = TypeVar("T_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    K = TypeVar("K")
    V = TypeVar("V")
    T_contra = TypeVar("T_contra", contravariant=True)
    T_co = TypeVar("T_co", covariant=True)

Bytes: TypeAlias = bytes | bytearray | memoryview


class SerializerObject(Protocol[T_contra]):
    """A serializer that also gets topic and headers, as in kafka-python 3."""

    def serialize(self, topic: str, headers: Any, data: T_contra, /) -> Bytes | None:
        """The bytes of `data`, None for a null."""


class SerializerOfTwo(Protocol[T_contra]):
    """A serializer that also gets the topic, as in earlier versions of kafka-python."""

    def serialize(self, topic: str, data: T_contra, /) -> Bytes | None:
        """The bytes of `data`, None for a null."""


class DeserializerObject(Protocol[T_co]):
    """A deserializer that also gets topic and headers, as in kafka-python 3."""

    def deserialize(self, topic: str, headers: Any, data: bytes, /) -> T_co:
        """The key or value of `data`; not called for a null."""


class DeserializerOfTwo(Protocol[T_co]):
    """A deserializer that also gets the topic, as in earlier versions of kafka-python."""

    def deserialize(self, topic: str, data: bytes, /) -> T_co:
        """The key or value of `data`; not called for a null."""


class PartitionerObject(Protocol):
    """A partitioner with a method, as the interface of Kafka's Java client."""

    @property
    def partition(self) -> Callable[..., int]:
        """The method, with the parameters of a partitioner that is a callable."""


Partitioner: TypeAlias = Callable[..., Any] | PartitionerObject
Serializer: TypeAlias = Callable[[K], Bytes | None] | SerializerObject[K] | SerializerOfTwo[K]
Deserializer: TypeAlias = Callable[[bytes], V] | DeserializerObject[V] | DeserializerOfTwo[V]
