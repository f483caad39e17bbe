"""The script of one rank, in a separate process that the supervisor only observes."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter
from typing import NamedTuple

import psutil
from msgspec.structs import replace

from ddoctor import console
from ddoctor.cluster.launcher_environment import LaunchedRank
from ddoctor.collect.host import memory
from ddoctor.evidence import redaction
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.run_history import Stretch
from ddoctor.evidence.threads import ScriptThread
from ddoctor.evidence.training import RankEnding
from ddoctor.proc import interruption, processes, usage
from ddoctor.proc.memory import held
from ddoctor.proc.parent import end_with_parent
from ddoctor.proc.usage import HostUse
from ddoctor.recorder.script import Ending
from ddoctor.recorder.tape import (
    CALLS,
    GROUP,
    GROUP_SIZE,
    PHASE,
    SINCE,
    STOP_AT,
    WORLD,
    StepRow,
)
from ddoctor.training import command, last_words, stacks, stderr
from ddoctor.training.history import History
from ddoctor.training.hosts import HostSections
from ddoctor.training.messages import Now, Record, TurnOrder
from ddoctor.training.native import brief
from ddoctor.training.stacks import Sampled, Stack
from ddoctor.training.written import Written

CRASHES = frozenset({-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS})
FORWARDED = (*interruption.ENDING, signal.SIGUSR1, signal.SIGUSR2)

# After SIGTERM, a script may save a checkpoint; torchrun gives it 30 s.
GRACE_SECONDS = 10.0
HELPERS_SECONDS = 1.0
# What ends earlier has not stood still.
STOOD_SECONDS, STOOD_STEPS = 30.0, 3.0
# To read a stack takes less, on a host whose CPUs wait.
READ_SECONDS = 2.0
MOST_ROWS = 2000
KEPT_CHARACTERS = 4000
BUSY_SHARE = 0.2
"""Share of a CPU; below it a process counts as waiting: torch's idle threads use a little."""


# Each sample takes about a millisecond, which must not slow the steps.
SAMPLE_SECONDS = 0.5
# Between two looks of a rank at its own pace, unless rank 0 follows it all the time.
HISTORY_SECONDS = 5.0
# Between two looks at the other ranks, once the script of this one has ended.
OVER_SECONDS = 0.1


