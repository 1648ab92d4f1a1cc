"""Files, locks between processes, and the small files of a log directory.

All file access of the library goes through `files`. The package knows names and contents of files.
It does not know what a partition or a topic does with them. Exports: `files`, `locks`,
`file_names`, `control_page`, `manifest`, `checkpoints`, `identity`, `liveness`, `descriptors`,
`process_list`.
"""
