"""Prints the files of a log as text and as JSON, in the lines of kafka-dump-log.

`files` has the lines of several files, `segments` what is printed of a log, `batches` the batches
of a log.

- A file is read without locks and without the rest of its directory; nothing is written.
- A damaged file is printed up to its damage; the result says so.
- No size in a file is trusted: what it declares is compared with the file before memory is asked
  for.
"""
