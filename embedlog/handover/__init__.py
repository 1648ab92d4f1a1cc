"""Gives a log directory to a Kafka broker and takes it back, with topics, ids, partition counts and
settings.

`to_kafka` and `from_kafka` are the two directions, `settings` and `server_properties` describe what
they take and return.

HANDOVER-1  after a crash at any point the directory is as before, or the same call completes the
    step
HANDOVER-2  no record, offset or id is changed: a broker continues the files of embedlog, and
    embedlog those of the broker
"""
