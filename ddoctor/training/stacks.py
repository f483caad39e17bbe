"""The stack of a script that hangs, crashed or raised an exception."""

from __future__ import annotations

import json
import linecache
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from shutil import which

from msgspec.structs import replace

from ddoctor import blocks
from ddoctor.evidence.frames import Block, Frame
from ddoctor.evidence.training import ECHO, ENGINE
from ddoctor.recorder import places
from ddoctor.recorder.script import Ending
from ddoctor.recorder.tape import DDP_BUFFERS, DDP_REDUCE, FIRST_FUNCTION, OPERATIONS

STACK_SECONDS = 10.0
FUNCTIONS = OPERATIONS[FIRST_FUNCTION:]
# torch/nn/parallel/distributed.py
SYNC_BUFFERS = "_sync_buffers"
FATAL = "Fatal Python error: "
FAULT = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)


Stack = tuple[Frame, ...]


@dataclass(frozen=True)
class Sampled:
    """The stacks of a process at one moment; empty: py-spy cannot read them."""

    main: Stack = ()
    others: tuple[Stack, ...] = ()
    """Of the threads that run code of the user's, without the main one."""


@dataclass(frozen=True)
class Placed:
    """A stack with the text of the user's lines, and what is around them in the source."""

    stack: Stack = ()
    within: tuple[Block, ...] = ()
    """Loops and branches."""
    contexts: tuple[Frame, ...] = ()
    """``with`` statements."""


def sampled(pid: int) -> Sampled:
    """The stacks of a process, sampled by py-spy."""
    spy = which(
        "py-spy", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    )
    if spy is None:
        return Sampled()
    try:
        done = subprocess.run(
            [spy, "dump", "--json", "--nonblocking", "--pid", str(pid)],
            capture_output=True,
            timeout=STACK_SECONDS,
            check=True,
        )
        threads = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return Sampled()
    main, others = Stack(), list[Stack]()
    for thread in threads:
        rows = [(one["filename"], one["line"], one["name"]) for one in thread["frames"]]
        stack = _frames(rows)
        if thread.get("thread_name") == "MainThread":
            main = stack
        elif any(frame.of_user for frame in stack):
            others.append(stack)
    return Sampled(main, tuple(others))


def _frames(rows: Sequence[tuple[str, str | int, str]]) -> tuple[Frame, ...]:
    """The frames outside of ddoctor and Python's import, from files, lines and functions."""
    return tuple(
        Frame(file=file, line=int(line), function=name, of_user=places.of_user(file))
        for file, line, name in reversed(rows)
        # recorded.START is <string>.
        if "ddoctor/recorder" not in file and not file.startswith(("<frozen", "<string>"))
    )


def with_source(stack: Sequence[Frame], began: float) -> Placed:
    """Place a stack in the source.

    ``began``: when the script started, in seconds since 1970.
    """
    frames, around, contexts = list[Frame](), list[Block](), list[Frame]()
    for frame in stack:
        lines = _source(frame.file, began) if frame.of_user else ()
        nodes = blocks.parsed(lines)
        frames.append(_told(frame, lines))
        around += blocks.around(frame, nodes, lines)
        contexts += (
            _told(replace(frame, line=line, text=""), lines)
            for line in blocks.contexts(frame, nodes)
        )
    return Placed(tuple(frames), tuple(around), tuple(contexts))


def _told(frame: Frame, lines: Sequence[str]) -> Frame:
    return replace(frame, text=frame.text or "".join(lines[frame.line - 1 : frame.line]).strip())


def _source(file: str, began: float) -> Sequence[str]:
    """Its lines; empty: it cannot be read, or changed after the start and is not what runs."""
    with suppress(OSError):
        if os.stat(file).st_mtime <= began:
            return linecache.getlines(file)
    return ()


def of_crash(text: str, printed: str) -> tuple[Frame, ...]:
    """The stack at a crash such as SIGSEGV, from faulthandler; empty: there was none.

    ``printed``: what the rank printed to stderr.
    """
    # A script that enables it, as torchelastic's ``record`` does, has it write to stderr.
    text = text or printed.partition(FATAL)[2]
    # Each thread has its innermost frame first. The one that crashed may be of native code,
    # such as gloo's; then the script was where the main thread was, which comes last.
    current = FAULT.findall(text.partition("Current thread")[2].partition("\n\n")[0])
    return _frames(current or FAULT.findall(text.rpartition("\nThread ")[2]))


def raised_in(ending: Ending) -> str:
    """The collective whose call raised the exception; empty: it was raised elsewhere.

    When the exception left the call, the tape returned to the phase around it.
    """
    inner = list(takewhile(lambda frame: not frame.of_user, reversed(ending.stack)))
    for frame in reversed(inner):
        if frame.function in FUNCTIONS and "torch/distributed/" in frame.file:
            return frame.function
        if frame.bare == SYNC_BUFFERS:
            return OPERATIONS[DDP_BUFFERS]
    # DDP reduces gradients during the backward pass, whose other errors name no connection.
    lost = ECHO.search(ending.message) and any(frame.function == ENGINE for frame in inner)
    return OPERATIONS[DDP_REDUCE] if lost else ""
