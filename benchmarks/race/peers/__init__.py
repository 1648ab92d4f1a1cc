"""The peers: one module for each, and the list of all in the order of the page."""

from __future__ import annotations

from .aiokafka_peer import AiokafkaPeer
from .base import Peer
from .chronicle_peer import ChroniclePeer
from .confluent_peer import ConfluentPeer
from .diskcache_peer import DiskcachePeer
from .embedlog_peer import EmbedlogPeer
from .honker_peer import HonkerPeer
from .kafka_python_peer import KafkaPythonPeer
from .lmdb_peer import LmdbPeer
from .persist_queue_peer import PersistQueuePeer
from .rocksdb_peer import RocksdbPeer
from .sqlite_peer import SqlitePeer

PEERS: dict[str, type[Peer]] = {
    peer.NAME: peer
    for peer in (
        EmbedlogPeer,
        ChroniclePeer,
        ConfluentPeer,
        AiokafkaPeer,
        KafkaPythonPeer,
        SqlitePeer,
        LmdbPeer,
        RocksdbPeer,
        PersistQueuePeer,
        DiskcachePeer,
        HonkerPeer,
    )
}

__all__ = ["PEERS", "Peer"]
