"""A signal that asks for the end is heard wherever it comes."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import os, signal, time, weakref
from ddoctor.proc import interruption

class Thing:
    def __del__(self):
        if LAST:
            come()

def come(*_):
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(100):
        pass

interruption.enable()
thing = Thing()
watched = weakref.ref(thing, come)
try:
    del thing
    time.sleep(60)
except KeyboardInterrupt:
    print("heard", interruption.received)
"""


@pytest.mark.parametrize("last", [True, False], ids=["__del__", "a weak reference's callback"])
def test_it_is_raised_again_if_python_drops_it(last: bool) -> None:
    code = SCRIPT.replace("LAST", str(last))
    code = code.replace("thing, come", "thing") if last else code
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "heard [15]\n", "")


def test_other_dropped_errors_are_shown_as_always() -> None:
    code = (
        "from ddoctor.proc import interruption\n"
        "interruption.enable()\n"
        "class Thing:\n"
        "    def __del__(self): raise ValueError('mine')\n"
        "thing = Thing(); del thing\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ValueError: mine" in done.stderr
    assert "Exception ignored" in done.stderr
