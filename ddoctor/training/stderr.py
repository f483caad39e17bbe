"""Forward a script's stderr, and keep its last lines.

Native code (gloo, CUDA, an allocator) prints its last error only there. A script whose stderr is a
terminal keeps it, because it may test for a terminal.
"""

from __future__ import annotations

import os
import select
import subprocess
import threading
from contextlib import suppress

KEPT_BYTES = 2**19
CHUNK_BYTES = 8192
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
        # The forwarding thread stops once the second end of this pipe is closed.
        stopped, going = os.pipe()
        self._stopped = os.fdopen(stopped, "rb", buffering=0)
        self._going = os.fdopen(going, "wb", buffering=0)
        self._kept = bytearray()
        self._whole = True
        self._thread = threading.Thread(target=self._pass_on, name="stderr", daemon=True)
        self._thread.start()

    def started(self) -> None:
        """Leave the pipe's end to the script, which has started."""
        os.close(self.end)

    def ended(self) -> str:
        """The last lines of a script that has ended, as far as they come soon after its end."""
        self._thread.join(END_SECONDS)
        if self._thread.is_alive():
            self._hand_over()
        printed = self._kept[-KEPT_BYTES:].decode(errors="replace")
        if self._whole:
            return printed
        # It begins with the rest of a line, or of a key.
        return "".join(printed.splitlines(keepends=True)[1:])

    def _hand_over(self) -> None:
        """Leave the pipe to a process that outlives this one, as one of the script's may do.

        The thread stops first: what it reads while the interpreter ends is lost.
        """
        self._going.close()
        self._thread.join(END_SECONDS)
        with suppress(OSError), self._pipe:
            subprocess.Popen(["cat"], stdin=self._pipe, stdout=STDERR, start_new_session=True)

    def _keep(self, chunk: bytes) -> None:
        # Chunks may be of a few bytes each, as those of faulthandler.
        self._kept += chunk
        self._whole = self._whole and len(self._kept) <= KEPT_BYTES
        if len(self._kept) > 2 * KEPT_BYTES:
            del self._kept[:-KEPT_BYTES]

    def _pass_on(self) -> None:
        with self._stopped, self._going:
            while self._stopped not in select.select([self._pipe, self._stopped], [], [])[0]:
                chunk = self._pipe.read(CHUNK_BYTES)
                if not chunk:
                    self._pipe.close()
                    return
                self._keep(chunk)
                # If ddoctor's stderr is closed, the script must still not block.
                with suppress(OSError):
                    while chunk:
                        chunk = chunk[os.write(STDERR, chunk) :]
