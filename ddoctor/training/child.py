"""The script of one rank: a process of its own, which is only watched."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from time import perf_counter
from types import FrameType

import msgspec

from ddoctor.cluster.launcher_environment import LaunchedRank
from ddoctor.collect.host import memory
from ddoctor.evidence.training import Frame
from ddoctor.proc import usage
from ddoctor.proc.usage import HostUse
from ddoctor.recorder import places, recorded, trial
from ddoctor.recorder.operations import OPERATIONS
from ddoctor.recorder.recorded import Facts, Grown
from ddoctor.recorder.script import Ending
from ddoctor.recorder.tape import (
    CALLS,
    COLLECTIVE,
    DONE,
    LEAVING,
    OPERATION,
    PHASE,
    PHASES,
    SINCE,
    STOP_AT,
    WORLD,
    StepRow,
    Tape,
)
from ddoctor.training.hosts import HostSections
from ddoctor.training.messages import Now, Record, TurnOrder
from ddoctor.training.stderr import STDERR, Stderr

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

MARK = "DDOCTOR_TRAINING"
"""The environment variable that all processes of one script carry."""

# A script that has been told to end may save what it has; torchrun itself leaves it 30 s.
GRACE_SECONDS = 10.0
STACK_SECONDS = 10.0
MOST_ROWS = 2000
FAULT = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)
BUSY_SHARE = 0.2
"""Of a CPU; less is waiting, with the threads of torch that turn over now and then."""


class Child:
    """Starts the script, reads its tape, passes signals on, and ends it where it must be ended."""

    def __init__(
        self, words: Sequence[str], mine: LaunchedRank, *, turn: int, order: TurnOrder, host: str
    ) -> None:
        self._folder = TemporaryDirectory(prefix="ddoctor-", ignore_cleanup_errors=True)
        self.folder = Path(self._folder.name)
        self._tape = Tape(self.folder / recorded.TAPE, create=True)
        self.mine, self.host = mine, host
        self._mark = {MARK: f"{os.getpid()}-{turn}-{time.time_ns()}"}
        self._began = perf_counter()
        self._over_at: float | None = None
        self._last_busy = (self._began, 0.0)
        self._beat = 0
        self.interrupted = False
        self.ended_by_us = False
        self._signalled = 0.0
        self.stack: tuple[Frame, ...] = ()
        self._process = subprocess.Popen(
            [
                sys.executable,
                *_interpreter_options(),
                "-m",
                "ddoctor.recorder",
                str(self.folder),
                *words,
            ],
            env=_environment(turn, order) | self._mark,
            # Signals reach it once: from here.
            start_new_session=True,
            stderr=None if os.isatty(STDERR) else subprocess.PIPE,
        )
        self._stderr = Stderr(self._process.stderr) if self._process.stderr else None
        self.pid = self._process.pid
        self._exit = os.pidfd_open(self.pid) if sys.platform == "linux" else None
        # Another turn of the script tells nothing new of its host.
        self._surroundings = None if turn or mine.local_rank else HostSections()
        self.use = HostUse(self.pid, mine.rank, host, mine.local_size)

    @property
    def over(self) -> bool:
        """Whether the script has ended."""
        if self._process.poll() is not None and self._over_at is None:
            self._over_at = perf_counter()
        return self._over_at is not None

    @property
    def done(self) -> int:
        """Steps so far."""
        return int(self._tape.head[DONE])

    def step_times(self) -> list[float]:
        """Seconds of the steps so far."""
        return [row.end - row.begin for row in self._tape.rows()]

    def stop_at(self, step: int) -> None:
        """Have the script stop itself after so many steps."""
        self._tape.head[STOP_AT] = step

    def now(self, *, warm: bool = False) -> Now:
        """How it is."""
        over = self.over
        moment = perf_counter()
        used = usage.busy(self.pid) if not over else self._last_busy[1]
        passed = max(moment - self._last_busy[0], 1e-3)
        busy = used - self._last_busy[1] > BUSY_SHARE * passed
        self._last_busy = (moment, used)
        self._beat += 1
        since = self._tape.head[SINCE] or self._began
        return Now(
            beat=self._beat,
            steps=self.done,
            phase=int(self._tape.head[PHASE]),
            age=moment - since,
            doing=self._doing,
            busy=busy,
            over=over,
            exit_code=self._process.returncode if over else None,
            ended=(self._over_at or moment) - self._began,
            interrupted=self.interrupted,
            warm=warm,
        )

    def look(self) -> None:
        """At what it started, from time to time."""
        self.use.look()
        if not self.done:
            self.use.sample_children()

    def forward(self, number: int, frame: FrameType | None = None) -> None:
        """A signal handler: what this process is told, the script is told."""
        if number in ENDING_SIGNALS:
            self.interrupted = True
            self._signalled = self._signalled or perf_counter()
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    @property
    def overdue(self) -> bool:
        """It was told to end by a signal, and has not."""
        waited = perf_counter() - self._signalled
        return bool(self._signalled) and waited > GRACE_SECONDS and not self.over

    def wait(self, seconds: float) -> None:
        """Until it is over, but not longer."""
        # Popen.wait looks twenty times a second.
        if self._exit is not None:
            select.select([self._exit], [], [], seconds)
        else:
            time.sleep(seconds)

    def end(self, *, look: bool) -> None:
        """End it with all that it started; ``look``: see first where it stands."""
        if not self.over:
            self.ended_by_us = True
            if look:
                self.stack = _stack(self.pid)
        self._sweep()

    def _sweep(self) -> None:
        """Whatever carries the mark, but not the script's own words at its end."""
        from ddoctor.proc import processes

        with suppress(ProcessLookupError):
            if not self.over:
                self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_SECONDS)
        processes.end(0.0, **self._mark)
        self._process.wait()

    def record(self) -> Record:
        """All that is known, once it is over."""
        from ddoctor.proc import processes

        assert self.over
        # DataLoader workers of a rank that was killed, say.
        processes.end(0.0, **self._mark)
        head = self._tape.head
        facts = recorded.read(self.folder, recorded.FACTS, Facts)
        used, busy, watched = self.use.used
        found = memory()
        ending = recorded.read(self.folder, recorded.ENDING, Ending)
        native = bool(self._process.returncode) and not (ending and ending.exception)
        record = Record(
            rank=self.mine.rank,
            host=self.host,
            pid=self.pid,
            exit_code=self._process.returncode,
            ended_by_us=self.ended_by_us,
            interrupted=self.interrupted,
            leaving=bool(head[LEAVING]),
            seconds=(self._over_at or perf_counter()) - self._began,
            done=self.done,
            rows=tuple(self._rows()),
            facts=facts,
            ending=ending,
            grown=recorded.read(self.folder, recorded.GROWN, Grown),
            doing=self._doing,
            doing_seconds=max(
                0.0, (self._over_at or perf_counter()) - (head[SINCE] or self._began)
            ),
            calls=int(head[CALLS]),
            use=self.use.told(
                threads=facts.threads if facts else 0,
                asked=os.environ.get("OMP_NUM_THREADS", ""),
                collects=facts.gc_enabled if facts else True,
            ),
            cpu_seconds=used,
            busy_seconds=busy,
            watched_seconds=watched,
            memory=min(found.total, found.limit or found.total),
            workers_memory=tuple(self.use.workers_memory),
            worker_memory=self.use.worker_memory,
            world=int(head[WORLD]),
            children_seconds=0.0 if self.done else self.use.children_seconds,
            stack=self.stack or self._crash(),
            printed=self._stderr.last() if self._stderr and native else "",
            host_sections=self._surroundings.packed(self.host) if self._surroundings else "",
        )
        self._tape.close()
        self._folder.cleanup()
        if self._exit is not None:
            os.close(self._exit)
            self._exit = None
        return record

    @property
    def _doing(self) -> str:
        head = self._tape.head
        phase = int(head[PHASE])
        return OPERATIONS[int(head[OPERATION])] if phase == COLLECTIVE else PHASES[phase]

    def _rows(self) -> list[StepRow]:
        return list(self._tape.rows())[-MOST_ROWS:]

    def _crash(self) -> tuple[Frame, ...]:
        """Where the process was as a signal of its own ended it."""
        try:
            text = (self.folder / recorded.CRASH).read_text(errors="replace")
        except OSError:
            return ()
        # The thread that it happened in, as faulthandler shows it: the innermost frame first.
        thread = text.partition("Current thread")[2].partition("\n\n")[0]
        return tuple(
            Frame(file=file, line=int(line), function=name, of_user=places.of_user(file))
            for file, line, name in reversed(FAULT.findall(thread))
            if "ddoctor/recorder" not in file
        )


