"""Reads of the usual case in one call of the C core: after the end of a log, and around one offset.

Each returns None for every unusual case; `reader` then reads in the general way, and reports what
it finds.
"""
