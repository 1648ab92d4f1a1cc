"""Tests of the benchmarks: their results are complete and true."""
