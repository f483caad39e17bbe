"""What it costs a training to be looked at: at least 99 % of the steps are done meanwhile.

One training of short steps; looks by ddoctor, by ``py-spy record`` as it comes (100 samples a
second, blocking), and none at all take turns, and the steps that are done in each are counted.
With 2 and 4 ranks, and with 64 idle threads in each rank. On a machine that has no core to spare,
whatever the looks compute is taken from the training.
Exit code 1: the median of the ratios is below the bound.
"""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

import psutil

from ddoctor.live import attach

ROOT = Path(__file__).parent.parent
WIDTH = 640
RANKS_AND_THREADS = ((2, 0), (4, 0), (2, 64))
TURNS, SECONDS = 12, 5.0
BOUND = 0.99
ARMS = ("bare", "ddoctor", "py-spy")
START_SECONDS = 120.0


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
    with TemporaryDirectory() as name, _training(ranks, threads, Path(name)) as launcher:
        counter = Path(name) / "steps"
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
        list(attach.observe(attach.choose([launcher.pid], None), SECONDS, redact=False))
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


def _steps(counter: Path) -> int:
    return int(struct.unpack("q", counter.read_bytes())[0])


@contextmanager
def _training(ranks: int, threads: int, folder: Path) -> Iterator[psutil.Popen]:
    """A training that has begun, and is ended afterwards."""
    launcher = psutil.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *(f"--nproc-per-node={ranks}", "-m", "benchmarks.attach_script"),
            *(str(WIDTH), str(threads), str(folder / "steps")),
        ],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not (folder / "steps").exists() or _steps(folder / "steps") < 100:
            if time.monotonic() > deadline or not launcher.is_running():
                raise SystemExit("the training did not begin")
            time.sleep(0.2)
        yield launcher
    finally:
        for one in [*launcher.children(recursive=True), launcher]:
            one.kill()
        launcher.wait()


if __name__ == "__main__":
    sys.exit(main())
