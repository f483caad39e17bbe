"""`ddoctor attach --watch` in a terminal: it shows the ranks, goes on, and ends with a key."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import time

import pytest

from tests.live.conftest import LIMIT_SECONDS, StartLive


def test_it_needs_a_terminal() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ddoctor", "attach", "--watch"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    assert done.returncode == 2
    assert "--watch needs a terminal" in done.stderr


@pytest.mark.ward
def test_until_a_key_is_pressed(start: StartLive) -> None:
    live = start()
    live.wait_for(20)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "ddoctor", "attach", "--watch", str(live.launcher.pid)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm"},
    )
    shown = _read_until(ours, "q: quit", 2)
    assert "rank 0" in shown
    assert "rank 1" in shown
    os.write(ours, b"xq")
    # What the last look told stays behind.
    _read_until(ours, "what each rank was doing", 1)
    assert process.wait(LIMIT_SECONDS) == 0
    assert termios.tcgetattr(theirs)[3] & termios.ICANON
    live.wait_for(live.step(0) + 3)
    os.close(ours)
    os.close(theirs)


def _read_until(terminal: int, text: str, times: int) -> str:
    deadline = time.monotonic() + LIMIT_SECONDS
    shown = ""
    while shown.count(text) < times:
        assert time.monotonic() < deadline, shown
        shown += os.read(terminal, 65536).decode(errors="replace")
    return shown
