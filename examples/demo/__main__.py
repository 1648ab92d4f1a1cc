"""Starts the demo: `python examples/demo`.

The program is in a module of its own, since processes that `multiprocessing` starts cannot import
`__main__` of a folder.
"""

from __future__ import annotations

import sys

from demo import main

if __name__ == "__main__":
    sys.exit(main())
