"""Tracebacks in a log, put together again where several processes wrote at the same time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ddoctor.evidence.frames import Frame
from ddoctor.evidence.training import TRACEBACK
from ddoctor.reading import notebook_frames
from ddoctor.reading.libraries import LIBRARY

MOST_FRAMES = 200
MOST_MESSAGE_LINES = 40
# Lines of other writers between two lines of a traceback; more, and it was cut off.
MOST_FOREIGN = 50

FRAME = re.compile(
    r'^\s{2,}File "(?P<file>[^"]{1,1000})", line (?P<line>\d{1,9}), in (?P<function>.+)$'
)
MARKS = re.compile(r"^[\s~^]*$")
EXCEPTION = re.compile(
    r"^(?P<name>(?:[A-Za-z_]\w{0,99}\.){0,12}[A-Z]\w{0,99}"
    r"(?:Error|Exception|Exit|Interrupt|Timeout|Failure|Failed|Stop\w{0,99}|Fault|NotFound|Found|Expired"
    r"|Aborted|Cancelled|Refused|Killed|Warning|Unavailable|Mismatch|Group)"
    r"|(?:[A-Za-z_]\w{0,99}\.){1,12}[A-Z]\w{0,99}|Exception)(?::(?: (?P<message>.*))?)?$"
)
# A line of source that raises one with a constant text.
RAISES = re.compile(
    r"^raise (?P<name>(?:[A-Za-z_]\w{0,99}\.){0,3}[A-Z]\w{0,99})"
    r"""\((?P<quote>["'])(?P<message>[^"']{1,400})(?P=quote)\)"""
)
# The last line of a traceback whose other lines were not kept; conda's is of a shell, which
# continues.
ALONE = re.compile(
    r"^(?!CommandNotFoundError: )"
    r"(?P<name>(?:[A-Za-z_]\w{0,99}\.){0,12}(?:[A-Z]\w{0,99}(?:Error|Exception)|Exception))"
    r": (?P<message>.+)$"
)
# Often quoted without their class: torch/csrc/distributed/c10d/reducer.cpp and
# c10/cuda/CUDACachingAllocator.cpp.
BARE = (
    (re.compile(r"^Expected to (?:have finished reduction|mark a variable ready)"), "RuntimeError"),
    (
        re.compile(r"^(?:CUDA out of memory\. )?Tried to allocate \d[\d.]{0,9} [KMG]iB"),
        "OutOfMemoryError",
    ),
)
# Python writes one of these between two exceptions of a chain.
DURING = "During handling of the above exception, another exception occurred:"
BECAUSE = "The above exception was the direct cause of the following exception:"
# torch/multiprocessing/spawn.py: the child's traceback follows; the parent's tells nothing.
SPAWNED = re.compile(r"^-- Process \d{1,7} terminated with the following error:$")
# A line that another writer has begun: a time, a level, a step, a bar, a table, a process of a
# launcher.
ANOTHER = re.compile(
    r"^(?:\[[EWIF]?\d{4}[ -]|[EWIF]\d{3,4} |\d{4}-\d\d-\d\d|\[\d{4}-|\[rank|srun: |slurmstepd|"
    r"[-|(\[ ]{0,3}(?:INFO|WARNING|ERROR|DEBUG|CRITICAL)\b|Killing subprocess|Traceback|={10}|-{10}"
    r"|\*{10}|\+[-=]{10}|.{0,80}\d+%\||terminate called|frame #\d+:|Exception raised from"
    r"|\w[\w.-]{0,60}:\d+:\d+ \[\d+\] )"
)
# Python continues after these, as after one in a destructor.
IGNORED = "Exception ignored in"
# The thread that feeds a queue prints them, and Python continues: its readers have gone.
OF_FEEDERS = ("BrokenPipeError", "ConnectionResetError")
FEEDER = ("multiprocessing/queues.py", "_feed")
# A launcher raises these about the processes that it started.
OF_LAUNCHERS = (
    *("ChildFailedError", "CalledProcessError", "SignalException", "BrokenBarrierError"),
    *("RendezvousConnectionError", "RendezvousTimeoutError", "RendezvousClosedError"),
    "ProcessExitedException",
)


@dataclass(frozen=True, kw_only=True)
class Raised:
    """An exception with what it raised while it was handled."""

    exception: str
    """Class of the first of the chain, without its module."""
    message: str
    then: str
    """The last of the chain, with its message; empty: the first is the only one."""
    stack: tuple[Frame, ...]
    line: int
    """Number of the line that names it."""

    @property
    def of_launcher(self) -> bool:
        """Whether it only says how another process ended."""
        return self.exception in OF_LAUNCHERS


@dataclass
class _Open:
    """A traceback that is being read."""

    stack: list[Frame] = field(default_factory=list)
    begun_as: str = ""
    """The exception that a notebook names in the first line."""
    name: str = ""
    message: list[str] = field(default_factory=list)
    line: int = 0
    ignored: bool = False
    """Whether Python continues after it, as after one in a destructor."""


class Tracebacks:
    """Those of one writer; its lines come one after the other."""

    def __init__(self) -> None:
        self._now: _Open | None = None
        self._before: Raised | None = None
        self._chained = False
        self._foreign = 0
        self.last = 0
        """Number of the last line that was taken."""
        self.before: frozenset[str] = frozenset()
        """The forms of its writer's progress before it."""

    @property
    def open(self) -> bool:
        """Whether the next lines may belong to a traceback."""
        return self._now is not None or self._before is not None

    @property
    def ignored(self) -> bool:
        """Whether the lines belong to an exception after which Python continues."""
        return self._now is not None and self._now.ignored

    @staticmethod
    def begins(text: str) -> bool:
        """Whether a line begins one."""
        return (
            _is_head(text)
            or text.startswith(IGNORED)
            or FRAME.match(text) is not None
            or ALONE.match(text) is not None
            or notebook_frames.is_linked(text)
            or _bare(text) != ""
        )

    def feed(self, text: str, number: int) -> Iterator[Raised]:
        """Take the next line; yield an exception once its chain has ended."""
        self.last = number
        now = self._now
        frame = FRAME.match(text) if "File" in text else None
        if _is_head(text) or text.startswith(IGNORED):
            begun = now is not None and now.ignored and not (now.name or now.stack)
            yield from self._closed(going_on=True)
            notebook = notebook_frames.HEAD.match(text)
            self._now, self._foreign = (
                _Open(
                    begun_as=notebook["name"].rpartition(".")[2] if notebook else "",
                    ignored=begun or not _is_head(text),
                    line=number,
                ),
                0,
            )
        elif frame and (now is None or now.name):
            # The beginning of the traceback is missing.
            yield from self._closed(going_on=True)
            self._now = _Open()
            self._now.stack.append(_frame(frame))
        elif now is None and notebook_frames.is_linked(text):
            self._now = _Open()
            notebook_frames.add(self._now.stack, text)
        elif now is None:
            yield from self._after(text)
            if not self._chained and (alone := ALONE.match(text)):
                self._now = _alone(alone, number)
            elif not self._chained and (name := _bare(text)):
                self._now = _Open(name=name, message=[text], line=number)
        elif not now.name:
            yield from self._within(now, frame, text, number)
        elif SPAWNED.match(text):
            self._now = None
        elif ANOTHER.match(text) or text in (DURING, BECAUSE) or _again(now, text):
            yield from self._closed(going_on=True)
            yield from self._after(text)
            if alone := ALONE.match(text):
                self._now = _alone(alone, number)
        elif len(now.message) < MOST_MESSAGE_LINES:
            now.message.append(text)
        else:
            yield from self._closed(going_on=True)

    def _within(
        self, now: _Open, frame: re.Match[str] | None, text: str, number: int
    ) -> Iterator[Raised]:
        if frame:
            self._foreign = 0
            if len(now.stack) < MOST_FRAMES:
                now.stack.append(_frame(frame))
        elif len(now.stack) < MOST_FRAMES and notebook_frames.add(now.stack, text):
            self._foreign = 0
        elif text.startswith("  "):
            if now.stack and not now.stack[-1].text and not MARKS.match(text):
                now.stack[-1] = _with_text(now.stack[-1], text.strip())
        elif raised := EXCEPTION.match(text):
            now.name, now.line = raised["name"].rpartition(".")[2], number
            now.message.append(raised["message"] or "")
        else:
            yield from self._another()

    def _after(self, text: str) -> Iterator[Raised]:
        """Take a line after a traceback: the next of a chain may follow."""
        if text in (DURING, BECAUSE):
            self._chained, self._foreign = True, 0
        elif self._chained:
            yield from self._another()
        elif text.strip():
            yield from self.ended()

    def _another(self) -> Iterator[Raised]:
        """Count a line of another writer; of too many, what is open has no end."""
        self._foreign += 1
        if self._foreign > MOST_FOREIGN:
            self._now, self._foreign = None, 0
            yield from self.ended()

    def _closed(self, *, going_on: bool) -> Iterator[Raised]:
        """Close the traceback that is being read."""
        now, self._now = self._now, None
        if now is not None and now.name and not _goes_on(now):
            yield from self._add(now)
        if not going_on:
            yield from self.ended()

    def _add(self, now: _Open) -> Iterator[Raised]:
        message = "\n".join(now.message).rstrip()
        before = self._before
        if before is not None and self._chained:
            then = f"{now.name}: {message}".removesuffix(": ")
            self._before = Raised(
                exception=before.exception,
                message=before.message,
                then=then,
                stack=before.stack,
                line=before.line,
            )
        else:
            yield from self.ended()
            self._before = Raised(
                exception=now.name,
                message=message,
                then="",
                stack=tuple(now.stack),
                line=now.line,
            )
        self._chained = False

    def ended(self) -> Iterator[Raised]:
        """Yield the exception whose chain is complete; at the end of the lines, the last one."""
        now, self._now = self._now, None
        if now is not None and not now.name and (raised := _raises(now)):
            # The last line is missing, and the one that raises says as much.
            now.name, now.line = raised["name"].rpartition(".")[2], self.last
            now.message.append(raised["message"])
        elif now is not None and not now.name and now.stack:
            now.name = now.begun_as
        if now is not None and now.name and not _goes_on(now):
            yield from self._add(now)
        if self._before is not None:
            yield self._before
        self._before, self._chained = None, False


def _goes_on(now: _Open) -> bool:
    """Whether Python continues after it."""
    file, function = FEEDER
    fed = any(one.file.endswith(file) and one.function == function for one in now.stack)
    return now.ignored or (now.name in OF_FEEDERS and fed)


def _raises(now: _Open) -> re.Match[str] | None:
    """What the innermost line raises, if its text says it."""
    return RAISES.match(now.stack[-1].text) if now.stack else None


def _alone(match: re.Match[str], number: int) -> _Open:
    name = match["name"].rpartition(".")[2]
    return _Open(name=name, message=[match["message"]], line=number)


def _again(now: _Open, text: str) -> bool:
    """Whether a line names the same exception once more: that of a second try."""
    alone = ALONE.match(text)
    return alone is not None and alone["name"].rpartition(".")[2] == now.name


def _bare(text: str) -> str:
    """The class of an exception whose text is known without it; empty: of none."""
    return next((name for begins, name in BARE if begins.match(text)), "")


def _is_head(text: str) -> bool:
    return text.rstrip().endswith(TRACEBACK) or notebook_frames.HEAD.match(text) is not None


def _frame(match: re.Match[str]) -> Frame:
    file = match["file"]
    return Frame(
        file=file,
        line=int(match["line"]),
        function=match["function"],
        of_user=LIBRARY.search(file) is None,
    )


def _with_text(frame: Frame, text: str) -> Frame:
    return Frame(
        file=frame.file,
        line=frame.line,
        function=frame.function,
        of_user=frame.of_user,
        text=text,
    )
