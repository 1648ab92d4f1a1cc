"""The command `embedlog`: inspection and administration of log directories from a shell.

- It uses public names of `embedlog` only. The verb `dump` reads files, not a log, through
  `embedlog.tools.dump`.
- The module of a verb is imported when the verb is called; rich is imported for terminals only.
- A verb that only reads opens the directory with `read_only=True`.
- Data goes to standard output; messages and progress go to standard error.
"""
