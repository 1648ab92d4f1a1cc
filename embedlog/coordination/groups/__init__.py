"""Consumer groups without a coordinator process: their records in `__consumer_offsets` and the
decisions about them.

The rules are in `embedlog.group`, a pure state machine; this package reads and writes its records.
It does not know consumers. Exports: `group_coordinator.Groups`, `offset_commits`,
`group_offset_reset`, `member_watch`.
"""
