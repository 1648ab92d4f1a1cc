"""Producer metrics by Kafka's names: totals since the start, and rates, means and maxima of recent
windows.
"""

from __future__ import annotations

from embedlog.telemetry.metrics import Metrics


def producer_metrics(metrics: Metrics) -> dict[str, float]:
    """All metrics of a producer that come from its registry."""
    counters = {
        "record-send": "record",
        "record-error": "error",
        "record-retry": "retry",
        "batch-split": "split",
        "byte": "byte",
        "batch": "batch",
        "request": "request",
    }
    calls = {
        "flush": "flush",
        "txn-init": "init",
        "txn-begin": "begin",
        "txn-send-offsets": "send_offsets",
        "txn-commit": "commit",
        "txn-abort": "abort",
        "bufferpool-wait": "blocked",
    }
    return {
        **{f"{name}-total": metrics.total(figure) for name, figure in counters.items()},
        **{f"{name}-rate": metrics.rate(figure) for name, figure in counters.items()},
        **{
            f"{name}-time-ns-total": metrics.total(f"{figure}_s") * 1e9
            for name, figure in calls.items()
        },
        "batch-size-avg": metrics.mean("byte", "batch", 0.0),
        "batch-size-max": metrics.peak("batch_byte", 0.0),
        "record-size-avg": metrics.mean("record_byte", "sized_record", 0.0),
        "record-size-max": metrics.peak("record_byte", 0.0),
        "records-per-request-avg": metrics.mean("record", "request", 0.0),
        "record-queue-time-avg": metrics.mean("queue_s", "producer_batch", 0.0) * 1e3,
        "record-queue-time-max": metrics.peak("queue_s", 0.0) * 1e3,
        "request-latency-avg": metrics.mean("latency_s", "request", 0.0) * 1e3,
        "request-latency-max": metrics.peak("latency_s", 0.0) * 1e3,
        "compression-rate-avg": metrics.mean("packed_byte", "plain_byte", 1.0),
        "bufferpool-wait-ratio": metrics.rate("blocked_s"),
    }
