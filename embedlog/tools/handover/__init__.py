"""Gives a log directory to a Kafka broker and takes it back, with topics, ids, partition counts and
settings.

`to_kafka` and `from_kafka` are the two directions, `settings` and `server_properties` describe what
they take and return.

- After a crash at any point the directory is as before, or the same call completes the step.
- No record, offset or id is changed: a broker continues the files of embedlog, and embedlog those
  of the broker.
"""
