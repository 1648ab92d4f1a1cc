"""The directories of a set: their members, their registration, and the decision log in all of them.

A set is several log directories that are opened together. The package must not know producers, consumers, groups or transactions.
It makes no decision: `embedlog.replication` does. `membership` has the file of members and its checks, `set_up` makes new sets.
`registration` registers directories that are opened. `decision_log` makes decisions on a majority of the `copies`.
"""
