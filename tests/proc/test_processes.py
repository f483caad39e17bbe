from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable

import psutil

from ddoctor.proc import processes

VARIABLE = "DDOCTOR_TEST_LAUNCH"

# A child in a session of its own, whose parent ends: nothing but the mark leads to it.
ORPHANING = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"],
                         start_new_session=True)
print(child.pid, flush=True)
"""

# A child that asks to end with its parent, and says so once it has.
FOLLOWING = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", '''
from ddoctor.proc.parent import end_with_parent
import time
end_with_parent()
print("ready", flush=True)
time.sleep(1000)
'''], stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(1000)
"""


def start(script: str, mark: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script],
        env=os.environ | {VARIABLE: mark},
        stdout=subprocess.PIPE,
        text=True,
    )


def pid_from(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.01)


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_an_orphan_is_found_by_its_mark() -> None:
    mark = uuid.uuid4().hex
    with start(ORPHANING, mark) as parent:
        orphan = pid_from(parent)
    assert alive(orphan)
    assert processes.end(5, **{VARIABLE: mark}) == ()
    assert not alive(orphan)


def test_a_stopped_process_ends_too() -> None:
    mark = uuid.uuid4().hex
    with start("import time; print(0, flush=True); time.sleep(1000)", mark) as process:
        pid_from(process)
        process.send_signal(signal.SIGSTOP)
        until(lambda: processes.statuses([process.pid])[process.pid] == "stopped")
        assert processes.end(0.2, **{VARIABLE: mark}) == ()
    assert not alive(process.pid)


def test_nobody_elses_process_is_touched() -> None:
    with start("import time; print(0, flush=True); time.sleep(1000)", "theirs") as process:
        pid_from(process)
        assert processes.end(0.2, **{VARIABLE: uuid.uuid4().hex}) == ()
        assert process.poll() is None
        process.kill()


def test_a_process_that_is_gone_is_told_so() -> None:
    with start("pass") as process:
        process.wait()
    assert processes.statuses([process.pid]) == {process.pid: "gone"}


def test_a_child_ends_with_its_parent_however_that_ended() -> None:
    with start(FOLLOWING) as parent:
        child = pid_from(parent)
        assert alive(child)
        parent.kill()
    until(lambda: not alive(child))
