"""How followers are kept near their leader: the time since they had everything, and limits of copies.

It exports `follower_lags`. It must not decide: a late follower is reported to the caller.
"""
