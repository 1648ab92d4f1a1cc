"""Mutants of coordination."""
