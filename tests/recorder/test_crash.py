"""The functions of ``os`` that are watched so that a crash has its stack."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CLOSES_LAST = """
import os, sys
from pathlib import Path
from ddoctor.recorder import crash

crash.keep(Path(sys.argv[1]))
# As Python does at its end.
vars(crash).update(dict.fromkeys(name for name in vars(crash) if not name.startswith("__")))
for end in os.pipe():
    os.close(end)
    try:
        os.fstat(end)
    except OSError:
        print("closed")
"""


def test_files_that_are_closed_at_the_end_of_python(tmp_path: Path) -> None:
    named, file = tmp_path / "named", tmp_path / "crash"
    named.write_text(str(file))
    file.touch()
    done = subprocess.run(
        [sys.executable, "-c", CLOSES_LAST, str(named)], capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("closed\nclosed\n", "")
