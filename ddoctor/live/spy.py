"""Samples the threads of a process with py-spy, which reads its memory without stopping it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from shutil import which

import msgspec

from ddoctor import knowledge
from ddoctor.errors import DoctorError
from ddoctor.evidence.frames import Frame
from ddoctor.evidence.live import KnownFrames
from ddoctor.live.source import Source
from ddoctor.proc import interruption, processes
from ddoctor.proc.parent import end_with_parent

# Seconds that py-spy may need to start, and to write its samples.
GRACE_SECONDS = 10.0
PROFILE = re.compile(r"(?:Process (?P<pid>\d+) )?Thread (?P<tid>\d+)")
FORBIDDEN = "ptrace is forbidden: the container needs the capability SYS_PTRACE"
UNKNOWN = re.compile(r"Unsupported version of Python: ([\d.]+)")
# Of any Python: the rank's may differ from ddoctor's.
NATIVE = re.compile(r"\.(c|cc|cpp|cxx|cu|h|hpp|pyx|rs|S)$")


class _SampledFrame(msgspec.Struct):
    name: str
    file: str = ""
    line: int | None = None


class _Profile(msgspec.Struct):
    name: str
    samples: list[list[int]]


class _Shared(msgspec.Struct):
    frames: list[_SampledFrame]


class _Speedscope(msgspec.Struct):
    profiles: list[_Profile]
    shared: _Shared


Stack = tuple[Frame, ...]
"""The innermost frame last."""


@dataclass(frozen=True)
class Stacks:
    """What was sampled of a process and its child processes."""

    main: Mapping[int, Sequence[Stack]] = field(default_factory=dict)
    """Of each main thread, by PID."""
    others: Mapping[int, Counter[Stack]] = field(default_factory=dict)
    """Of each other thread of the process itself: samples by the user's frames, by its number in
    the kernel."""


def _begin() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, interruption.ENDING)
    end_with_parent()


class Spy:
    """Samples a process for some seconds."""

    def __init__(
        self,
        pid: int,
        source: Source,
        seconds: float,
        *,
        rate: int,
        started: bool = True,
        native: bool = False,
    ) -> None:
        """Start py-spy.

        ``rate``: samples per second; ``started``: also sample the child processes; ``native``: also
        sample native frames, which pauses the process at every sample.

        Raises:
            DoctorError: py-spy is not installed.
        """
        self.pid, self._source, self._native = pid, source, native
        # In memory: py-spy writes the command lines of processes into it, with any secrets.
        self._result = os.fdopen(os.memfd_create("samples"), "rb")
        result = self._result.fileno()
        command = [
            *(_program(), "record", "--pid", str(pid)),
            *(["--subprocesses"] if started else []),
            "--native" if native else "--nonblocking",
            *("--idle", "--threads", "--full-filenames", "--rate", str(rate)),
            # Its own duration is off by a second: end() ends it.
            *("--duration", str(ceil(seconds + GRACE_SECONDS)), "--format", "speedscope"),
            *("--output", f"/proc/self/fd/{result}"),
        ]
        # A hook of Python's at a fork, such as that of logging, would swallow Ctrl-C.
        with processes.undisturbed():
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,  # ddoctor handles Ctrl-C
                pass_fds=[result],
                preexec_fn=_begin,
            )

    def end(self) -> None:
        """End the sampling."""
        self._process.send_signal(signal.SIGINT)

    def stacks(self) -> tuple[Stacks, str]:
        """Return the stacks of its threads until its end; or none, and why."""
        try:
            _, told = self._process.communicate(timeout=GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.stop()
            return Stacks(), "py-spy did not end in time"
        try:
            self._result.seek(0)
            return _read(self._result.read(), self.pid, self._source, native=self._native), ""
        except (OSError, msgspec.DecodeError):
            return Stacks(), why(told)
        finally:
            self._result.close()

    def stop(self) -> bool:
        """Stop py-spy; return whether it was sampling and may have left a process stopped."""
        early = self._native and self._process.poll() is None
        self._process.kill()
        self._process.communicate()
        return early


def _program() -> str:
    here = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    program = which("py-spy", path=here)
    if program is None:
        raise DoctorError("py-spy is not installed: run python -m pip install py-spy")
    return program


def why(told: str) -> str:
    """Return why there are no samples, and what to do, by py-spy's last words."""
    if "ermission denied" in told or "Operation not permitted" in told:
        scope = Path("/proc/sys/kernel/yama/ptrace_scope")
        value = scope.read_text().strip() if scope.exists() else "0"
        if os.geteuid() != 0 and value != "0":
            return (
                f"kernel.yama.ptrace_scope is {value}: run `sudo sysctl kernel.yama.ptrace_scope=0`"
                ", or ddoctor as root"
            )
        return FORBIDDEN
    if unknown := UNKNOWN.search(told):
        return f"py-spy is too old for Python {unknown[1]}: python -m pip install --upgrade py-spy"
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    return lines[0].removeprefix("Error: ") if lines else "py-spy saw nothing"


def _read(written: bytes, pid: int, source: Source, *, native: bool) -> Stacks:
    found = msgspec.json.decode(written, type=_Speedscope)
    table: KnownFrames = knowledge.load(KnownFrames)
    # The process and the thread are frames too, without a file. Of native code, only the frames of
    # known activities count: the others differ between two samples.
    frames = {
        number: _frame(one, source)
        for number, one in enumerate(found.shared.frames)
        if one.file and not (native and _is_native(one) and one.name not in table.native)
    }
    users = {number: frame for number, frame in frames.items() if frame.of_user}
    main: dict[int, Sequence[Stack]] = {}
    others: dict[int, Counter[Stack]] = {}
    for profile in found.profiles:
        match = PROFILE.search(profile.name)
        if match is None:
            continue
        if match["tid"] == (match["pid"] or str(pid)):
            main[int(match["tid"])] = [
                tuple(frames[one] for one in sample if one in frames) for sample in profile.samples
            ]
        elif match["pid"] in (None, str(pid)) and (own := _of_user(profile, users)):
            others[int(match["tid"])] = own
    return Stacks(main, others)


def _of_user(profile: _Profile, users: Mapping[int, Frame]) -> Counter[Stack]:
    """Samples of a thread by the user's frames, without those that have none."""
    stacks = (
        tuple(users[number] for number in sample if number in users) for sample in profile.samples
    )
    return Counter(stack for stack in stacks if stack)


def _is_native(one: _SampledFrame) -> bool:
    """Whether it is native: it has no line, or with debug information no Python file."""
    return not one.line or NATIVE.search(one.file) is not None


def _frame(one: _SampledFrame, source: Source) -> Frame:
    if _is_native(one):
        return Frame(file=one.file, line=one.line or 0, function=one.name, of_user=False)
    return source.frame(one.file, one.line or 0, one.name)
