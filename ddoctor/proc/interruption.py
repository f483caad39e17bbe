"""Signals that ask ddoctor to end: all raise KeyboardInterrupt, as Ctrl-C does."""

from __future__ import annotations

import signal
from types import FrameType
from typing import NoReturn

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

received: list[int] = []
"""The signals so far. Native code, as of imports, may swallow KeyboardInterrupt and fail later."""


def enable() -> None:
    """Raise KeyboardInterrupt in the main thread on each of these signals."""
    for number in ENDING:
        signal.signal(number, _interrupt)


def exit_code() -> int:
    """The exit code of a shell for a command that the received signal has ended."""
    return 128 + (received[-1] if received else signal.SIGINT)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    received.append(number)
    raise KeyboardInterrupt
