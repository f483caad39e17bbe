"""What it costs a training to be recorded: under 1 % of the step, at short and at long steps.

Blocks of steps without the recorder and with it take turns in one training of two ranks, and their
time by steps done is compared, as well as that of their main thread on a CPU (``overhead_blocks``):
two ranks that wait for each other differ by more from block to block than recording costs, what the
main thread computes does not. Whole runs, too, bare and with
``ddoctor.probe run`` in turns, for a number of steps and with ``--steps all``; with ``--peers``
beside torch's profiler, and TraceML where it is installed (``pip install traceml-ai``): these
differ by some per cent from run to run.
Exit code 1: what the main thread computes more is above the bound.
"""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

from ddoctor.recorder.tape import SIZE
from ddoctor.recorder.timeline import EVERY

SCRIPT = Path(__file__).with_name("overhead_script.py")
ROOT = Path(__file__).parent.parent
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
BLOCKS = "benchmarks.overhead_blocks"
# Width of the layers, and steps in a turn: about 5 ms and 50 ms a step with a core per rank.
STEPS = {"short": (640, 800), "long": (2560, 80)}
TURNS = 4
# Of short steps until recording and resting come round again; of long ones all are recorded.
BLOCK_STEPS = {"short": EVERY, "long": 4}
BLOCK_TURNS = {"short": 200, "long": 200}
BOUND = 0.01
MEMORY_BOUND = 50 * 2**20
LIMIT_SECONDS = 600
PEER_TURNS = 3


def main() -> int:
    """Measure, and say what it comes to."""
    options = ArgumentParser(description=__doc__)
    options.add_argument("--turns", type=int, default=TURNS, help="pairs of whole runs")
    options.add_argument("--peers", action="store_true", help="the profiler and TraceML, too")
    arguments = options.parse_args()
    worst = 0.0
    print(f"the tape of a rank: {SIZE / 2**20:.1f} MiB for 10,000 steps")
    for name, (width, steps) in STEPS.items():
        worst = max(worst, _blocks(width, BLOCK_TURNS[name], name))
        _ratios("ddoctor", width, steps, arguments.turns, name)
        _ratios("whole run", width, steps, arguments.turns, name)
        if arguments.peers:
            _ratios("profiler", width, steps, PEER_TURNS, name)
            if find_spec("traceml_ai") is not None:
                _ratios("traceml", width, steps, PEER_TURNS, name)
    within = worst <= BOUND and SIZE <= MEMORY_BOUND
    print(f"{'within' if within else 'NOT within'} {BOUND:.0%} of the step")
    return 0 if within else 1


def _blocks(width: int, turns: int, name: str) -> float:
    """Which share of the step its main thread is longer on a CPU."""
    with TemporaryDirectory() as folder:
        result = Path(folder) / "result"
        words = ["-m", BLOCKS, *map(str, (width, BLOCK_STEPS[name], turns, result))]
        _run([*TORCHRUN, *words], BLOCKS, result, ROOT)
        rows = [tuple(map(float, line.split())) for line in result.read_text().splitlines()]
    bare = median(row[0] for row in rows)
    ratio, longer = typical([row[1] / row[0] for row in rows])
    added, more = typical([1e6 * (row[3] - row[2]) for row in rows])
    share = added / bare / 1e6
    print(
        f"{name} steps ({1e3 * bare:.2f} ms bare): {ratio:.4f} times as long when recorded "
        f"(95 % sure: {longer[0]:.4f} to {longer[1]:.4f}; {turns} turns of {BLOCK_STEPS[name]} "
        f"steps); the main thread {added:.0f} µs longer on a CPU "
        f"({more[0]:.0f} to {more[1]:.0f}), {share:.2%} of the step",
        flush=True,
    )
    return share


def typical(values: list[float]) -> tuple[float, tuple[float, float]]:
    """The median, and where it lies 95 % sure: the binomial's normal approximation."""
    every = sorted(values)
    reach = round(0.98 * len(every) ** 0.5)
    low, high = max(len(every) // 2 - reach, 0), min(len(every) // 2 + reach, len(every) - 1)
    return median(every), (every[low], every[high])


def _ratios(arm: str, width: int, steps: int, turns: int, name: str) -> list[float]:
    bare: list[tuple[float, float]] = []
    with_it: list[tuple[float, float]] = []
    for turn in range(turns):
        for one in ("bare", arm) if turn % 2 == 0 else (arm, "bare"):
            (bare if one == "bare" else with_it).append(_turn(one, width, steps))
    ratios = [b[0] / a[0] for a, b in zip(bare, with_it, strict=True)]
    cpu = [b[1] / a[1] for a, b in zip(bare, with_it, strict=True)]
    typical = median(seconds for seconds, _ in bare)
    low, _, high = quantiles(ratios, n=4) if len(ratios) > 1 else (ratios[0],) * 3
    print(
        f"{name} steps ({1e3 * typical:.2f} ms bare), {arm}: {median(ratios):.4f} times as long "
        f"(quartiles {low:.4f} to {high:.4f} of {turns} pairs), CPU time {median(cpu):.4f}",
        flush=True,
    )
    return ratios


def _turn(arm: str, width: int, steps: int) -> tuple[float, float]:
    with TemporaryDirectory() as folder:
        result = Path(folder) / "result"
        words = [str(SCRIPT), str(width), str(steps), str(result), arm]
        command = _command(arm, words, Path(folder))
        _run(command, arm, result, Path(folder))
        seconds, cpu = map(float, result.read_text().split())
        return seconds, cpu


def _run(command: Sequence[str], name: str, result: Path, folder: Path) -> None:
    done = subprocess.run(
        command,
        cwd=folder,
        env={"OMP_NUM_THREADS": "1", **os.environ},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    if not result.exists():
        raise SystemExit(f"{name} did not come to its end:\n{done.stdout}\n{done.stderr}")


def _command(arm: str, words: Sequence[str], folder: Path) -> list[str]:
    if arm == "traceml":
        traceml = str(Path(sys.executable).with_name("traceml"))
        return [
            *(sys.executable, traceml, "run", "--mode", "summary", "--nproc-per-node", "2"),
            *("--logs-dir", str(folder / "logs"), words[0], "--args", *words[1:]),
        ]
    steps = "all" if arm == "whole run" else "1000000"
    recorded = ["-m", "ddoctor.probe", "run", "--no-prove", f"--steps={steps}"]
    with_it = arm in ("ddoctor", "whole run")
    return [*TORCHRUN, *(recorded if with_it else []), *words]


if __name__ == "__main__":
    sys.exit(main())
