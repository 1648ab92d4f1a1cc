"""Mutants: the library with one rule switched off, which some test must notice."""

from tests.support.mutants import (
    clients,
    coordination,
    partition,
    replica_rules,
    replicas,
    states,
    storage,
)
from tests.support.mutants.registry import (
    C_BITS,
    PATCHES,
    apply_mutant,
    is_mutated,
    mutated,
    names,
    undo_mutant,
    undo_mutants,
)

__all__ = [
    "C_BITS",
    "PATCHES",
    "apply_mutant",
    "clients",
    "coordination",
    "is_mutated",
    "mutated",
    "names",
    "partition",
    "replica_rules",
    "replicas",
    "states",
    "storage",
    "undo_mutant",
    "undo_mutants",
]
