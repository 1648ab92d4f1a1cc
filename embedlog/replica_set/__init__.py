"""The directories of a set: their members, their registration, and the decision log in all of them.

A set is several log directories that are opened together. The package must not know producers, consumers, groups or transactions.
It makes no decision: `embedlog.replication` does. Exports: `membership` (the file of members and its checks), `decision_log`
(decisions on a majority of the copies), `registration` (registration ids at the opening of directories), `set_up` (new sets).
"""
