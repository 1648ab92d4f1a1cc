"""Tests of the whole library, run again with a set of three directories in place of each
directory.
"""
