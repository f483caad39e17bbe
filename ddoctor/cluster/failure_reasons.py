"""One sentence that says why a probe hung or crashed, from the states of its ranks."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

from ddoctor.evidence.probes import RankState

HELD = ("stopped", "tracing-stop", "disk-sleep")
"""psutil's names for a process that a signal or debugger stopped, or that waits for a disk."""

STARTING = ("starting", "loading torch")
"""The steps of a rank before it joins the process group."""


def why_crashed(states: Sequence[RankState]) -> str:
    """Names the rank that failed first, and its error or signal."""
    dead = [state for state in states if state.words or state.exit_code is not None]
    if not dead:
        return "a rank ended without an error message"
    # A killed rank writes no error; the errors of the other ranks only follow from its end.
    first = max(dead, key=lambda state: ((state.exit_code or 0) < 0, state.age))
    return f"rank {first.rank} {_how_it_ended(first)}, at: {first.last}"


def why_hung(states: Sequence[RankState]) -> str:
    """Names the rank that is stopped or lags."""
    held = [state for state in states if state.status in HELD]
    if held:
        ranks = ", ".join(f"rank {one.rank} (pid {one.pid}) is {one.status}" for one in held)
        return f"{ranks}, at: {held[0].last}"
    if all(state.last in STARTING for state in states):
        return "the ranks did not start in time (importing torch from a slow disk?)"
    slowest = min(states, key=lambda state: state.steps)
    fastest = max(states, key=lambda state: state.steps)
    if slowest.steps < fastest.steps:
        return (
            f"rank {slowest.rank} lags, at: {slowest.last}; "
            f"rank {fastest.rank} was at: {fastest.last}"
        )
    return f"all ranks wait, at: {slowest.last}"


def last_line(path: Path) -> str:
    """The last non-empty line of a file."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _how_it_ended(state: RankState) -> str:
    if state.exit_code is not None and state.exit_code < 0:
        try:
            name = signal.Signals(-state.exit_code).name
        except ValueError:
            name = f"signal {-state.exit_code}"
        return f"was killed by {name}" + (f" ({state.words})" if state.words else "")
    return f"failed: {state.words or f'exit code {state.exit_code}'}"
