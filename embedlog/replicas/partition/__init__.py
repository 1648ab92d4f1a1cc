"""The replicas of one partition: who leads, what is copied, what is committed, what clients use.

`partition_directories` has the members with the replicas, `in_sync_replicas` copies and commits,
and `leaders` finds and elects the leader: `partition_replicas` puts them together. `leader_calls`
makes the calls of users at the leader. `replicated_partition` is the face for clients,
`nearby_partition` that of readers with a rack, and `copied_partition` that of backups.
"""
