"""In a Python process that a test starts with this folder on its path: each log that it opens is a
set of three directories.
"""

from __future__ import annotations

import embedlog
from tests.support.logs_as_sets import opened_as_set

embedlog.open = opened_as_set
