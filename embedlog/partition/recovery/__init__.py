"""Opening of one partition from its files: leftovers of a crash, evidence, segments, producers.

The package takes a description (`evidence.Loading`) and returns one (`loader.Loaded`). It does not
know the control page, nor locks.
"""
