"""Run the user's script as Python itself would, and record how it ended."""

from __future__ import annotations

import builtins
import io
import os
import re
import runpy
import shutil
import sys
import traceback
from collections.abc import Collection, Iterator, Sequence
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from pkgutil import get_importer
from types import CodeType, ModuleType, TracebackType
from typing import Any

import msgspec

from ddoctor.analysis import printed_tracebacks
from ddoctor.evidence import redaction
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.training import TRACEBACK, Source
from ddoctor.recorder import places, tracebacks

MOST_FRAMES = 60
LONGEST = 4000
# concurrent.futures and multiprocessing.pool: the cause of an exception from another process.
REMOTE = ("_RemoteTraceback", "RemoteTraceback")
SAFE_PATH = getattr(sys.flags, "safe_path", sys.flags.isolated)
"""Whether the user keeps the script's folder off ``sys.path``: -I, and -P from Python 3.11 on."""
# Frozen from Python 3.11 on.
RUNPY = ("<frozen runpy>", runpy.__file__)

# torch/csrc/distributed/c10d/reducer.cpp; the names come with TORCH_DISTRIBUTED_DEBUG only.
NUMBERED = re.compile(r"Parameter indices which did not receive grad for rank (\d+): ([\d ]+)")
NAMED = "Parameters which did not receive grad for rank {rank}: {names}"


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How the script ended, as far as Python saw it; the fields are those of RankEnding."""

    exception: str = ""
    message: str = ""
    then: str = ""
    source: Source = ""
    stack: tuple[Frame, ...] = ()


class Failed(Exception):
    """The script could not be started; the message says why."""


def check(words: Sequence[str]) -> None:
    """Check that the script exists; of a missing module Python itself tells.

    Raises:
        Failed: there is no such script.
    """
    if words[0] == "-m":
        return
    path = _found(words[0])
    # A mistake in what is plainly Python is for the script's own traceback. A pipe is read once.
    if os.path.isfile(path) and not path.endswith(".py") and get_importer(path) is None:
        _code(path)


def run(words: Sequence[str], before: Collection[str]) -> None:
    """Run ``script.py ARGS``, ``-m module ARGS`` or a command on the PATH that is Python.

    ``before``: the modules that Python itself had imported.

    Raises:
        Failed: there is no such script.
        BaseException: whatever the script raises.
    """
    module = ModuleType("__main__")
    module.__dict__.update(__annotations__={}, __builtins__=builtins)
    # What Python itself calls for -m, and for a folder or a zip file with a __main__.py.
    as_main: Any = runpy
    if words[0] == "-m":
        # It sets sys.argv[0].
        sys.argv = ["-m", *words[2:]]
        if not SAFE_PATH:
            _look_first(os.getcwd(), before)
        _become(module)
        as_main._run_module_as_main(words[1])
        return
    # Python names its script by the whole path, but for links and dots (since 3.9).
    path = os.path.join(os.getcwd(), _found(words[0]))
    sys.argv = [words[0] if os.path.exists(words[0]) else path, *words[1:]]
    if get_importer(path) is not None:
        _look_first(path, before)
        _become(module)
        as_main._run_module_as_main("__main__", False)
        return
    if not SAFE_PATH:
        _look_first(os.path.dirname(os.path.realpath(path)), before)
    loader = SourceFileLoader("__main__", path)
    module.__dict__.update(__cached__=None, __file__=path, __loader__=loader)
    code = _code(path)
    _become(module)
    exec(code, module.__dict__)


def _become(main: ModuleType) -> None:
    """Make this module the main one for good: what is pickled, and what ends last, looks there.

    Objects of a spawned process look in multiprocessing's own name for it.
    """
    sys.modules["__main__"] = main
    if "__mp_main__" in sys.modules:
        sys.modules["__mp_main__"] = main


def _look_first(place: str, before: Collection[str]) -> None:
    """Import from this folder first, also what ddoctor had imported from elsewhere.

    A user may have a ``statistics.py``.
    """
    sys.path.insert(0, place)
    for name in {name.partition(".")[0] for name in sys.modules.keys() - before}:
        known = getattr(sys.modules[name], "__spec__", None)
        found = PathFinder.find_spec(name, [place])
        if (
            known is not None
            and known.has_location
            and found is not None
            and found.has_location
            and found.origin != known.origin
        ):
            for one in [one for one in sys.modules if one.partition(".")[0] == name]:
                del sys.modules[one]


def _found(word: str) -> str:
    if os.path.isdir(word) and not os.path.isfile(os.path.join(word, "__main__.py")):
        raise Failed(f"{word} is a folder without a __main__.py: name the script in it")
    if os.path.exists(word):
        return word
    command = shutil.which(word) if os.sep not in word else None
    if command is None:
        raise Failed(f"there is no script {word} (in {Path.cwd()})")
    return command


def _code(path: str) -> CodeType:
    try:
        with io.open_code(path) as file:
            source = file.read()
    except OSError as error:
        raise Failed(f"{path} cannot be read: {error.strerror}") from None
    try:
        return compile(source, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        if path.endswith(".py"):
            raise
        raise Failed(f"{path} is no Python script ({error})") from None


def exiting(status: int) -> Ending:
    """How it ends in ``os._exit``, as its caller's caller."""
    error = SystemExit(status)
    for frame, line in traceback.walk_stack(sys._getframe(2)):
        error.__traceback__ = TracebackType(error.__traceback__, frame, frame.f_lasti, line)
    error.__context__ = sys.exc_info()[1]
    return ending(error)


