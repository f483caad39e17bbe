"""What happens in a long run, reported at once: on the terminal, in a file, and to a command."""

from __future__ import annotations

import shlex
import subprocess
import time
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

import msgspec
from msgspec.structs import replace

from ddoctor import console
from ddoctor.characters import tamed
from ddoctor.errors import DoctorError
from ddoctor.evidence import redaction
from ddoctor.evidence.opening import without_waiting
from ddoctor.evidence.run_history import RunEvent
from ddoctor.models import Finding
from ddoctor.report import places
from ddoctor.report.step_breakdown import unit

COMMAND_SECONDS = 60.0
"""A command that takes longer is ended."""
LAST_SECONDS = 5.0
"""The same at the end of the run, for all that still run."""
MOST_AT_ONCE = 8
"""Commands that run at the same time; then an event starts no further one."""


class Events:
    """Tells each event; what cannot be written or started never disturbs the run."""

    def __init__(
        self, file: Path | None, command: str, attempt: int, *, quiet: bool = False
    ) -> None:
        """``attempt``: the number of restarts before this one; ``quiet``: without the terminal."""
        self._file, self._words, self._attempt = file, shlex.split(command), attempt
        self._quiet = quiet
        self._began = time.monotonic()
        self._running: list[tuple[float, subprocess.Popen[bytes]]] = []
        self._complained = False
        self.all: list[RunEvent] = []

    def tell(self, event: RunEvent) -> None:
        """Report an event, with its time."""
        told = redaction.redact(
            replace(
                event,
                time=datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
                seconds=round(time.monotonic() - self._began, 1),
                attempt=self._attempt,
            )
        )
        self.all.append(told)
        if event.event != "ended" and not self._quiet:
            console.say(tamed(f"ddoctor: {line(told)}"))
        text = msgspec.json.encode(told)
        if self._file is not None:
            self._write(self._file, text)
        self._start(text)

    def _write(self, path: Path, text: bytes) -> None:
        try:
            with open(path, "ab", opener=without_waiting) as file:
                file.write(text + b"\n")
        except OSError as error:
            if not self._complained:
                self._complained = True
                console.say(f"ddoctor: cannot write events to {path}: {error.strerror}")

    def close(self) -> None:
        """Give the commands that still run a moment, and end them."""
        until = time.monotonic() + LAST_SECONDS
        for _, process in self._running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
            process.kill()
            process.wait()

    def _start(self, text: bytes) -> None:
        """Start the command with this on its standard input, and wait for nothing."""
        late = time.monotonic() - COMMAND_SECONDS
        for began, process in self._running:
            if began < late:
                process.kill()
        self._running = [one for one in self._running if one[1].poll() is None]
        if not self._words or len(self._running) >= MOST_AT_ONCE:
            return
        with suppress(OSError):
            process = subprocess.Popen(
                self._words,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._running.append((time.monotonic(), process))
            assert process.stdin is not None
            # A pipe holds more than an event, so this never waits for the command.
            with process.stdin as pipe:
                pipe.write(text + b"\n")


def check(file: Path | None, command: str) -> None:
    """Check that events can be reported.

    Raises:
        DoctorError: the file cannot be written, or the command has a quote without its end.
    """
    try:
        shlex.split(command)
    except ValueError as error:
        raise DoctorError(f"--on-event: {error} in '{command}'") from error
    if file is not None:
        try:
            open(file, "a", opener=without_waiting).close()
        except OSError as error:
            raise DoctorError(f"cannot write {file}: {error.strerror}") from error


def explained(event: RunEvent, finding: Finding) -> RunEvent:
    """An event with the cause that a finding names."""
    return replace(
        event,
        cause=finding.cause,
        title=finding.title,
        fix=finding.fixes[0].summary if finding.fixes else "",
        ranks=finding.where.ranks,
        hosts=finding.where.hosts,
    )


def line(event: RunEvent) -> str:
    """An event in one line for people."""
    at = f"step {event.step:,}"
    where = f" on {places.ranks(event.ranks)}" if event.ranks else ""
    why = f": {event.title}{where}" if event.title else ""
    why += f"; fix: {event.fix}" if event.fix else ""
    if event.event == "slower" and event.before and event.after:
        took, takes = _seconds(event.before), _seconds(event.after)
        what = f"; what grew: {event.phase}{where}"
        if event.others:
            what += f"; others than the ranks use {event.others:.2g} CPUs more than before"
        return f"since {at} a step takes {takes} instead of {took}{what}"
    if event.event == "cause":
        return f"slower since {at}{why}"
    if event.event == "recovered":
        lost = f"; it cost {_seconds(event.lost_seconds)}" if event.lost_seconds else ""
        return f"since {at} steps are as fast as before again{lost}"
    if event.event == "hung":
        return f"no step after {at} for {_seconds(event.lost_seconds or 0.0)}{why}"
    if event.event == "resumed":
        return f"the run continues after {at}; it stood for {_seconds(event.lost_seconds or 0.0)}"
    return f"the script has ended after {at}"


def _seconds(seconds: float) -> str:
    return unit(seconds)(seconds)
