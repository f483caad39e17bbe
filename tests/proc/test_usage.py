"""The CPU time of processes."""

from __future__ import annotations

import subprocess
import sys

from ddoctor.proc.usage import cpu_seconds

PARENT = """
import subprocess, sys
burn = "import time\\nwhile time.process_time() < 0.6: pass"
subprocess.run([sys.executable, "-c", burn], check=True)
print("done", flush=True)
sys.stdin.read()
"""


def test_children_that_have_ended() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdin is not None
        assert parent.stdout.readline() == "done\n"
        alone, whole = cpu_seconds(parent.pid), cpu_seconds(parent.pid, children=True)
        parent.stdin.close()
    assert whole >= alone + 0.5
    assert cpu_seconds(parent.pid, children=True) == 0
