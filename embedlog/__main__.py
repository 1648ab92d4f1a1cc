"""Starts the command line: `python -m embedlog`."""

from __future__ import annotations

import sys

from embedlog.tools.cli.program import main

if __name__ == "__main__":
    sys.exit(main())
