"""What it costs a training to be looked at: at least 99 % of the steps are done meanwhile.

One training of short steps; looks, and times without any that are as long, take turns, and
the steps that are done in each are counted: those of a look against the mean of the times before
and after it, since two ranks that wait for each other do 3 to 5 % more or less from one time to the
next. A look is one of many, as of ``attach --watch``; the whole command, from the start of its
Python to its report, is measured as well. With 2 and 4 ranks, and with 64 idle threads in each
rank; beside it ``py-spy record`` as it comes (100 samples a second, blocking). On a machine that
has no core to spare, whatever the looks compute is taken from the training: their share of all CPUs
bounds what it can lose.
Exit code 1: the median of the looks' ratios is below the bound.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import NamedTuple

import psutil

from benchmarks.attached import training
from benchmarks.overhead import typical
from ddoctor.live import attach
from ddoctor.live.attach import SamplingOptions
from ddoctor.live.sampling_rate import USUAL_SECONDS, SamplingRate

ROOT = Path(__file__).parent.parent
WIDTH = 640
RANKS_AND_THREADS = ((2, 0), (4, 0), (2, 64))
TURNS, PEER_TURNS = 16, 6
BOUND = 0.99
WARM_UPS = 100
WITHOUT = ("PYTHONDONTWRITEBYTECODE",)
"""An installed package has its bytecode: pip compiles it."""


def main() -> int:
    """Measure, and say what it comes to."""
    options = ArgumentParser(description=__doc__)
    options.add_argument("--turns", type=int, default=TURNS)
    turns = options.parse_args().turns
    worst = min(_measure(ranks, threads, turns) for ranks, threads in RANKS_AND_THREADS)
    print(f"{'within' if worst >= BOUND else 'NOT within'} the bound of {BOUND:.0%}")
    return 0 if worst >= BOUND else 1


def _measure(ranks: int, threads: int, turns: int) -> float:
    with TemporaryDirectory() as name:
        counter = Path(name) / "steps"
        script = ("-m", "benchmarks.attach_script", str(WIDTH), str(threads), str(counter))
        with training(ranks, script, ROOT, lambda: _trains(counter)) as launcher:
            span = SamplingRate(attach.choose([launcher.pid], None)).seconds
            own = _turns(turns, counter, span, partial(_look, launcher))
            whole = _turns(PEER_TURNS, counter, span, partial(_command, launcher))
            spies = partial(_spies, launcher, Path(name), USUAL_SECONDS)
            spied = _turns(PEER_TURNS, counter, USUAL_SECONDS, spies)
    bare = 1 / median(look.bare for look in own)
    print(f"{ranks} ranks, {threads} idle threads in each: {1000 * bare:.2f} ms a step")
    for name, looks in (("a look", own), ("the command", whole), ("py-spy", spied)):
        ratio, (low, high) = typical([look.rate / look.bare for look in looks])
        share, seconds = (median(row) for row in zip(*(look[2:] for look in looks), strict=True))
        print(
            f"  {name:11} {ratio:.4f} of the steps (95 % sure: {low:.4f} to {high:.4f}; "
            f"{len(looks)} turns of {seconds:.0f} s); "
            f"itself at work for {share:.2%} of the CPUs' time",
            flush=True,
        )
    return median(look.rate / look.bare for look in own)


class Look(NamedTuple):
    """Steps a second during a look, and without one; which share of all CPUs the look took, for
    how long."""

    rate: float
    bare: float
    share: float
    seconds: float


def _turns(turns: int, counter: Path, span: float, look: Callable[[], object]) -> list[Look]:
    """A look in each turn, between times of so many seconds without one; one more beforehand, so
    that what it reads is in memory."""
    looks = []
    rest = partial(time.sleep, span)
    look()
    before, *_ = _rate(counter, rest)
    for _ in range(turns):
        rate, share, seconds = _rate(counter, look)
        after, *_ = _rate(counter, rest)
        looks.append(Look(rate, mean((before, after)), share, seconds))
        before = after
    return looks


def _rate(counter: Path, work: Callable[[], object]) -> tuple[float, float, float]:
    """Steps a second while this is done; its share of the CPUs' time; the seconds."""
    first, began, cpu = _steps(counter), time.perf_counter(), _cpu_seconds()
    work()
    seconds = time.perf_counter() - began
    share = (_cpu_seconds() - cpu) / seconds / (os.cpu_count() or 1)
    return (_steps(counter) - first) / seconds, share, seconds


def _look(launcher: psutil.Popen) -> None:
    rows = attach.choose([launcher.pid], None)
    list(attach.observe(rows, SamplingRate(rows), SamplingOptions()))


def _command(launcher: psutil.Popen) -> None:
    looked = subprocess.run(
        [sys.executable, "-m", "ddoctor", "attach", str(launcher.pid)],
        stdout=subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if name not in WITHOUT},
        check=False,
    )
    if looked.returncode not in (0, 1):
        sys.exit("ddoctor attach did not look")


def _spies(launcher: psutil.Popen, folder: Path, seconds: float) -> None:
    program = str(Path(sys.executable).with_name("py-spy"))
    spies = [
        subprocess.Popen(
            [
                *(program, "record", "--pid", str(rank.pid), "--duration", f"{seconds:.0f}"),
                *("--output", str(folder / f"{rank.pid}.svg")),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for rank in launcher.children()
    ]
    for spy in spies:
        spy.wait()


def _cpu_seconds() -> float:
    """Of this process and of those it has started and waited for."""
    return sum(os.times()[:4])


def _trains(counter: Path) -> bool:
    return counter.exists() and _steps(counter) >= WARM_UPS


def _steps(counter: Path) -> int:
    return int(struct.unpack("q", counter.read_bytes())[0])


if __name__ == "__main__":
    sys.exit(main())
