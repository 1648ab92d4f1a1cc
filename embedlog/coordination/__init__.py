"""Decisions that processes make together: the directory, internal topics, groups and transactions.

Each decision is a record of an internal topic, appended under its lock. The package does not know
producers, consumers or the public log. Exports: `directory`, `internal_topic`, `topic_directories`,
`replay`, and the packages `groups` and `transactions`.
"""
