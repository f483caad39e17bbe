"""Other programs that collectors run; none of them outlives the collecting."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from threading import Lock, Thread, current_thread
from weakref import WeakSet

_LOCK = Lock()
_RUNNING: dict[Thread, subprocess.Popen[str]] = {}
_ENDED: WeakSet[Thread] = WeakSet()


def run(
    command: Sequence[str], *, seconds: float, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, and return what it prints.

    Raises:
        OSError: it cannot be started, or the collecting has ended.
        TimeoutExpired: it took longer.
    """
    thread = current_thread()
    with _LOCK:
        if thread in _ENDED:
            raise OSError("interrupted")
        child = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment,
        )
        _RUNNING[thread] = child
    with child:
        try:
            output, errors = child.communicate(timeout=seconds)
        except BaseException:
            child.kill()
            raise
        finally:
            with _LOCK:
                del _RUNNING[thread]
    return subprocess.CompletedProcess(command, child.returncode, output, errors)


def end(threads: Iterable[Thread]) -> None:
    """End what these threads run, and let them start nothing more."""
    with _LOCK:
        # Also one that has not begun: the interrupt may have come while it was started.
        _ENDED.update(threads)
        children = [child for thread, child in _RUNNING.items() if thread in _ENDED]
    for child in children:
        child.kill()
        child.wait()
