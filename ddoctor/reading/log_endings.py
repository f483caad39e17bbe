"""How the ranks of a run ended, as far as its logs say it."""

from __future__ import annotations

import dataclasses
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from ddoctor.analysis.log_order import in_order
from ddoctor.evidence import redaction
from ddoctor.evidence.log import Excerpt
from ddoctor.evidence.training import RankEnding, TrainingRun
from ddoctor.reading.excerpts import Around
from ddoctor.reading.prefixes import Writer
from ddoctor.reading.tracebacks import Raised

MOST_RAISED = 5_000
"""Exceptions that are kept, the first ones."""
MOST_FRAMES, FEW_FRAMES = 200_000, 20
"""Frames of all exceptions that are kept; once there are more, the innermost few of each."""
MOST_EXITS = 100_000
LONGEST_MESSAGE = 4_000
UNKNOWN = -1
"""The rank of an exception that the log gives no rank."""
ABORTED = -6
"""The exit code of SIGABRT."""
RAISED = 1
"""The exit code of Python after an exception."""
# torch/distributed/elastic/multiprocessing/errors: the table at the end.
TABLE_ROOT = re.compile(r"^Root Cause \(first observed failure\)")
TABLE_RANK = re.compile(r"^\s*rank\s*:\s*(\d{1,7}) ")
TABLE_EXIT = re.compile(r"^\s*exitcode\s*:\s*(-?\d{1,9}) +\(pid: (\d{1,9})\)")
# torch/distributed/elastic/multiprocessing/api.py: the launcher ends those that still run.
CLOSED = re.compile(r"\bSending process (\d{1,9}) closing signal SIG")
# torch/multiprocessing/spawn.py: the number is that of the process on its host.
SPAWNED = re.compile(
    r"ProcessExitedException: process (?P<local>\d{1,7}) terminated with "
    r"(?:signal (?P<signal>SIG\w{1,10})|exit code (?P<code>\d{1,3}))"
)
# Slurm, src/srun/task_state.c; the number is a rank where srun itself starts each rank.
OF_SRUN = re.compile(
    r"error: (?P<host>\S{1,253}): task (?P<task>\d{1,7}): Exited with exit code (?P<code>\d{1,3})"
)
OF_SHELL = 128
"""What a shell adds to the number of the signal that ended a program."""


@dataclass(frozen=True)
class _Failure:
    """An exception, who raised it, and the lines around its last."""

    writer: Writer
    raised: Raised
    around: Around
    before: frozenset[str]
    """The forms of its writer's progress before it."""


@dataclass(frozen=True)
class _Exit:
    """How a launcher says that a process ended; a PID of 0 is not known."""

    code: int
    pid: int
    is_first: bool
    """Whether the table calls it the first failure."""
    around: Around
    host: str = ""


