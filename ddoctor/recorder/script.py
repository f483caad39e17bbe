"""Run the user's script as Python itself would, and keep how it ended."""

from __future__ import annotations

import builtins
import io
import os
import runpy
import shutil
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType, TracebackType

import msgspec

from ddoctor.evidence.training import Frame
from ddoctor.recorder import places

MOST_FRAMES = 60


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How the script ended, as far as Python had a say in it."""

    exit_code: int
    time: float
    """Seconds of the machine's monotonic clock."""
    exception: str = ""
    message: str = ""
    stack: tuple[Frame, ...] = ()


class Failed(Exception):
    """The script could not be started; the message says why."""


def run(words: Sequence[str]) -> None:
    """Run ``script.py ARGS``, ``-m module ARGS`` or a command on the PATH that is Python.

    Raises:
        Failed: there is nothing like that to run.
        BaseException: whatever the script raises.
    """
    if words[0] == "-m":
        if len(words) < 2:
            raise Failed("-m needs the name of a module")
        sys.argv = [words[1], *words[2:]]
        # As Python does it: the folder of the user comes first.
        sys.path.insert(0, os.getcwd())
        try:
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        except ImportError as error:
            if error.name == words[1]:
                raise Failed(f"there is no module {words[1]}") from None
            raise
        return
    path = _found(words[0])
    sys.argv = [words[0], *words[1:]]
    sys.path.insert(0, str(path.resolve().parent))
    module = ModuleType("__main__")
    module.__dict__.update(__file__=str(words[0]), __builtins__=builtins, __cached__=None)
    if path != Path(words[0]):
        module.__file__ = str(path)
    code = _code(path)
    # For good: what is pickled, and what ends last, looks there for the user's own names.
    sys.modules["__main__"] = module
    exec(code, module.__dict__)


def _found(word: str) -> Path:
    path = Path(word)
    if path.is_dir() and (path / "__main__.py").is_file():
        return path / "__main__.py"
    if path.is_file():
        return path
    command = shutil.which(word) if os.sep not in word else None
    if command is None:
        raise Failed(f"there is no script {word}")
    return Path(command)


def _code(path: Path) -> CodeType:
    with io.open_code(str(path)) as file:
        source = file.read()
    try:
        return compile(source, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        if path.suffix == ".py":
            raise
        raise Failed(f"{path} is no Python script ({error})") from None


def ending(error: BaseException | None) -> Ending:
    """How it ended."""
    now = time.perf_counter()
    if error is None:
        return Ending(exit_code=0, time=now)
    if isinstance(error, SystemExit):
        code = error.code
        number = code if isinstance(code, int) else 0 if code is None else 1
        message = "" if code is None or isinstance(code, int) else str(code)
        return Ending(exit_code=number, time=now, message=message)
    stack = traceback.extract_tb(_own(error.__traceback__))[-MOST_FRAMES:]
    return Ending(
        exit_code=130 if isinstance(error, KeyboardInterrupt) else 1,
        time=now,
        exception=type(error).__name__,
        message=str(error)[:4000],
        stack=tuple(
            Frame(
                file=one.filename,
                line=one.lineno or 0,
                function=one.name,
                text=(one.line or "").strip(),
                of_user=places.of_user(one.filename),
            )
            for one in stack
        ),
    )


def without_us(error: BaseException) -> BaseException:
    """The exception with a traceback as if Python itself had run the script."""
    return error.with_traceback(_own(error.__traceback__))


def _own(trace: TracebackType | None) -> TracebackType | None:
    """Without the frames that run the script, and those that stand between it and torch."""
    frames = []
    while trace is not None:
        if not _of_recorder(trace.tb_frame.f_code.co_filename):
            frames.append(trace)
        trace = trace.tb_next
    own: TracebackType | None = None
    for one in reversed(frames):
        own = TracebackType(own, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return own


def _of_recorder(file: str) -> bool:
    return file.startswith(str(Path(__file__).parent)) or file.endswith("<frozen runpy>")
