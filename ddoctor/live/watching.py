"""`ddoctor attach`: sample once, or repeatedly until the user presses q."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from threading import Thread, get_native_id
from typing import TYPE_CHECKING

from ddoctor import check_catalog, engine
from ddoctor.errors import DoctorError
from ddoctor.evidence.section import Evidence
from ddoctor.live import attach
from ddoctor.live.attach import SamplingOptions
from ddoctor.live.sampling_rate import SamplingRate
from ddoctor.models import Report
from ddoctor.report import wording
from ddoctor.report.output import progress

if TYPE_CHECKING:
    from ddoctor.report.metrics import Metrics

QUIT = "q"
# What is not sampling takes the CPU time that the ranks leave, at least a tenth of a full core.
NICENESS = 10

Show = Callable[[Report, Evidence], None]


def once(
    pids: Sequence[int], job: str | None, seconds: float | None, options: SamplingOptions
) -> tuple[Report, Evidence]:
    """Sample once; after Ctrl-C, judge the samples made so far.

    Raises:
        DoctorError: there is nothing to sample.
        KeyboardInterrupt: there is no sample yet.
    """
    rows = attach.choose(pids, job)
    sampling = SamplingRate(rows, seconds)
    last: tuple[Report, Evidence] | None = None
    # Loading all checks takes a while; do it while sampling.
    Thread(target=_read_checks, daemon=True).start()
    with progress() as started, suppress(KeyboardInterrupt):
        started(
            f"sampling {len(rows)} rank{'s' if len(rows) > 1 else ''} for {sampling.seconds:.0f} s"
        )
        for end, evidence in zip(
            sampling.ends, attach.observe(rows, sampling, options), strict=True
        ):
            if end == sampling.ends[-1]:
                _make_way()
            last = engine.examine(evidence, "attach"), evidence
            started(f"still sampling; so far: {wording.so_far(last[0])}")
    if last is None:
        raise KeyboardInterrupt
    return last


def _make_way() -> None:
    """Let the ranks go before this thread, and what it starts."""
    # Nothing is wrong without it.
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, get_native_id(), NICENESS)


def _read_checks() -> None:
    _make_way()
    # The engine reports broken checks when it examines.
    with suppress(Exception):
        check_catalog.discover()


def watch(
    pids: Sequence[int],
    job: str | None,
    seconds: float | None,
    options: SamplingOptions,
    metrics: Metrics | None,
) -> tuple[Report, Evidence]:
    """Sample repeatedly; the last report.

    Raises:
        DoctorError: there is neither a terminal nor --prometheus, or nothing to sample.
    """
    has_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if not has_terminal and metrics is None:
        raise DoctorError("--watch needs a terminal: leave out --watch, or add --prometheus PORT")
    rows = attach.choose(pids, job)
    sampling = SamplingRate(rows, seconds, watch=True)
    last: tuple[Report, Evidence] | None = None
    with (
        suppress(KeyboardInterrupt),
        _screen(sampling.seconds) if has_terminal else nullcontext(None) as show,
    ):
        while True:
            (evidence,) = attach.observe(rows, sampling, options)
            report = engine.examine(evidence, "attach")
            last = report, evidence
            if show is not None:
                show(report, evidence)
            if metrics is not None:
                metrics.show(report, evidence)
            try:
                rows = attach.choose(pids, job)
                sampling = SamplingRate(rows, seconds, watch=True)
            except DoctorError:
                break  # the run has ended: report its last samples
    if last is None:
        raise KeyboardInterrupt
    return last


@contextmanager
def _screen(seconds: float) -> Iterator[Show]:
    """The full-screen display; q ends it as Ctrl-C does."""
    import termios
    import tty

    from rich.console import Console, Group
    from rich.live import Live

    from ddoctor.report.watch import History, screen

    history, console = History(), Console()
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    Thread(target=_wait_for_key, daemon=True).start()
    try:
        with Live(f"sampling for {seconds:.0f} s ...", console=console, screen=True) as display:

            def show(report: Report, evidence: Evidence) -> None:
                history.add(evidence)
                lines = screen(report, evidence, history, console.width, console.height)
                display.update(Group(*lines), refresh=True)

            yield show
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _wait_for_key() -> None:
    while key := os.read(sys.stdin.fileno(), 1):
        if key.decode(errors="replace") == QUIT:
            os.kill(os.getpid(), signal.SIGINT)
            return
