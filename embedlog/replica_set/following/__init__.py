"""How followers are kept near their leader: the time since they had everything, limits of copies,
and its log start.

It exports `follower_lags` and `record_deletion`. The former must not decide: a late follower is
reported to the caller.
"""
