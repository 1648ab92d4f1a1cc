"""One partition: append, read, recover, truncate, sync, compact.

The package knows one directory of segments. It does not know topics, groups, clients or other
partitions. Other units import eight modules of it:

- `interfaces`: the interfaces through which clients of an open log use a partition
- `partition`: `Partition`, the facade, whose private members no other unit uses
- `log_context`: `Context`, which the engine makes for all its partitions, and the values that
  `Partition` takes and returns
- `tail`: `Tail`, the state of a reader at the end of a partition
- `replication.replica_log`: `ReplicaLog`, a partition as a replica (`Partition.replica`), and its
  refusals
- `replication.replica_position`: the offsets of a replica, read without opening the partition
- `pinned_segments`: `Pin`, a partition at one moment, for backups
- `interposer`: `Interposer`, which tests of applications place before each append and commit

`leftovers` is a unit of its own below this package: `integrity` uses it, too.

Order inside, from the bottom up. A module imports only modules before it.

1. `interposer`, `log_context`, `segment_info`, `recovery/`, `state`
2. `segment_list`, `digest_check`, `epoch_check`, `continuations`, `point_reads`, `tail`,
   `aborted_index`, `reader`, `producer_sequences`, `time_pruning`, `split_points`, `writer`
3. `locked_partition`
4. `stable_offset`, `roll`, `log_cut`, `failed_sync`, `compaction/swap`, `append_repair`
5. `append_lock`
6. `idempotent_append`, `markers`, `sync`, `compaction/cleaner`, `retention`
7. `replication/`
8. `interfaces`, `partition`
9. `pinned_segments`
"""
