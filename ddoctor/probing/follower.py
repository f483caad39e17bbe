"""One launch of the probes, followed from outside by what its ranks write."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, reduce
from operator import or_
from pathlib import Path
from typing import Any, Literal

import msgspec

from ddoctor.evidence.bundle import section_types
from ddoctor.evidence.probes import ProbeRun, RankState
from ddoctor.evidence.section import Section
from ddoctor.probing.agent import CREW_FILE, EXITS_FILE, Exit, StartedRanks
from ddoctor.probing.journal import Follower, JournalLine
from ddoctor.proc import processes

# The probes stop by themselves within 8 s; a loaded machine may need somewhat longer.
PROBE_LIMIT_SECONDS = 15.0
READ_EVERY_SECONDS = 0.1

HELD = ("stopped", "tracing-stop", "disk-sleep")
"""psutil's names for a process that a signal, a debugger or the kernel holds."""


class ProbeLaunch:
    """What is known of one launch; ``watch`` returns when it has ended or must be ended."""

    def __init__(self, folder: Path, names: tuple[str, ...], mark: Mapping[str, str]) -> None:
        self.folder = folder
        self.names = names
        self.mark = mark
        """The environment variable that all processes of this launch carry."""
        self.agent_output = folder / "agent.txt"
        self.outcome: Literal["completed", "hung", "crashed", "interrupted"] = "interrupted"
        self.crew: StartedRanks | None = None
        self.sections: list[Section] = []
        self.began: dict[str, float] = {}
        """When the first rank began each probe, by the monotonic clock."""
        self.survivors: tuple[int, ...] = ()
        """Processes that could not be ended."""
        self._followers: list[Follower] = []
        self._last: dict[int, JournalLine] = {}
        self._steps: dict[int, int] = {}
        self._ends: dict[str, dict[int, JournalLine]] = {name: {} for name in names}
        self._states: tuple[RankState, ...] = ()
        self._agent_words = ""

    def watch(
        self,
        ended: Callable[[], int | None],
        deadline: float,
        started: Callable[[str], None],
    ) -> None:
        """Follow until all is done, the agent has ``ended``, or a time limit is over."""
        announced = 0
        while True:
            gone = ended() is not None
            self.read()
            for name in list(self.began)[announced:]:
                started(name)
            announced = len(self.began)
            pending = self._pending()
            if pending is None:
                self.outcome = "completed"
                return
            limit = deadline
            if pending in self.began:
                limit = min(limit, self.began[pending] + PROBE_LIMIT_SECONDS)
            if gone or time.monotonic() > limit:
                self._states = self._look()
                self._agent_words = last_line(self.agent_output)
                failed = gone or any(state.words for state in self._states)
                self.outcome = "crashed" if failed else "hung"
                return
            time.sleep(READ_EVERY_SECONDS)

    def read(self) -> None:
        """Take in what was written since."""
        crew = self.folder / CREW_FILE
        if self.crew is None and crew.exists():
            self.crew = msgspec.json.decode(crew.read_bytes(), type=StartedRanks)
            self._followers = [Follower(self.folder, rank) for rank in range(self.crew.ranks)]
        for rank, follower in enumerate(self._followers):
            for line in follower.new_lines():
                self._take(rank, line)

    def runs(self) -> list[ProbeRun]:
        """What became of the probes that began, and of the one that was next if none did."""
        told = []
        pending = self._pending()
        for name in self.names:
            if name == pending:
                break
            told.append(self._ended(name))
        if pending is not None:
            told.append(
                ProbeRun(
                    probe=pending,
                    outcome=self.outcome,
                    reason=self._reason(),
                    seconds=self._seconds(pending),
                    ranks=self._states,
                )
            )
        return told

    def _take(self, rank: int, line: JournalLine) -> None:
        self._last[rank] = line
        self._steps[rank] = self._steps.get(rank, 0) + 1
        if line.probe:
            self.began.setdefault(line.probe, line.time)
        if line.outcome in ("completed", "skipped"):
            self._ends[line.probe][rank] = line
            section = _section_decoder().decode(line.section)
            if section is not None:
                self.sections.append(section)

    def _pending(self) -> str | None:
        """The first probe that some rank has not ended; None: all are done."""
        ranks = self.crew.ranks if self.crew else 1
        return next((name for name in self.names if len(self._ends[name]) < ranks), None)

    def _ended(self, name: str) -> ProbeRun:
        first = self._ends[name][0]
        return ProbeRun(
            probe=name,
            outcome="skipped" if first.outcome == "skipped" else "completed",
            reason=first.reason,
            seconds=max(line.time for line in self._ends[name].values()) - self.began[name],
        )

    def _look(self) -> tuple[RankState, ...]:
        """How each rank is, while the processes are still there."""
        self._find_the_silent()
        states = processes.statuses([line.pid for line in self._last.values()])
        exits = self.folder / EXITS_FILE
        codes = {}
        if exits.exists():
            rows = msgspec.json.decode(exits.read_bytes(), type=tuple[Exit, ...])
            codes = {row.rank: row.code for row in rows}
        self.read()
        now, host = time.monotonic(), socket.gethostname()
        return tuple(
            RankState(
                rank=rank,
                host=host,
                last=line.doing,
                age=now - line.time,
                steps=self._steps[rank],
                pid=line.pid,
                status=states.get(line.pid, ""),
                exit_code=codes.get(rank),
                words=self._words(rank, line, codes.get(rank)),
            )
            for rank, line in sorted(self._last.items())
        )

    def _find_the_silent(self) -> None:
        """Ranks that never wrote a line count as starting, since they were made."""
        for rank in range(self.crew.ranks if self.crew else 0):
            if rank not in self._last:
                for process in processes.carrying(**self.mark, RANK=str(rank)):
                    age = time.time() - process.create_time()
                    line = JournalLine(
                        time=time.monotonic() - age, pid=process.pid, probe="", doing="starting"
                    )
                    self._last[rank] = line
                    self._steps[rank] = 0

    def _words(self, rank: int, line: JournalLine, code: int | None) -> str:
        if line.outcome == "failed":
            return line.reason
        if code is None:
            return ""
        errors = self.folder.glob(f"output/*/attempt_0/{rank}/stderr.log")
        return next((words for path in errors if (words := last_line(path))), "")

    def _seconds(self, name: str) -> float:
        return time.monotonic() - self.began[name] if name in self.began else 0.0

    def _reason(self) -> str:
        if self.outcome == "interrupted":
            return "interrupted"
        if self.outcome == "crashed":
            torchrun = f"torchrun ended: {self._agent_words or 'without a word'}"
            why = why_crashed(self._states, torchrun)
        else:
            why = why_hung(self._states)
        if self.survivors:
            pids = ", ".join(map(str, self.survivors))
            why += f"; process {pids} hangs in the kernel and could not be ended"
        return why


