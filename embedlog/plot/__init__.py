"""Plots of the lag of groups and the throughput of topics over time (extra `plot`)."""

from embedlog.plot.figures import lag, throughput
from embedlog.plot.history import History

__all__ = ["History", "lag", "throughput"]
