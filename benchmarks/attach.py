"""What it costs a training to be looked at: at least 99 % of the steps are done meanwhile.

One training of short steps; looks by ddoctor, by ``py-spy record`` as it comes (100 samples a
second, blocking), and none at all take turns, and the steps that are done in each are counted.
With 2 and 4 ranks, and with 64 idle threads in each rank. On a machine that has no core to spare,
whatever the looks compute is taken from the training.
Exit code 1: the median of the ratios is below the bound.
"""

from __future__ import annotations

import random
import struct
import subprocess
import sys
import time
from argparse import ArgumentParser
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

import psutil

from benchmarks.attached import training
from ddoctor.live import attach

ROOT = Path(__file__).parent.parent
WIDTH = 640
RANKS_AND_THREADS = ((2, 0), (4, 0), (2, 64))
TURNS, SECONDS = 12, 5.0
BOUND = 0.99
ARMS = ("bare", "ddoctor", "py-spy")
WARM_UPS = 100


def main() -> int:
    """Measure, and say what it comes to."""
    options = ArgumentParser(description=__doc__)
    options.add_argument("--turns", type=int, default=TURNS)
    turns = options.parse_args().turns
    worst = min(_measure(ranks, threads, turns) for ranks, threads in RANKS_AND_THREADS)
    print(f"{'within' if worst >= BOUND else 'NOT within'} the bound of {BOUND:.0%}")
    return 0 if worst >= BOUND else 1


def _measure(ranks: int, threads: int, turns: int) -> float:
    rates: dict[str, list[float]] = {arm: [] for arm in ARMS}
    with TemporaryDirectory() as name:
        counter = Path(name) / "steps"
        script = ("-m", "benchmarks.attach_script", str(WIDTH), str(threads), str(counter))
        with training(ranks, script, ROOT, lambda: _trains(counter)) as launcher:
            for _ in range(turns):
                # No arm always comes first.
                for arm in random.sample(ARMS, len(ARMS)):
                    rates[arm].append(_rate(arm, launcher, counter, Path(name)))
    print(
        f"{ranks} ranks, {threads} idle threads in each: "
        f"{1000 / median(rates['bare']):.2f} ms a step ({turns} turns of {SECONDS:.0f} s)"
    )
    for arm in ARMS[1:]:
        ratios = [one / bare for one, bare in zip(rates[arm], rates["bare"], strict=True)]
        low, _, high = quantiles(ratios, n=4)
        print(
            f"  {arm:8} {median(ratios):.4f} of the steps (middle half of the turns: "
            f"{low:.4f} to {high:.4f})",
            flush=True,
        )
    return median(one / bare for one, bare in zip(rates["ddoctor"], rates["bare"], strict=True))


def _rate(arm: str, launcher: psutil.Popen, counter: Path, folder: Path) -> float:
    """Steps a second while this looks at all ranks."""
    first, began = _steps(counter), time.perf_counter()
    if arm == "ddoctor":
        rows = attach.choose([launcher.pid], None)
        list(attach.observe(rows, SECONDS, native=False, redact=False))
    elif arm == "py-spy":
        spies = [
            subprocess.Popen(
                [
                    *("py-spy", "record", "--pid", str(rank.pid), "--duration", f"{SECONDS:.0f}"),
                    *("--output", str(folder / f"{rank.pid}.svg")),
                ],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for rank in launcher.children()
        ]
        for spy in spies:
            spy.wait()
    else:
        time.sleep(SECONDS)
    return (_steps(counter) - first) / (time.perf_counter() - began)


def _trains(counter: Path) -> bool:
    return counter.exists() and _steps(counter) >= WARM_UPS


def _steps(counter: Path) -> int:
    return int(struct.unpack("q", counter.read_bytes())[0])


if __name__ == "__main__":
    sys.exit(main())
