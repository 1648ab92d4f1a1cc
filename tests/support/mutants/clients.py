"""Mutants of clients."""
