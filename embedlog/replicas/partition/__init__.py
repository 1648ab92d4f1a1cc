"""The replicas of one partition: who leads, what is copied, what is committed, what clients use.

`partition_directories` has the members with the replicas, `in_sync_replicas` copies and commits, and
`leaders` finds and elects the leader: `partition_replicas` puts them together. `led_partition` and
`replicated_partition` are the face for clients, and `nearby_partition` that of readers with a rack.
"""
