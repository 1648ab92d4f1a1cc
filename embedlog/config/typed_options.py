"""The options as keywords, for editors and type checkers; written by docs/generate.py from the tables of options.

TYPEDOPTION-1  a key is an option's name with underscores, its type what the option takes; texts of numbers, and values that no
    type can say (`by_duration:…`), are for the `config` mapping
TYPEDOPTION-2  the serializers and deserializers are missing: they are arguments of their own, which make `Producer` and
    `Consumer` generic
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict

__all__ = ["ConsumerOptions", "LogOptions", "ProducerOptions", "TopicOptions"]


class LogOptions(TypedDict, total=False):
    """Options of a log."""

    log_cleanup_policy: Literal["delete", "compact"] | Sequence[Literal["delete", "compact"]]
    log_retention_ms: int
    log_retention_minutes: int | None
    log_retention_hours: int | None
    log_retention_bytes: int
    log_segment_bytes: int
    log_roll_ms: int
    log_roll_hours: int | None
    log_roll_jitter_ms: int
    log_roll_jitter_hours: int | None
    log_index_size_max_bytes: int
    log_index_interval_bytes: int
    log_preallocate: bool
    message_max_bytes: int
    max_decompressed_message_bytes: int
    compression_type: Literal["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"]
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    log_message_timestamp_type: Literal["CreateTime", "LogAppendTime"]
    log_message_timestamp_before_max_ms: int
    log_message_timestamp_after_max_ms: int
    log_flush_interval_messages: int
    log_flush_interval_ms: int
    log_segment_delete_delay_ms: int
    min_insync_replicas: int
    log_cleaner_min_cleanable_ratio: float
    log_cleaner_min_compaction_lag_ms: int
    log_cleaner_max_compaction_lag_ms: int
    log_cleaner_delete_retention_ms: int
    log_cleaner_enable: bool
    log_cleaner_backoff_ms: int
    log_cleaner_dedupe_buffer_size: int
    num_partitions: int
    auto_create_topics_enable: bool
    log_retention_check_interval_ms: int
    log_initial_task_delay_ms: int
    log_flush_scheduler_interval_ms: int
    log_flush_offset_checkpoint_interval_ms: int
    producer_id_expiration_ms: int
    transaction_max_timeout_ms: int
    transactional_id_expiration_ms: int
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int
    transaction_remove_expired_transaction_cleanup_interval_ms: int
    transaction_state_log_num_partitions: int
    transaction_state_log_segment_bytes: int
    offsets_topic_num_partitions: int
    offsets_topic_segment_bytes: int
    offsets_retention_minutes: int
    offsets_retention_check_interval_ms: int
    offset_metadata_max_bytes: int
    group_min_session_timeout_ms: int
    group_max_session_timeout_ms: int
    group_max_size: int
    group_initial_rebalance_delay_ms: int
    lock_timeout_ms: int
    file_mode: int | str
    shared: Literal["no", "locks"]
    follow_links: bool
    housekeeping: bool
    max_decompressed_batch_bytes: int
    max_open_files: int


class TopicOptions(TypedDict, total=False):
    """Options of a topic."""

    cleanup_policy: Literal["delete", "compact"] | Sequence[Literal["delete", "compact"]]
    retention_ms: int
    retention_bytes: int
    segment_bytes: int
    segment_ms: int
    segment_jitter_ms: int
    segment_index_bytes: int
    index_interval_bytes: int
    preallocate: bool
    max_message_bytes: int
    compression_type: Literal["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"]
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    message_timestamp_type: Literal["CreateTime", "LogAppendTime"]
    max_decompressed_message_bytes: int
    message_timestamp_before_max_ms: int
    message_timestamp_after_max_ms: int
    flush_messages: int
    flush_ms: int
    file_delete_delay_ms: int
    min_insync_replicas: int
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    delete_retention_ms: int


class ProducerOptions(TypedDict, total=False):
    """Options of a producer."""

    client_id: str | None
    acks: Literal["all", "-1", "0", "1", -1, 0, 1]
    enable_idempotence: bool
    transactional_id: str | None
    transaction_timeout_ms: int
    batch_size: int
    linger_ms: float
    buffer_memory: int
    max_block_ms: int
    max_request_size: int
    delivery_timeout_ms: int
    request_timeout_ms: int
    retries: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    max_in_flight_requests_per_connection: int
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"]
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    partitioner: Callable[..., Any] | None
    partitioner_ignore_keys: bool
    partitioner_adaptive_partitioning_enable: bool
    partitioner_availability_timeout_ms: int
    interceptor_classes: Sequence[Any]
    on_delivery_error: Literal["raise", "log"]


class ConsumerOptions(TypedDict, total=False):
    """Options of a consumer."""

    client_id: str | None
    client_rack: str | None
    group_instance_id: str | None
    group_protocol: Literal["classic", "consumer"]
    partition_assignment_strategy: Sequence[Any]
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    max_poll_records: int
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    auto_offset_reset: Literal["earliest", "latest", "none"]
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    check_crcs: bool
    isolation_level: Literal["read_uncommitted", "read_committed"]
    exclude_internal_topics: bool
    allow_auto_create_topics: bool
    default_api_timeout_ms: int
    consumer_timeout_ms: int | None
    interceptor_classes: Sequence[Any]
    metadata_max_age_ms: int
    retry_backoff_ms: int
