"""One open log.

- `engine`: `Engine`, which owns directories, groups, transactions and lifetimes
- `closing`: the order and the stages of its close
- `clients`: the producers and consumers that are closed with it
- `log_directory`: one open directory: its locks, topics and partitions

`clients` and `log_directory` are units of their own below `replicas`, which is below `engine`.
"""