def why_crashed(states: Sequence[RankState], otherwise: str) -> str:
    """Which rank died first and how; ``otherwise`` where none is known to have died."""
    dead = [state for state in states if state.words or state.exit_code is not None]
    if not dead:
        return otherwise
    # One that was killed writes no error; the errors of the others are that it is gone.
    first = max(dead, key=lambda state: ((state.exit_code or 0) < 0, state.age))
    return f"rank {first.rank} {how_it_ended(first)}, at: {first.last}"


def why_hung(states: Sequence[RankState]) -> str:
    """Which rank is held or behind."""
    if not states:
        return "the ranks did not start in time (importing torch from a slow disk?)"
    stuck = [state for state in states if state.status in HELD]
    if stuck:
        ranks = ", ".join(f"rank {one.rank} (pid {one.pid}) is {one.status}" for one in stuck)
        return f"{ranks}, at: {stuck[0].last}"
    slowest = min(states, key=lambda state: state.steps)
    fastest = max(states, key=lambda state: state.steps)
    if slowest.steps < fastest.steps:
        return (
            f"rank {slowest.rank} is behind, at: {slowest.last}; "
            f"rank {fastest.rank} was at: {fastest.last}"
        )
    return f"all ranks wait, at: {slowest.last}"


def how_it_ended(state: RankState) -> str:
    """In words: killed by which signal, or what error it died of."""
    if state.exit_code is not None and state.exit_code < 0:
        try:
            name = signal.Signals(-state.exit_code).name
        except ValueError:
            name = f"signal {-state.exit_code}"
        return f"was killed by {name}" + (f" ({state.words})" if state.words else "")
    return f"failed: {state.words or f'exit code {state.exit_code}'}"


def last_line(path: Path) -> str:
    """The last line of a file that is not empty."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


@cache
def _section_decoder() -> msgspec.json.Decoder[Any]:
    union: Any = reduce(or_, section_types())
    return msgspec.json.Decoder(union | None)
