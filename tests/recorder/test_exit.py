"""The end of Python itself, after the script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import _thread
import sys
from pathlib import Path

from ddoctor.recorder import collector
from ddoctor.recorder.tape import Tape
from ddoctor.recorder.timeline import Timeline

timeline = Timeline(Tape(Path(sys.argv[1]), create=True))
collector.install(timeline)
# How the collector raises in the main thread what its callback has raised.
_thread.start_new_thread = lambda _, given: print(given, file=sys.stderr)
# Python collects once more at its end, without a frame; with these objects, for long.
sys.kept = [[number] for number in range(1_000_000)]
"""


def test_a_long_collection_at_the_end(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "tape")]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
