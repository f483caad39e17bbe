"""The script of one rank, in a separate process that the supervisor only observes."""

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

TAG = "DDOCTOR_TRAINING"
"""Environment variable that identifies all processes of one script."""

# After SIGTERM, a script may save a checkpoint; torchrun gives it 30 s.
GRACE_SECONDS = 10.0
STACK_SECONDS = 10.0
MOST_ROWS = 2000
FAULT = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)
BUSY_SHARE = 0.2
"""Share of a CPU; below it a process counts as waiting: torch's idle threads use a little."""


class Child:
    """Starts the script, reads its tape, forwards signals, and ends it if necessary."""

    def __init__(
        self,
        words: Sequence[str],
        launched: LaunchedRank,
        *,
        turn: int,
        order: TurnOrder,
        host: str,
    ) -> None:
        self._folder = TemporaryDirectory(prefix="ddoctor-", ignore_cleanup_errors=True)
        self.folder = Path(self._folder.name)
        self._tape = Tape(self.folder / recorded.TAPE, create=True)
        self.launched, self.host = launched, host
        self._tag = {TAG: f"{os.getpid()}-{turn}-{time.time_ns()}"}
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
            env=_environment(turn, order) | self._tag,
            # A signal must reach the script once: from this process.
            start_new_session=True,
            stderr=None if os.isatty(STDERR) else subprocess.PIPE,
        )
        self._stderr = Stderr(self._process.stderr) if self._process.stderr else None
        self.pid = self._process.pid
        self._exit = os.pidfd_open(self.pid) if sys.platform == "linux" else None
        # Later turns of the script add nothing to the sections of the host.
        self._surroundings = None if turn or launched.local_rank else HostSections()
        self.use = HostUse(self.pid, launched.rank, host, launched.local_size)

    @property
    def over(self) -> bool:
        """Whether the script has ended."""
        if self._process.poll() is not None and self._over_at is None:
            self._over_at = perf_counter()
        return self._over_at is not None

    @property
    def done(self) -> int:
        """Number of finished steps."""
        return int(self._tape.head[DONE])

    def step_times(self) -> list[float]:
        """Seconds of each finished step."""
        return [row.end - row.begin for row in self._tape.rows()]

    def stop_at(self, step: int) -> None:
        """Have the script stop itself after this step."""
        self._tape.head[STOP_AT] = step

    def now(self, *, warm: bool = False) -> Now:
        """The current state of the script."""
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

    def sample(self) -> None:
        """Sample the processes that the script started."""
        if self._tape.head[LEAVING]:
            return  # a loader now runs in isolation, with other numbers of workers
        self.use.sample_workers()
        if not self.done:
            self.use.sample_children()

    def forward(self, number: int, frame: FrameType | None = None) -> None:
        """Signal handler that forwards the signal to the script."""
        if number in ENDING_SIGNALS:
            self.interrupted = True
            self._signalled = self._signalled or perf_counter()
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    @property
    def overdue(self) -> bool:
        """Whether the script still runs ``GRACE_SECONDS`` after a signal to end."""
        waited = perf_counter() - self._signalled
        return bool(self._signalled) and waited > GRACE_SECONDS and not self.over

    def wait(self, seconds: float) -> None:
        """Wait for the end of the script, for at most ``seconds``."""
        # Popen.wait polls twenty times a second.
        if self._exit is not None:
            select.select([self._exit], [], [], seconds)
        else:
            time.sleep(seconds)

    def end(self, *, sample: bool) -> None:
        """End the script and all that it started; ``sample``: read its stack first (py-spy)."""
        if not self.over:
            self.ended_by_us = True
            if sample:
                self.stack = _stack(self.pid)
        self._sweep()

    def _sweep(self) -> None:
        """End all processes of the script; a grace period lets it print its last lines."""
        from ddoctor.proc import processes

        with suppress(ProcessLookupError):
            if not self.over:
                self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_SECONDS)
        processes.end(0.0, **self._tag)
        self._process.wait()

    def record(self) -> Record:
        """The complete record of the script, once it has ended."""
        from ddoctor.proc import processes

        assert self.over
        # Such as DataLoader workers of a killed rank.
        processes.end(0.0, **self._tag)
        head = self._tape.head
        facts = recorded.read(self.folder, recorded.FACTS, Facts)
        used, busy, watched = self.use.used
        found = memory()
        ending = recorded.read(self.folder, recorded.ENDING, Ending)
        native = bool(self._process.returncode) and not (ending and ending.exception)
        record = Record(
            rank=self.launched.rank,
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
            use=self.use.summary(
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
        """The stack at a crash such as SIGSEGV, from faulthandler; empty: there was none."""
        try:
            text = (self.folder / recorded.CRASH).read_text(errors="replace")
        except OSError:
            return ()
        # The thread that crashed, as faulthandler prints it: the innermost frame first.
        thread = text.partition("Current thread")[2].partition("\n\n")[0]
        return tuple(
            Frame(file=file, line=int(line), function=name, of_user=places.of_user(file))
            for file, line, name in reversed(FAULT.findall(thread))
            if "ddoctor/recorder" not in file
        )


def _interpreter_options() -> list[str]:
    """The options of the Python interpreter, such as -u or -X."""
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
    """The stack of a process's main thread, sampled by py-spy; empty: py-spy cannot read it."""
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
