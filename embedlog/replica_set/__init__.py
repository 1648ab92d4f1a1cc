"""The directories of a set: their members, their registration, and the decision log in all of them.

A set is several log directories that are opened together. The package must not know producers,
consumers, groups or transactions. It makes no decision: `embedlog.replication` does. Exports:
`replica_set` (the open set), `open_directories` (which of them answer). `set_up` begins new sets,
and checks a directory that is opened alone; `adoption` makes a set of a log. For descriptions of a
set: `observation.answers`, `observation.decision_words`, `observation.directory_view` and
`observation.replica_events`. `membership` has the file of members, `registration` registers
directories that are opened. `decisions` makes decisions on a majority of the `copies`.
`partition_replicas` finds leaders, copies and commits. `replicated_partition` is the facade for
clients.
"""
