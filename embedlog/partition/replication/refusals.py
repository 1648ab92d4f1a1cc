"""Contains the refusals of a replica: another epoch, another role, too few replicas in sync.

- A refused operation has changed nothing; the caller reads the pages or the decision log again.
- `Refused` and its subclasses never leave the package.
"""

from __future__ import annotations

from pathlib import Path

from embedlog.errors import NotEnoughReplicasError


class Refused(Exception):
    """The replica does not accept the operation in its current role."""


class Fenced(Refused):
    """The control page is in a later epoch than the caller."""


class NotLeader(Refused):
    """The control page does not lead in the required epoch."""


class TooFew(Refused):
    """The decided ISR is smaller than `min.insync.replicas`."""


def check_without_replicas(name: str, required: int, path: Path) -> None:
    """Raises NotEnoughReplicasError for `acks=all` in one directory, if `required`
    (`min.insync.replicas`) is above 1.
    """
    if required > 1:
        raise NotEnoughReplicasError(
            f"acks=all refused for {name}: there are no replicas, so set min.insync.replicas to 1 "
            "with alter_topic(), or send"
            " with acks=1",
            path=path,
            expected=f"at least {required} directories in sync (min.insync.replicas)",
            found=1,
        )
