"""Runs torchrun or accelerate, and ends with the exit code of the report.

They print a page about each rank that fails. A rank whose script came to its end, but whose report
has findings, does not fail: it tells its exit code past them to this process.
"""

# ruff: noqa: E402 - during the imports, Ctrl-C must not show a traceback of ddoctor.

from __future__ import annotations

from ddoctor.proc import interruption

interruption.end_at_once()

import os
import runpy
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from signal import SIGINT, default_int_handler
from types import TracebackType

VARIABLE = "DDOCTOR_LAUNCHER"
# Frozen from Python 3.11 on.
OUTSIDE = (__file__, runpy.__file__, "<frozen runpy>")


def main() -> int:
    """Run the launcher of ``sys.argv``, FILE or -m MODULE with its arguments."""
    reader, writer = os.pipe()
    # Ranks inherit no descriptor, but find those of this process by name.
    name = f"/proc/{os.getpid()}/fd/{writer}"
    os.environ[VARIABLE] = f"{name} {os.readlink(name)}"
    sys.excepthook = partial(_show, sys.excepthook)
    del sys.argv[0]
    interruption.handle([SIGINT], default_int_handler)
    try:
        if sys.argv[0] == "-m":
            del sys.argv[0]
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = os.path.dirname(sys.argv[0])
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as ended:
        if ended.code:
            raise
    os.set_blocking(reader, False)
    with suppress(BlockingIOError):
        return max(os.read(reader, 1000))
    return 0


def _show(
    show: Callable[..., object],
    kind: type[BaseException],
    error: BaseException,
    where: TracebackType | None,
) -> None:
    """Show an exception of the launcher as without this module."""
    while where is not None and where.tb_frame.f_code.co_filename in OUTSIDE:
        where = where.tb_next
    show(kind, error.with_traceback(where), where)


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


if __name__ == "__main__":
    sys.exit(main())
