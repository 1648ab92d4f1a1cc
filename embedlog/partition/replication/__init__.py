"""The part of a partition that a set of directories uses: roles, copies of batches, the commit.

It knows one partition of one directory, and the control pages of the other replicas. It must not
know which directories belong to a set, how a leader is elected, or where decisions are stored. It
exports `replica_log.ReplicaLog`.
"""
