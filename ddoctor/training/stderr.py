"""What a script prints on stderr: passed on as it comes, and the last of it kept.

What native code says before it gives up (gloo, CUDA, an allocator) is said there, and nowhere else.
A terminal is left to the script itself, which may ask whether it is one.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import suppress
from typing import IO

KEPT_CHUNKS = 64
CHUNK_BYTES = 8192
KEPT_CHARACTERS = 4000
# After the last process has gone, what is in the pipe is read at once.
END_SECONDS = 2.0
STDERR = 2


class Stderr:
    """The reading end of a pipe that is a script's stderr."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._kept: deque[bytes] = deque(maxlen=KEPT_CHUNKS)
        self._thread = threading.Thread(target=self._pass_on, name="stderr", daemon=True)
        self._thread.start()

    def last(self) -> str:
        """The last words, once nobody prints any more."""
        self._thread.join(END_SECONDS)
        return b"".join(tuple(self._kept)).decode(errors="replace")[-KEPT_CHARACTERS:]

    def _pass_on(self) -> None:
        with self._pipe:
            while chunk := os.read(self._pipe.fileno(), CHUNK_BYTES):
                self._kept.append(chunk)
                # Nobody may read it any more; the script is not to be held up by that.
                with suppress(OSError):
                    while chunk:
                        chunk = chunk[os.write(STDERR, chunk) :]
