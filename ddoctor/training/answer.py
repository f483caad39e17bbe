"""The exit code of a report, on its way from rank 0 past torchrun or accelerate.

They print a page about each rank that fails. A rank whose script came to its end, but whose report
has findings, does not fail: it tells its exit code to the process that runs the launcher.
"""

from __future__ import annotations

import os
from contextlib import suppress

VARIABLE = "DDOCTOR_LAUNCHER"


class Answer:
    """A pipe that the ranks of this host find by its name: they inherit no descriptor."""

    def __init__(self) -> None:
        self._reader, writer = os.pipe()
        name = f"/proc/{os.getpid()}/fd/{writer}"
        os.environ[VARIABLE] = f"{name} {os.readlink(name)}"

    def exit_code(self) -> int:
        """The exit code that rank 0 gave; 0: none."""
        os.set_blocking(self._reader, False)
        with suppress(BlockingIOError):
            return max(os.read(self._reader, 1000))
        return 0


def told(code: int) -> bool:
    """Tell an exit code to the launcher of this rank; whether it waits for one on this host."""
    name, _, pipe = os.environ.get(VARIABLE, "").partition(" ")
    # On another host the same name belongs to another process.
    with suppress(OSError):
        if name and os.readlink(name) == pipe:
            with open(name, "wb", buffering=0) as file:
                file.write(bytes([code]))
            return True
    return False