def ending(error: BaseException | None) -> Ending:
    """How it ended."""
    # The script may have set variables, or read a file of them.
    redaction.remember(os.environ, sys.argv)
    if error is None:
        return Ending()
    if isinstance(error, SystemExit) and error.code in (None, 0):
        # Where it left the script is of interest if the other ranks did not.
        return Ending(stack=_frames(_stack([error])) if type(error) is SystemExit else ())
    said = ""
    if isinstance(error, SystemExit) and not isinstance(error.code, int):
        said = str(error.code)
    every = list(_handled(error))
    raised = [one for one in every if not _leaves(one) and type(one).__name__ not in REMOTE]
    first = raised[-1] if raised else None
    stack = _stack(every)
    if isinstance(first, SyntaxError) and first.filename:
        stack.append(traceback.FrameSummary(first.filename, first.lineno, "<module>"))
    frames = _frames(stack)
    if first is None:
        return Ending(message=said, stack=frames)
    if raised[0] is not first:
        said = said or f"{type(raised[0]).__name__}: {_message(raised[0])}".removesuffix(": ")
    message = with_names(_message(first))
    return Ending(
        exception=type(first).__name__,
        message=redaction.beginning(message, LONGEST),
        then=""
        if said == f"{type(first).__name__}: {message}"
        else redaction.beginning(said, LONGEST),
        source="exit" if _leaves(error) else "",
        stack=(*frames, *_of_another_process(every)),
    )


def _frames(stack: Sequence[traceback.FrameSummary]) -> tuple[Frame, ...]:
    return tuple(
        Frame(
            file=one.filename,
            line=one.lineno or 0,
            function=one.name,
            text=(one.line or "").strip(),
            of_user=places.of_user(one.filename),
        )
        for one in stack[-MOST_FRAMES:]
    )


def _handled(error: BaseException | None) -> Iterator[BaseException]:
    """The exception, then its cause or the exception being handled at its raise, and so on."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        # Who exits ``from None`` hides the reason, too.
        hidden = error.__suppress_context__ and not _leaves(error)
        error = error.__cause__ or (None if hidden else error.__context__)


def _leaves(error: BaseException) -> bool:
    """Whether it only says that the script is to exit, as SystemExit and click's Exit do."""
    if isinstance(error, SystemExit):
        return True
    code = getattr(error, "exit_code", None)
    return code is not None and _message(error) in ("", str(code))


def _stack(every: Sequence[BaseException]) -> list[traceback.FrameSummary]:
    """The stack down to the first exception: each was caught in a frame of the one after it."""
    found: list[TracebackType] = []
    for one in every:
        inner = list(_entries(tracebacks.own(one.__traceback__)))
        caught = inner[0].tb_frame if inner else None
        above = next((n for n, entry in enumerate(found) if entry.tb_frame is caught), None)
        if above is not None:
            found[above:] = inner
        elif not found:
            found = inner
    pairs = ((entry.tb_frame, entry.tb_lineno) for entry in found)
    return [one for one in traceback.StackSummary.extract(pairs) if one.filename not in RUNPY]


def _entries(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _of_another_process(every: Sequence[BaseException]) -> tuple[Frame, ...]:
    """The stack of a worker that handed its traceback on in a message; empty: none did."""
    for one in every:
        lines = _message(one).replace(f"Original {TRACEBACK}", TRACEBACK).splitlines()
        if printed := printed_tracebacks.last(lines, places.of_user):
            return printed.stack
    return ()


def _message(error: BaseException) -> str:
    """Its text, without the halves of characters that no file can hold."""
    try:
        return str(error).encode(errors="backslashreplace").decode()
    except Exception:
        return "<exception str() failed>"  # as Python writes it


def with_names(message: str) -> str:
    """DDP's error about unused parameters with their names, which it only counts, if known."""
    found = NUMBERED.search(message)
    if found is None or NAMED.partition("{")[0] in message:
        return message
    rank, numbers = found[1], [int(number) for number in found[2].split()]
    parallel: Any = sys.modules.get("torch.nn.parallel")
    if parallel is None:
        return message
    # It imports torch, which may be missing.
    from ddoctor.recorder import alive

    models: list[Any] = alive.objects(parallel.DistributedDataParallel)
    if len(models) != 1:
        return message
    names = [
        name
        for name, parameter in models[0].module.named_parameters()
        if parameter.requires_grad and name not in models[0].parameters_to_ignore
    ]
    if max(numbers) >= len(names):
        return message
    told = ", ".join(names[number] for number in numbers)
    return (
        f"{message[: found.start()]}{NAMED.format(rank=rank, names=told)}\n{found[0]}"
        + (message[found.end() :])
    )
