"""The replicas of one partition: who leads, what is copied, what is committed, what clients use.

`partition_directories` opens the replicas, `leaders` finds and elects their leader, and
`partition_replicas` copies and commits. `led_partition` and `replicated_partition` are its face for
clients, and `nearby_partition` that of readers with a rack.
"""
