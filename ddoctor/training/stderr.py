"""Forward a script's stderr, and keep its last lines.

Native code (gloo, CUDA, an allocator) prints its last error only there. A script whose stderr is a
terminal keeps it, because it may test for a terminal.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections import deque
from contextlib import suppress

KEPT_CHUNKS = 64
CHUNK_BYTES = 8192
KEPT_CHARACTERS = 4000
# After the last process has ended, the rest of the pipe is read at once.
END_SECONDS = 2.0
STDERR = 2


def forwarded() -> Stderr | None:
    """A forwarder; None: stderr is a terminal, or no pipe or thread is to be had."""
    if os.isatty(STDERR):
        return None
    with suppress(OSError, RuntimeError):
        return Stderr()
    return None


class Stderr:
    """Forwards a pipe that is the stderr of a script."""

    def __init__(self) -> None:
        read, self.end = os.pipe()
        self._pipe = os.fdopen(read, "rb", buffering=0)
        self._kept: deque[bytes] = deque(maxlen=KEPT_CHUNKS)
        self._handed_over = False
        self._thread = threading.Thread(target=self._pass_on, name="stderr", daemon=True)
        self._thread.start()

    def started(self) -> None:
        """Leave the pipe's end to the script, which has started."""
        os.close(self.end)

    def last(self) -> str:
        """The last lines, once all processes have closed the pipe, or soon after the script.

        A process that the script leaves running may write on when this one has ended.
        """
        self._thread.join(END_SECONDS)
        if self._thread.is_alive() and not self._handed_over:
            self._handed_over = True
            with suppress(OSError):
                subprocess.Popen(["cat"], stdin=self._pipe, stdout=STDERR, start_new_session=True)
        return b"".join(tuple(self._kept)).decode(errors="replace")[-KEPT_CHARACTERS:]

    def _pass_on(self) -> None:
        with self._pipe:
            while chunk := os.read(self._pipe.fileno(), CHUNK_BYTES):
                self._kept.append(chunk)
                # If ddoctor's stderr is closed, the script must still not block.
                with suppress(OSError):
                    while chunk:
                        chunk = chunk[os.write(STDERR, chunk) :]
