"""Decisions about replicas as pure functions: placement, the records of the decision log, the
states that they produce.

A decision log (`__replica_state`) has the nodes, topics, partitions and settings of a set of
directories. The package must not know files, locks, clocks, random numbers, control pages or the
directories: observations and drawn numbers are arguments. Exports: `placement` (new partitions),
`records` (the decision log), `state` (after records), `events` (with refusals), `decide` (records
of an event), `lag` (of followers).
"""
