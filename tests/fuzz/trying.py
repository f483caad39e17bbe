"""Tries inputs of a kind, and counts what became of them."""

from __future__ import annotations

import resource
import signal
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.kinds import outcome

OURS = ("/ddoctor/", "/checks/")
MOST_SECONDS = 10
MOST_MIB = 1024


class TooLong(BaseException):
    """No handler of an error takes it for one of its own."""


@dataclass
class Told:
    """What became of some inputs of a kind."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: dict[str, list[int]] = field(default_factory=dict)
    """The numbers of the inputs that met a fault, by what it was."""
    slowest: tuple[float, int] = (0.0, 0)
    """Seconds on a CPU, and the number of the input."""
    memory: int = 0
    """MiB at the peak of a process."""

    def add(self, other: Told) -> None:
        """Count these, too."""
        self.outcomes += other.outcomes
        for fault, numbers in other.faults.items():
            self.faults.setdefault(fault, []).extend(numbers)
        self.slowest = max(self.slowest, other.slowest)
        self.memory = max(self.memory, other.memory)

    def fault(self, what: str, number: int) -> None:
        """Note the number of an input that met a fault."""
        self.faults.setdefault(what, []).append(number)


def tried(kind: str, folder: Path, numbers: range) -> Told:
    """Try the inputs of these numbers."""
    told = Told(memory=_peak())
    # The tests before these may have needed as much.
    most = told.memory + MOST_MIB
    for number in numbers:
        began = time.process_time()
        told.outcomes[_one(kind, folder, number, told)] += 1
        told.slowest = max(told.slowest, (time.process_time() - began, number))
        before, told.memory = told.memory, _peak()
        if told.memory > max(before, most):
            told.fault(f"more than {MOST_MIB} MiB", number)
    return told


def _one(kind: str, folder: Path, number: int, told: Told) -> str:
    try:
        with _limited():
            return outcome(kind, number, folder)
    except TooLong:
        told.fault(f"more than {MOST_SECONDS} s", number)
    except Exception as error:
        told.fault(f"{type(error).__name__}: {str(error)[:110]!r} at {_place(error)}", number)
    return "fault"


@contextmanager
def _limited() -> Iterator[None]:
    """Raise TooLong in what takes too long; the time of others on this machine is not its."""
    signal.signal(signal.SIGPROF, _too_long)
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _too_long(*_: object) -> None:
    raise TooLong


def _place(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if any(name in one.filename for name in OURS)]
    last = (own or frames)[-1]
    return f"{Path(last.filename).name}:{last.lineno}"


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