@dataclass
class LogEndings:
    """Collects exceptions and exit codes of all ranks."""

    _raised: dict[object, _Failure] = field(default_factory=dict)
    """The last of each rank, each one without a rank."""
    _frames: int = 0
    """The frames of all of them."""
    _exits: dict[int, _Exit] = field(default_factory=dict)
    _tasks: dict[int, _Exit] = field(default_factory=dict)
    """Of srun's tasks, in the order of their lines."""
    _closed: set[int] = field(default_factory=set)
    """The PIDs that the launcher ended."""
    _table_rank: int | None = None
    _is_first: bool = False

    def raised(self, writer: Writer, one: Raised, around: Around, progress: frozenset[str]) -> None:
        """Keep an exception of a rank, or of a process without a rank.

        ``progress``: the forms of its writer's progress before it.
        """
        place = one.stack[-1] if one.stack else None
        key = writer.rank
        # Without a rank, only the text separates the exceptions of one process from another's.
        distinct = (one.exception, one.message, place) if key is None else key
        if one.of_launcher or (key is None and distinct in self._raised):
            return
        before = self._raised.get(distinct)
        if before is None and len(self._raised) >= MOST_RAISED:
            return
        self._frames -= len(before.raised.stack) if before is not None else 0
        if self._frames + len(one.stack) > MOST_FRAMES:
            one = dataclasses.replace(one, stack=one.stack[-FEW_FRAMES:])
        self._frames += len(one.stack)
        self._raised[distinct] = _Failure(writer, one, around, progress)

    def continued(self, file: str, progress: Mapping[int | None, Mapping[str, int]]) -> None:
        """Drop what was raised before its writer made progress as before, at the end of a file.

        ``progress``: the forms of the last lines and their numbers, by rank.
        """
        of_file = [(key, one) for key, one in self._raised.items() if one.around.file == file]
        for key, one in of_file:
            ends = progress.get(one.writer.rank, {})
            later = {form for form, number in ends.items() if number > one.around.line}
            if not one.before.isdisjoint(later):
                del self._raised[key]

    def row(self, text: str, around: Callable[[], Around], *, one_host: bool) -> None:
        """Take a line that may be one of torchrun's table, or of torch's spawn.

        On one host, the number of a spawned process is its rank.
        """
        if TABLE_ROOT.match(text):
            self._is_first = True
        elif match := TABLE_RANK.match(text):
            self._table_rank = int(match[1])
        elif self._table_rank is not None and (match := TABLE_EXIT.match(text)):
            if len(self._exits) < MOST_EXITS:
                code, pid = int(match[1]), int(match[2])
                self._exits[self._table_rank] = _Exit(code, pid, self._is_first, around())
            self._table_rank, self._is_first = None, False
        elif (match := CLOSED.search(text)) and len(self._closed) < MOST_EXITS:
            self._closed.add(int(match[1]))
        elif match := SPAWNED.search(text):
            code = int(match["code"] or -signal.Signals.__members__.get(match["signal"] or "", 0))
            if code and len(self._exits) < MOST_EXITS:
                rank = int(match["local"]) if one_host else UNKNOWN
                self._exits[rank] = _Exit(code, 0, False, around())
        elif (match := OF_SRUN.search(text)) and len(self._tasks) < MOST_EXITS:
            code = int(match["code"])
            code = OF_SHELL - code if code > OF_SHELL else code
            self._tasks.setdefault(
                int(match["task"]), _Exit(code, 0, False, around(), match["host"])
            )

    @property
    def arounds(self) -> Iterator[Around]:
        """The lines around each exception and exit code."""
        yield from (one.around for one in self._raised.values())
        yield from (one.around for one in (*self._exits.values(), *self._tasks.values()))

    def run(
        self, log: str, excerpt: Callable[[Around], Excerpt], last_words: Callable[[int], str]
    ) -> TrainingRun | None:
        """The run with the end of its ranks; None: no line says it.

        ``excerpt`` makes one of the lines around a line; ``last_words`` tells what C++ printed as
        it ended a rank.
        """
        excerpts = {key: excerpt(one.around) for key, one in self._raised.items()}
        order, is_known = in_order(excerpts.values())
        places = {one.place: float(number) for number, one in enumerate(order)}
        found: dict[object, RankEnding] = {}
        for key, one in sorted(
            self._raised.items(), key=lambda item: places[excerpts[item[0]].place]
        ):
            place = excerpts[key].place
            found[key] = _ending(one, place, places[place])
        exits = sorted(self._exits.items(), key=lambda item: not item[1].is_first)
        raised = {rank for rank, ended in exits if ended.code == RAISED} - found.keys()
        unnamed = [key for key, ending in found.items() if ending.rank == UNKNOWN]
        if raised and len(unnamed) == 1:
            # One exception without a rank: all that ended by one have raised it.
            ending = found.pop(unnamed[0])
            found |= {rank: replace(ending, rank=rank) for rank, _ in exits if rank in raised}
        # Those that the launcher ended ran until another rank had failed, where the log shows one.
        by_itself = bool(found) or any(ended.pid not in self._closed for _, ended in exits)
        for rank, ended in exits:
            known = found.get(rank)
            if known is not None:
                found[rank] = replace(known, exit_code=ended.code, pid=ended.pid)
            elif ended.code and not (by_itself and ended.pid in self._closed):
                words = last_words(rank) if ended.code == ABORTED else ""
                found[rank] = _killed(rank, ended, words, float(len(places)))
        ranks = tuple(found.values())
        if all(one.echoes for one in ranks):
            ranks = self._first_task(last_words) or ranks
        if not ranks:
            return None
        return TrainingRun(command=(), seconds=0.0, ranks=ranks, ordered=is_known, log=log)

    def _first_task(self, last_words: Callable[[int], str]) -> tuple[RankEnding, ...]:
        """Of srun's tasks, where the first one ended by itself, and the others by its absence."""
        every = tuple(
            _killed(rank, ended, last_words(rank), float(number))
            for number, (rank, ended) in enumerate(self._tasks.items())
        )
        others = [one.echoes for one in every[1:]]
        return every if others and all(others) and not every[0].echoes else ()


def _ending(failure: _Failure, place: str, time: float) -> RankEnding:
    writer, raised = failure.writer, failure.raised
    return RankEnding(
        rank=UNKNOWN if writer.rank is None else writer.rank,
        host=writer.host,
        pid=0,
        outcome="failed",
        steps=0,
        exception=raised.exception,
        message=redaction.beginning(raised.message, LONGEST_MESSAGE),
        then=redaction.beginning(raised.then, LONGEST_MESSAGE),
        stack=raised.stack,
        time=time,
        logged=place,
    )


def _killed(rank: int, ended: _Exit, words: str, time: float) -> RankEnding:
    return RankEnding(
        rank=rank,
        host=ended.host,
        pid=ended.pid,
        outcome="killed" if ended.code < 0 else "failed",
        steps=0,
        exit_code=ended.code,
        printed=words,
        logged=f"{ended.around.file}:{ended.around.line}",
        time=time,
    )
