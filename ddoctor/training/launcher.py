"""Runs torchrun or accelerate, and ends with the exit code of the report."""

# ruff: noqa: E402 - during the imports, Ctrl-C must not show a traceback of ddoctor.

from __future__ import annotations

from ddoctor.proc import interruption

interruption.end_at_once()

import os
import runpy
import sys
from collections.abc import Callable
from functools import partial
from signal import SIGINT, default_int_handler
from types import TracebackType

from ddoctor.training.answer import Answer

# Frozen from Python 3.11 on.
OUTSIDE = (__file__, runpy.__file__, "<frozen runpy>")


def main() -> int:
    """Run the launcher of ``sys.argv``, FILE or -m MODULE with its arguments."""
    answer = Answer()
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
    return answer.exit_code()


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


if __name__ == "__main__":
    sys.exit(main())
