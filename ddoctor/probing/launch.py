"""Which probes there are, read without importing them (and torch)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from ddoctor.evidence.probes import ProbeRun, ProbeRuns
from ddoctor.evidence.section import Section
from ddoctor.probing.agent import StartedRanks
from ddoctor.probing.follower import ProbeLaunch
from ddoctor.proc import processes

# After a probe hung or crashed, the others are launched anew only when this much time is left:
# torch has to be imported again.
RELAUNCH_SECONDS = 10.0
# torchrun ends healthy ranks well within this; a stopped one needs SIGKILL.
GRACE_SECONDS = 2.0

MARK = "DDOCTOR_LAUNCH"
"""The environment variable that all processes of one launch carry."""


def launch(
    names: Sequence[str],
    *,
    limit: float,
    data: Path,
    force: bool = False,
    started: Callable[[str], None] = lambda name: None,
) -> tuple[Section, ...]:
    """Run probes on every GPU of this machine, or on two CPU ranks, within ``limit`` seconds.

    A name with a dot is a module of the user's own. What was measured is returned whatever
    happens: a probe that hangs or crashes is ended with its whole process tree, and the others run
    in a new launch; on an interruption (Ctrl-C) all are ended, and the rest is told as interrupted.
    """
    deadline = time.monotonic() + limit
    sections: list[Section] = []
    runs: list[ProbeRun] = []
    crew = StartedRanks(ranks=0, backend="")
    waiting = list(names)
    if waiting and find_spec("torch") is None:
        why = "torch is not installed here: pip install torch, or use the run's own environment"
        runs.append(ProbeRun(probe=waiting[0], outcome="crashed", reason=why))
        runs += _skipped(waiting[1:], f"the ranks could not start, see {waiting[0]}")
        waiting = []
    while waiting:
        flight = _fly(waiting, deadline, data, force, started)
        crew = flight.crew or crew
        sections += flight.sections
        told = flight.runs()
        runs += told
        waiting = waiting[len(told) :]
        # The ranks of this launch may still be listed as users of the GPUs that they just left.
        force = True
        if flight.outcome == "interrupted":
            runs += [ProbeRun(probe=name, outcome="interrupted") for name in waiting]
            waiting = []
        elif waiting and not flight.began:
            runs += _skipped(waiting, f"the ranks could not start, see {told[-1].probe}")
            waiting = []
        elif waiting and deadline - time.monotonic() < RELAUNCH_SECONDS:
            runs += _skipped(waiting, f"no time was left after {told[-1].probe} {told[-1].outcome}")
            waiting = []
    ending = ProbeRuns(runs=tuple(runs), backend=crew.backend, world_size=crew.ranks)
    host = socket.gethostname()
    return tuple(msgspec.structs.replace(section, host=host) for section in (*sections, ending))


def _skipped(names: Sequence[str], reason: str) -> list[ProbeRun]:
    return [ProbeRun(probe=name, outcome="skipped", reason=reason) for name in names]


def _fly(
    names: Sequence[str],
    deadline: float,
    data: Path,
    force: bool,
    started: Callable[[str], None],
) -> ProbeLaunch:
    mark = uuid.uuid4().hex
    agent: subprocess.Popen[bytes] | None = None
    with TemporaryDirectory(prefix="ddoctor-", ignore_cleanup_errors=True) as folder:
        flight = ProbeLaunch(Path(folder), tuple(names), {MARK: mark})
        try:
            agent = _start(flight, mark, data, force)
            flight.watch(agent.poll, deadline, started)
            if flight.outcome == "completed":
                with suppress(subprocess.TimeoutExpired):
                    agent.wait(GRACE_SECONDS)
        except KeyboardInterrupt:
            flight.outcome = "interrupted"
        finally:
            flight.survivors = processes.end(GRACE_SECONDS, **{MARK: mark})
            flight.read()
        if agent is not None:
            # It has just been ended, and may take a moment to be gone.
            with suppress(subprocess.TimeoutExpired):
                agent.wait(GRACE_SECONDS)
        return flight


def _start(flight: ProbeLaunch, mark: str, data: Path, force: bool) -> subprocess.Popen[bytes]:
    # PET_… are torchrun's own options, set by an outer launcher, say a Kubernetes operator.
    outer = ("PET_", "TORCHELASTIC_")
    environment = {name: v for name, v in os.environ.items() if not name.startswith(outer)}
    # A queue.py in the user's folder must not be imported in place of Python's own. Python 3.10
    # does not know the variable; the working folder, which is ours, serves it as well.
    environment |= {MARK: mark, "PYTHONSAFEPATH": "1"}
    with flight.agent_output.open("wb") as output:
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "ddoctor.probing.agent",
                f"--folder={flight.folder}",
                f"--data={data.resolve()}",
                *(["--force"] if force else []),
                *flight.names,
            ],
            cwd=flight.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # Ctrl-C in the terminal is for ddoctor, which then ends the tree in order.
            start_new_session=True,
        )
