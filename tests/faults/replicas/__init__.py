"""Fault experiments with sets of directories."""
