"""The command `embedlog`: inspection and administration of log directories from a shell.

CLI-1  it uses public names of `embedlog` only; the verb `dump` reads files, not a log, through
    `embedlog.dump`
CLI-2  the module of a verb is imported when the verb is called; rich is imported for terminals only
CLI-3  a verb that only reads opens the directory with `read_only=True`
CLI-4  data goes to standard output; messages and progress go to standard error
"""