def _interpreter_options() -> list[str]:
    """What Python itself was told, say -u or -X."""
    words = sys.orig_argv[1:]
    return words[: words.index("-m")] if "-m" in words else []


def _environment(turn: int, order: TurnOrder) -> dict[str, str]:
    environment = dict(os.environ)
    environment[recorded.SAFE_PATH] = environment.get("PYTHONSAFEPATH", "")
    environment["PYTHONSAFEPATH"] = "1"
    if turn == 0:
        environment[recorded.ISOLATE] = "1"
    else:
        environment.pop("TORCHELASTIC_USE_AGENT_STORE", None)
        environment["MASTER_PORT"] = str(order.port)
    if order.grow is not None:
        environment[recorded.GROW] = msgspec.json.encode(order.grow).decode()
    if order.change:
        environment[trial.VARIABLE] = json.dumps(order.change)
    for entry in order.change:
        name, _, value = entry.partition("=")
        if name == "torch.threads":
            environment["OMP_NUM_THREADS"] = value
    return environment


def _stack(pid: int) -> tuple[Frame, ...]:
    """Where the main thread of a process stands, seen from outside."""
    spy = which("py-spy", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if spy is None:
        return ()
    try:
        done = subprocess.run(
            [spy, "dump", "--json", "--nonblocking", "--pid", str(pid)],
            capture_output=True,
            timeout=STACK_SECONDS,
            check=True,
        )
        threads = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return ()
    main = next((one for one in threads if one.get("thread_name") == "MainThread"), None)
    frames = main["frames"] if main is not None else []
    return tuple(
        Frame(
            file=one["filename"],
            line=one["line"],
            function=one["name"],
            of_user=places.of_user(one["filename"]),
        )
        for one in reversed(frames)
        if "ddoctor/recorder" not in one["filename"] and not one["filename"].startswith("<frozen")
    )
