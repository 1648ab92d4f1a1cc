"""The directories of a set: their members, and the set-up of new sets.

A set is several log directories that are opened together. The package must not know producers, consumers, groups or transactions.
It makes no decision: `embedlog.replication` does. `membership` has the file of members and its checks, `set_up` makes new sets.
"""
