"""Signals that ask ddoctor to end: all raise KeyboardInterrupt, as Ctrl-C does."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import NoReturn

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

received: list[int] = []
"""The signals so far. Native code, as in an import, may fail on KeyboardInterrupt instead."""


SOON_SECONDS = 0.01


class Interruption(KeyboardInterrupt):
    """Python itself dies of SIGINT at its end if a plain one went through an ``exec``."""


def enable() -> None:
    """Raise KeyboardInterrupt in the main thread on each of these signals."""
    insist_on(Interruption)
    handle(ENDING, _interrupt)


def insist_on(kind: type[BaseException]) -> None:
    """Raise errors of this kind again, which a signal's handler has raised and Python has dropped.

    It drops what is raised in the callback of a weak reference, or in ``__del__``: also the import
    of a module has such callbacks.
    """
    show = sys.unraisablehook

    def look(dropped: sys.UnraisableHookArgs) -> None:
        error = dropped.exc_value
        if not isinstance(error, kind):
            show(dropped)
            return

        def again(number: int, frame: FrameType | None) -> NoReturn:
            raise error

        signal.signal(signal.SIGALRM, again)
        signal.setitimer(signal.ITIMER_REAL, SOON_SECONDS)

    sys.unraisablehook = look


def handle(
    numbers: Iterable[int], handler: Callable[[int, FrameType | None], object] | signal.Handlers
) -> None:
    """Handle these signals, but for those that are ignored, as SIGHUP is under nohup."""
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def end_at_once() -> None:
    """Let Ctrl-C end this process as the other signals do, without a traceback."""
    handle([signal.SIGINT], signal.SIG_DFL)


def exit_code() -> int:
    """The exit code of a shell for a command that the received signal has ended."""
    return 128 + (received[-1] if received else signal.SIGINT)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    received.append(number)
    raise Interruption
