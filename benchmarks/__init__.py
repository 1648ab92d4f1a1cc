"""Benchmarks against upper bounds and other systems; `python -m benchmarks` runs them."""
