"""The tutorial of replication prints the same in each run: leaders, high watermarks, and what
readers get.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.examples import EXAMPLES

EXPECTED = """\
1. Three directories. A record with acks=all is acknowledged when every replica of the ISR has it.
  A is acknowledged at offset 0 (acks=all)
  B is acknowledged at offset 1 (acks=all)
  leader d1 in epoch 0, ISR d1, d2, d3, high watermark 2
  d1: log end 2
  d2: log end 2
  d3: log end 2
2. The disks of d2 and d3 are absent. d1 is no majority, so the ISR cannot shrink: the high watermark waits for both.
  C is acknowledged at offset 2 (acks=1)
  leader d1 in epoch 0, ISR d1, d2, d3, high watermark 2
  d1: log end 3
  d2: away
  d3: away
  a reader gets: A B
3. d1 fails, and d2 and d3 return. They are a majority, and elect a leader in a new epoch.
  D is acknowledged at offset 2 (acks=all)
  leader d2 in epoch 1, ISR d2, d3, high watermark 3
  d1: away
  d2: log end 3
  d3: log end 3
  a reader gets: A B D
4. d1 returns. Its C belongs to an old epoch: d1 truncates it, copies D, and, as the preferred leader, leads again.
  leader d1 in epoch 2, ISR d1, d2, d3, high watermark 3
  d1: log end 3
  d2: log end 3
  d3: log end 3
  a reader gets: A B D
5. A last record. After the log was closed, each directory opens alone, for reading, with the same records.
  E is acknowledged at offset 3 (acks=all)
  d1: A B D E
  d2: A B D E
  d3: A B D E
"""


def test_each_step_prints_the_state_of_the_replicas(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(EXAMPLES / "tutorial_replication.py"),
        "--keep",
        str(tmp_path / "kept"),
    ]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout == EXPECTED
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["d1", "d2", "d3"]
