"""Crashes and errors at calls of appends, rolls, syncs, deletions and compactions, and files that
change under open logs.
"""
