"""The CPU time of processes."""

from __future__ import annotations

import subprocess
import sys
import time

from ddoctor.proc.usage import HELPS, HELPS_SECONDS, HostUse, cpu_seconds

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


HELPED = """
import subprocess, sys, time
spins = subprocess.Popen([sys.executable, "-c", "while True: pass"])
sleeps = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
print(spins.pid, flush=True)
try:
    sys.stdin.read()
finally:
    spins.kill(), sleeps.kill()
"""


def test_a_child_that_uses_a_cpu() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HELPED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        spins = int(parent.stdout.readline())
        use = HostUse(parent.pid, 0, "here", 1)
        use.read_counters()
        use.sample_workers()
        assert use.helpers == {}
        time.sleep(HELPS_SECONDS + 0.5)
        use.sample_workers()
        use.read_counters()
        assert {*use.helpers} == {spins}
        assert use.summary(threads=1, asked="").helpers >= HELPS
        parent.communicate("")