class _Stood(NamedTuple):
    """The last phase of the script."""

    doing: str
    seconds: float
    busy: bool | None
    """None: it has not stood for long."""


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
        whole: bool = False,
    ) -> None:
        """``whole``: the script is followed to its own end."""
        self.written = Written()
        self.launched, self.host = launched, host
        self._began, self._began_at = perf_counter(), time.time()
        self._over_at: float | None = None
        self._last_busy = (self._began, 0.0)
        self.ended_by_us = False
        self._stopped_early = False
        """Whether it ended itself after the step that ddoctor asked for."""
        self.interrupted_at: float | None = None
        """When a signal asked for the end."""
        self.stacks = Sampled()
        self._helper: Stack | None = None
        """Of the busiest of its child processes that load no data."""
        self._busy = False
        self._stood: _Stood | None = None
        """Where it had stood for long when it was to end."""
        self._stderr = stderr.forwarded()
        try:
            self._process = subprocess.Popen(
                command.recorder_command(self.written.argument, words),
                env=command.environment(turn, order) | self.written.tag,
                # A signal must reach the script once: from this process.
                start_new_session=True,
                pass_fds=command.inherited(),
                preexec_fn=end_with_parent,
                stderr=self._stderr.end if self._stderr else None,
            )
        finally:
            if self._stderr:
                self._stderr.started()
        self.pid = self._process.pid
        self._exit = _end_of(self.pid)
        # Later turns of the script add nothing to the sections of the host.
        self._surroundings = None if turn or launched.local_rank else HostSections()
        self.use = HostUse(self.pid, launched.rank, host, launched.local_size)
        self.whole = whole
        self._resident = 0.0
        self._history = History(self._began, lambda: self._resident) if whole else None
        self._history_at = 0.0

    @property
    def over(self) -> bool:
        """Whether the script has ended."""
        if self._process.poll() is not None and self._over_at is None:
            self._over_at = perf_counter()
        return self._over_at is not None

    @property
    def over_seconds(self) -> float:
        """Seconds since the end of the script; 0: it runs."""
        return perf_counter() - self._over_at if self.over and self._over_at else 0.0

    @property
    def done(self) -> int:
        """Number of finished steps."""
        return self.written.done

    @property
    def leaving(self) -> bool:
        """Whether the script has reached the step at which to stop."""
        return self.written.leaving

    def step_times(self) -> list[float]:
        """Seconds of each recorded step."""
        return [row.end - row.begin for row in self.written.tape.rows()]

    def last_step_times(self, most: int) -> list[float]:
        """Seconds of the last steps, also of those that are only counted."""
        return self.written.tape.last_seconds(most)

    def new_steps(self) -> list[tuple[int, float]]:
        """Number and seconds of the steps since the last call, if it is followed to its end."""
        if self._history is None:
            return []
        self._history_at = perf_counter()
        return self._history.read(self.written.tape)

    @property
    def last_stretch(self) -> Stretch | None:
        """The last steps, if it is followed to its end."""
        return self._history.last if self._history is not None else None

    @property
    def interrupted(self) -> bool:
        """Whether a signal has asked for the end."""
        return self.interrupted_at is not None

    def stop_at(self, step: int) -> None:
        """Have the script stop itself after this step."""
        if not self.written.tape.head[STOP_AT] and not self.over:
            self.use.measure_worker()
        self.written.tape.head[STOP_AT] = step

    @property
    def _late(self) -> bool:
        """Whether it failed past the step at which the others stopped: they broke its connections.

        The order to stop reaches a rank late if its host is too busy.
        """
        head = self.written.tape.head
        by_itself = not (self.leaving or self.ended_by_us or self.interrupted)
        failed = bool(self._process.returncode)
        return failed and by_itself and 0 < head[STOP_AT] <= self.done

    @property
    def _crashed_in_exit(self) -> bool:
        """Whether it stopped as asked, and native code crashed while Python ended itself.

        A thread that still works then may do so; at the script's own end it would have finished.
        """
        ending = self.written.ending
        left = self.leaving and ending is not None and not ending.exception
        return left and self._process.returncode in CRASHES

    @property
    def _exit_code(self) -> int | None:
        return 0 if self._late or self._crashed_in_exit else self._process.returncode

    def now(self) -> Now:
        """The current state of the script."""
        over = self.over
        moment = perf_counter()
        used = usage.busy(self.pid) if not over else self._last_busy[1]
        passed = max(moment - self._last_busy[0], 1e-3)
        busy = self._busy = used - self._last_busy[1] > BUSY_SHARE * passed
        self._last_busy = (moment, used)
        since = self.written.tape.head[SINCE] or self._began
        return Now(
            steps=self.done,
            phase=int(self.written.tape.head[PHASE]),
            age=moment - since,
            doing=self.written.doing,
            busy=busy,
            over=over,
            exit_code=self._exit_code if over else None,
            host=self.host,
            pid=self.pid,
            stopped=not over and usage.stopped(self.pid),
            unrecorded=self.written.why_not,
            leaves=not over and self.written.ended,
        )

    def watch(self, tick: float, glance: Callable[[], object] | None = None) -> None:
        """Sample the script, end it if that is overdue, and wait for its end or the next sample.

        ``tick``: seconds between two glances.
        """
        if self._overdue:
            self.end(sample=False)
        self._sample()
        if self.over:
            time.sleep(OVER_SECONDS)
            return
        seconds = max(SAMPLE_SECONDS, tick)
        if glance is None:
            self._ends_within(seconds)
            return
        until = perf_counter() + seconds
        while (left := until - perf_counter()) > 0 and not self._ends_within(min(left, tick)):
            glance()

    def _ends_within(self, seconds: float) -> bool:
        if self._exit is not None:
            # Popen.wait polls twenty times a second.
            return bool(select.select([self._exit], [], [], seconds)[0])
        time.sleep(seconds)
        return self.over

    def _sample(self) -> None:
        if self._history is not None:
            self._resident = held(self.pid) or self._resident
            self.use.read_counters(keep=True)
            if perf_counter() - self._history_at > HISTORY_SECONDS:
                self.new_steps()
        elif self.written.tape.head[STOP_AT]:
            self.use.read_counters()
        if self.leaving:
            return  # a loader now runs in isolation, with other numbers of workers
        self.use.sample_workers()
        if self._helper is None and (helpers := self.use.helpers):
            self._helper = stacks.sampled(max(helpers, key=lambda pid: helpers[pid])).main
        if not self.done:
            self.use.sample_children()

    def forward(self, number: int) -> None:
        """Forward a signal to the script."""
        if number in interruption.ENDING and not self.interrupted:
            self.interrupted_at = perf_counter()
            self._stood = self._stands()
            if self._stood is not None:
                self.stacks = stacks.sampled(self.pid)
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def _stands(self) -> _Stood | None:
        """Where it has stood for longer than any step took; None: it moves."""
        seconds = perf_counter() - (self.written.tape.head[SINCE] or self._began)
        longest = max(self.step_times(), default=0.0)
        # What it does after its last step may take long.
        trains = not (self.whole or self.over or self.leaving)
        if trains and seconds > max(STOOD_SECONDS, STOOD_STEPS * longest):
            return _Stood(self.written.doing, seconds, self._busy)
        return None

    def pause(self) -> None:
        """Stop the script with this process, as Ctrl-Z does, until that is continued."""
        # The terminal reaches only this process: the script leads a session of its own.
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGCONT)

    @property
    def _overdue(self) -> bool:
        """Whether the script still runs ``GRACE_SECONDS`` after a signal to end."""
        # A run that is followed to its end is its launcher's to end.
        if self.interrupted_at is None or self.over or self.whole:
            return False
        return perf_counter() - self.interrupted_at > GRACE_SECONDS

    def end(self, *, sample: bool, tick: float = 0.0) -> None:
        """End the script and all that it started; ``sample``: it hangs.

        Then its stack is read first (py-spy), and its facts: the last batches tell why. The other
        ranks, which get the same order within ``tick`` seconds, read theirs before it is gone.
        """
        until = perf_counter() + tick + READ_SECONDS
        if not self.over:
            self.ended_by_us = True
            ending = self.written.ending or Ending()
            if sample and not ending.stack:
                self._stood = self._stood or self._stands()
                self.stacks = stacks.sampled(self.pid)
            if sample:
                self.written.ask_for_facts(lambda: self.over)
                time.sleep(max(0.0, until - perf_counter()))
            with suppress(ProcessLookupError):
                self._process.terminate()
        # It may print its last lines.
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_SECONDS)
        self._end_rest()
        self._process.wait()

    def without_record(self) -> int:
        """Let the script run to its own end; return its exit code."""
        if not self.over:
            self.written.tape.head[STOP_AT] = 0
        while not self.over:
            self.watch(SAMPLE_SECONDS)
        if self._stderr:
            self._stderr.ended()
        return int(self._process.wait())

    def _end_rest(self) -> None:
        """End what the script started, if the script did not come to its own end.

        What it leaves running at its own end, such as an upload, is meant to continue.
        """
        if not (self.ended_by_us or self.interrupted or self._stopped_early):
            return
        left = [one for one in processes.carrying(**self.written.tag) if one.pid != self.pid]
        told = []
        # Its own helpers end with it.
        for one in psutil.wait_procs(left, HELPERS_SECONDS)[1]:
            with suppress(psutil.Error):
                if one.name() != usage.DATA_WORKER:
                    told.append(f"{one.name()} ({one.pid})")
        if told:
            console.say(f"ddoctor: ended with the script: {', '.join(told)}")
        processes.end(0.0, **self.written.tag)

    def record(self) -> Record:
        """The complete record of the script, once it has ended."""
        assert self.over
        self.new_steps()
        self._stopped_early = self.leaving
        self._end_rest()
        printed = self._stderr.ended() if self._stderr else ""
        known = None if self._late else self.written.ending
        code = self._exit_code or 0
        ending = last_words.added(known or Ending(), code, printed, self._began_at)
        sections = self._surroundings.packed(self.host) if self._surroundings else ""
        rows = tuple(self.written.tape.rows())[-MOST_ROWS:]
        # One that failed meanwhile has the stack of its exception, and was ending itself.
        own = any(frame.of_user for frame in self.stacks.main) or not ending.stack
        record = self._record(ending, printed, rows, sections, self.stacks if own else Sampled())
        self.written.close()
        if self._exit is not None:
            os.close(self._exit)
            self._exit = None
        return record

    def so_far(self, first: int, *, stack: bool) -> Record:
        """The record of a script that runs, with the steps from ``first`` on.

        ``stack``: with the main thread's stack (py-spy), the sections of the host, and its facts of
        now instead of those that it wrote last, at most a minute ago.
        """
        sampled = stacks.sampled(self.pid) if stack and not self.over else Sampled()
        self.use.read_counters(keep=True)
        if stack:
            self.written.ask_for_facts(lambda: self.over)
        sections = self._surroundings.packed(self.host) if stack and self._surroundings else ""
        rows = tuple(self.written.tape.rows(first))[-MOST_ROWS:]
        return self._record(self.written.ending or Ending(), "", rows, sections, sampled)

    def _record(
        self,
        ending: Ending,
        printed: str,
        rows: tuple[StepRow, ...],
        sections: str,
        sampled: Sampled,
    ) -> Record:
        head, code = self.written.tape.head, self._exit_code
        span = (rows[0].begin, rows[-1].end) if rows and self._history is not None else None
        used, busy, watched = self.use.used(span)
        found = memory()
        native = code and not ending.exception
        raised_in = stacks.raised_in(ending)
        over_at = self._over_at or perf_counter()
        last = stacks.with_source(
            sampled.main
            or stacks.of_crash(self.written.crash, printed if native else "")
            or ending.stack,
            self._began_at,
        )
        stood = self._stood or _Stood(
            raised_in or self.written.doing, max(0.0, over_at - (head[SINCE] or self._began)), None
        )
        return Record(
            rank=self.launched.rank,
            host=self.host,
            ending=redaction.redact(
                RankEnding(
                    rank=self.launched.rank,
                    host=self.host,
                    pid=self.pid,
                    outcome="finished",
                    # The first one precedes the optimizer's first step: no recorded one.
                    steps=self.done + 1 if self.done else 0,
                    exit_code=code,
                    exception=ending.exception,
                    message=ending.message,
                    then=ending.then,
                    source=ending.source,
                    stack=last.stack,
                    within=last.within,
                    contexts=last.contexts,
                    threads=tuple(self._thread(stack) for stack in sampled.others),
                    time=over_at - self._began,
                    doing=stood.doing,
                    doing_seconds=stood.seconds,
                    busy=stood.busy,
                    group=int(head[GROUP]),
                    group_size=int(head[GROUP_SIZE]),
                    collectives=int(head[CALLS]),
                    recent=self.written.recent(raised_in),
                    children_seconds=0.0 if self.done else self.use.children_seconds,
                    thread=last_words.of_thread(printed),
                    printed=redaction.end(brief(printed), KEPT_CHARACTERS) if native else "",
                )
            ),
            ended_by_us=self.ended_by_us,
            interrupted=self.interrupted,
            leaving=self.leaving or self._late or not self.over,
            done=self.done,
            rows=rows,
            facts=self.written.facts,
            grown=self.written.grown,
            use=replace(
                self.use.summary(threads=0, asked=os.environ.get("OMP_NUM_THREADS", ""), span=span),
                helper=redaction.redact(self._line(self._helper)) if self._helper else None,
            ),
            cpu_seconds=used,
            busy_seconds=busy,
            watched_seconds=watched,
            memory=min(found.total, found.limit or found.total),
            workers_memory=tuple(self.use.workers_memory),
            worker_memory=self.use.worker_memory,
            world=int(head[WORLD]),
            host_sections=sections,
            readings=self.use.readings if self._history is not None else (),
            stretches=self._history.stretches() if self._history is not None else (),
        )

    def _thread(self, stack: Stack) -> ScriptThread:
        placed = stacks.with_source(stack, self._began_at)
        return ScriptThread(
            rank=self.launched.rank,
            place=[frame for frame in placed.stack if frame.of_user][-1],
            within=placed.contexts,
            cpus=0.0,
            seconds=0.0,
        )

    def _line(self, stack: Stack) -> Frame | None:
        """The innermost line of the user's; None: there is none."""
        placed = stacks.with_source(stack, self._began_at).stack
        return next((frame for frame in reversed(placed) if frame.of_user), None)


NewChild = Callable[[int, TurnOrder], Child]
"""Starts the script for a turn."""


def _end_of(pid: int) -> int | None:
    """A descriptor that becomes readable at a process's end; None: there is none to be had."""
    with suppress(OSError, AttributeError):
        return os.pidfd_open(pid)
    return None
