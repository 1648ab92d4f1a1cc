"""The terminal application of the command line: a log in tabs, refreshed while it is open (extra
`console`).

- The application reads; only a confirmed change of an application started with `--write` opens the
  log for writing.
- `model` imports no terminal: it reads the log and returns texts, which `widgets` and `panes` show.
- No text of a log controls the terminal: widgets show plain text with visible control characters.

The command line uses `start` only.
"""
