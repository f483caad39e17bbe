"""Temporary folders that do not outlast their use, even if ddoctor is killed.

The owner of a folder holds a lock as long as it lives. A process that makes or removes a folder
also removes those of the same user whose lock is free, and whose processes have ended.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import stat
from contextlib import suppress
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from weakref import finalize

from ddoctor.proc import processes

PREFIX = "ddoctor-"
LOCK = "owner"
"""The locked file in a folder. It names the host: on a shared disk, a lock may hold only there."""
TAG = "DDOCTOR_FOLDER"
"""Environment variable of the processes that use a folder: its path."""


ROOM_BYTES = 16 * 2**20
"""What one rank writes: a tape of 6 MiB, and some MiB of facts, samples or journals."""
IN_MEMORY = "/dev/shm"


class TemporaryFolder(TemporaryDirectory[str]):
    """A folder in ``TMPDIR``, or in memory if that is full, for this user alone."""

    _finalizer: finalize[..., TemporaryFolder]

    def __init__(self) -> None:
        with processes.undisturbed():
            super().__init__(dir=_roomy(), prefix=PREFIX, ignore_cleanup_errors=True)
            self.path = Path(self.name)
            # What tempfile itself does at exit may remove the lock first, and be killed then.
            self._finalizer.detach()
            self._finalizer = finalize(self, _remove, self.path)
            self.tag = {TAG: self.name}
            self._lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            # Where the file system knows no locks, no one else gets this one either.
            with suppress(OSError):
                fcntl.flock(self._lock, fcntl.LOCK_EX)
                os.write(self._lock, os.fsencode(socket.gethostname()))
        sweep()

    def cleanup(self) -> None:
        """Remove the folder."""
        with processes.undisturbed():
            with suppress(OSError):
                _remove(self.path)
            super().cleanup()
            os.close(self._lock)
        sweep()


def without_room() -> str:
    """Why temporary files cannot be written, and what to do; empty: there is room for them."""
    if _has_room(_roomy()):
        return ""
    return (
        f"{gettempdir()} has no room for temporary files: set TMPDIR to a folder with "
        f"{ROOM_BYTES >> 20} MiB"
    )


def _roomy() -> str:
    """The first of the places with room; ``TMPDIR`` if none has it."""
    places = (gettempdir(), IN_MEMORY)
    return next(filter(_has_room, places), places[0])


def _has_room(place: str) -> bool:
    try:
        return os.access(place, os.W_OK) and shutil.disk_usage(place).free >= ROOM_BYTES
    except OSError:
        return False


def sweep() -> None:
    """Remove the folders that a killed ddoctor of this user has left on this host."""
    for path in chain(*(Path(one).glob(f"{PREFIX}*") for one in (gettempdir(), IN_MEMORY))):
        # Another one may sweep, too.
        with suppress(OSError):
            _sweep(path)


def _sweep(path: Path) -> None:
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return
    lock = os.open(path / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        here = os.read(lock, 256) == os.fsencode(socket.gethostname())
        if here and not processes.carrying(**{TAG: str(path)}):
            _remove(path)
    finally:
        os.close(lock)


def _remove(path: Path) -> None:
    """Remove a folder; its lock goes last, so that the next sweep finds what this one leaves."""
    for one in path.iterdir():
        if one.is_dir() and not one.is_symlink():
            shutil.rmtree(one, ignore_errors=True)
        elif one.name != LOCK:
            one.unlink()
    shutil.rmtree(path, ignore_errors=True)
