"""Transactions without a coordinator process: their records in `__transaction_state` and the
decisions about them.

The rules are in `embedlog.transaction`, a pure state machine; this package reads and writes its
records. It does not know producers. Exports: `transaction_coordinator.Transactions`,
`transactional_id_owner.Owner`, `recovery`.
"""
