"""Reads the reports of ThreadSanitizer after `make test-threads`. Reports of the extensions fail
the target.

- a report belongs to the extensions if one of the two accesses has a frame there; where its threads
  were created does not count
- a report of CPython or of another package alone is counted, and no failure
- a signal that ended a process is a failure, whatever its stack: the target sets the exit code 0
- suppressions name functions: without a symbolizer none applies, which is a failure with a reason
  of its own
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

REPORT = re.compile(r"^WARNING: ThreadSanitizer: .*?(?=^SUMMARY: |\Z)", re.MULTILINE | re.DOTALL)
CREATED = re.compile(r"^  Thread T\d+ .*?(?=^\s*$|\Z)", re.MULTILINE | re.DOTALL)
OF_EXTENSIONS = re.compile(
    r"^ +#\d+ .*(?:\b_(?:core|rows)\.cpython-|embedlog/_native/)", re.MULTILINE
)
DEADLY = "ERROR: ThreadSanitizer: "
NO_SYMBOLIZER = "external symbolizer"
UNSUPPRESSED = (
    "no llvm-symbolizer was found, so no suppression applied: set external_symbolizer_path in "
    "TSAN_OPTIONS"
)


def accesses(text: str) -> list[str]:
    """Each report without the stacks that created its threads."""
    return [CREATED.sub("", report) for report in REPORT.findall(text)]


def main(folder: Path) -> int:
    texts = [path.read_text(errors="replace") for path in sorted(folder.iterdir())]
    found = [report for text in texts for report in accesses(text)]
    own = [report for report in found if OF_EXTENSIONS.search(report)]
    ended = [text for text in texts if DEADLY in text]
    if ended:
        print(
            f"embedlog: a signal ended {len(ended)} processes in {folder}; the first "
            f"one:\n{ended[0]}"
        )
    if found:
        print(
            f"embedlog: {len(found)} reports of ThreadSanitizer in {folder}, {len(own)} of them "
            "in the extensions"
        )
    if own and any(NO_SYMBOLIZER in text for text in texts):
        print(f"embedlog: {UNSUPPRESSED}")
    elif own:
        print(f"embedlog: ThreadSanitizer found races in the extensions; the first one:\n{own[0]}")
    return 1 if own or ended else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
