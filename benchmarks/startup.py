"""How fast the command line answers, and that it does so without torch and NVML.

``make bench`` runs it; exit code 1: a median is 0.25 s or more, or one of the two is imported.
"""

from __future__ import annotations

import subprocess
import sys
import time
from statistics import median, quantiles

RUNS = 20
LIMIT_SECONDS = 0.25
HEAVY = {"torch", "pynvml"}
COMMANDS: tuple[tuple[str, ...], ...] = (("--help",), ("explain", "shm-too-small"))


def main() -> int:
    """Time each command in turns, then look at what it imports."""
    seconds: dict[tuple[str, ...], list[float]] = {command: [] for command in COMMANDS}
    for _ in range(RUNS):
        for command in COMMANDS:
            begin = time.perf_counter()
            subprocess.run([sys.executable, "-m", "ddoctor", *command], capture_output=True)
            seconds[command].append(time.perf_counter() - begin)
    good = True
    for command, times in seconds.items():
        low, _, high = quantiles(times, n=4)
        heavy = HEAVY & _imported(command)
        good = good and median(times) < LIMIT_SECONDS and not heavy
        print(
            f"ddoctor {' '.join(command):24} median {median(times):.3f} s "
            f"(quartiles {low:.3f} to {high:.3f}, {RUNS} runs), "
            f"imports {', '.join(sorted(heavy)) or 'neither torch nor pynvml'}"
        )
    return 0 if good else 1


def _imported(command: tuple[str, ...]) -> set[str]:
    """The top-level packages that a command imports."""
    log = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "ddoctor", *command],
        capture_output=True,
        text=True,
    ).stderr
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in log.splitlines()}


if __name__ == "__main__":
    sys.exit(main())
