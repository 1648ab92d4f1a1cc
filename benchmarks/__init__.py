"""Benchmarks against ceilings and rivals; `python -m benchmarks` runs them."""
