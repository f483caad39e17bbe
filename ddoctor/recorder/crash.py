"""Keeps the stack at a crash of the script's process (say SIGSEGV), by faulthandler.

A script may close descriptors that it does not know, as daemons do, and open its own files under
their numbers. faulthandler must never write to those.
"""

from __future__ import annotations

import errno
import faulthandler
import fcntl
import os
import resource
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

from ddoctor.proc.files import text

# The kernel's table of descriptors takes 8 bytes for each number.
MOST = 65_536
# Where the limit cannot be raised: far above the numbers that a script counts on.
HIGHEST = 1000
BELOW_LIMIT = 8
# With fewer, the script may need each of them.
FEWEST = 64


def keep(named: Path) -> None:
    """Write the stack to the file that this one names if the process's own signal ends it."""
    path = text(named)
    if faulthandler.is_enabled() or not path:
        return
    file = _CrashFile(path)
    file.open()
    for name in ("close", "closerange", "dup2"):
        _watch(name, file)


class _CrashFile:
    """The file, under a number that moves out of the script's way."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.number = -1

    def open(self) -> None:
        self.number = -1
        # Without a free number, or on a full disk, there is no stack; the script goes on.
        with suppress(OSError, ValueError):
            first = os.open(self._path, os.O_WRONLY | os.O_APPEND)
            try:
                self.number = _moved(first)
            finally:
                CLOSE(first)
            faulthandler.enable(self.number)


def _moved(file: int) -> int:
    """A copy under a number that no file of the script gets.

    That is the first one beyond its limit: so it takes none from the script, and even where native
    code closes it, nothing else is ever opened there.
    """
    limits = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < MOST and (hard < 0 or soft < hard):
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft + 1, hard))
        try:
            return fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, soft)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    if 0 <= soft < FEWEST:
        raise OSError(errno.EMFILE, "too few descriptors")
    highest = HIGHEST if soft < 0 else min(HIGHEST, soft - BELOW_LIMIT)
    return fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, highest)


CLOSE = os.close


def _watch(name: str, file: _CrashFile) -> None:
    """Reopen the file where the script closes its number, or takes it."""
    original = getattr(os, name)
    # At its end Python sets the names of a module to None, and closes files after that.
    taken, handler = _taken, faulthandler

    @wraps(original)
    def call(*given: Any, **named: Any) -> Any:
        if not taken(file.number, name, given, named):
            return original(*given, **named)
        handler.disable()
        try:
            result = original(*given, **named)
        except BaseException:
            handler.enable(file.number)
            raise
        file.open()
        return result

    setattr(os, name, call)


def _taken(number: int, name: str, given: tuple[Any, ...], named: dict[str, Any]) -> bool:
    if number < 0:
        return False
    if name == "close":
        return number == (given[0] if given else named.get("fd"))
    if name == "dup2":
        return number == (given[1] if len(given) > 1 else named.get("fd2"))
    # os.closerange takes no names.
    return len(given) == 2 and given[0] <= number < given[1]
