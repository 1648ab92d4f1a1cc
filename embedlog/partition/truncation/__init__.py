"""Removal of the end of a log: at an offset, of lost bytes after a failed sync, and the last stable
offset after it.

It works under the append lock of one partition. It does not know why a log is cut: recovery, a
failed sync, or another leader.
"""
