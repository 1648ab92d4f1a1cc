"""Contains the refusals of a replica: another epoch, another role, too few replicas in sync. They never leave the package.

REFUSAL-1  a refused operation has changed nothing; the caller reads the pages or the decision log again
"""

from __future__ import annotations


class Refused(Exception):
    """The replica does not accept the operation in its present role."""


class Fenced(Refused):
    """The control page is in a later epoch than the caller."""


class NotLeader(Refused):
    """The control page does not lead in the required epoch."""


class TooFew(Refused):
    """The decided ISR is smaller than `min.insync.replicas`."""
