"""Whether two hosts on a link of 1 Gbit/s tell by the probe what a bare loop tells, within 5 %.

The hosts are network namespaces whose cables are shaped, so the link is the limit and not the CPU.
Both loops run in one torchrun, in turns, as in ``benchmarks.allreduce``. ``make bench`` runs it as
root; exit code 1: they differ by more, 2: it cannot be run here.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from benchmarks import allreduce
from tests.cluster.conftest import Cluster, switched

SHAPER = ("tbf", "rate", "1gbit", "burst", "256kb", "latency", "50ms")
SIZES = tuple(2**power for power in (18, 20, 22))


def main() -> int:
    """Make the hosts and their link, measure, and judge."""
    try:
        with TemporaryDirectory() as folder, switched(2, Path(folder)) as made:
            return _measure(made, Path(folder))
    except pytest.skip.Exception as reason:
        print(f"benchmarks.link: {reason}", file=sys.stderr)
        return 2


def _measure(made: Cluster, folder: Path) -> int:
    for node in made.nodes:
        line = ("tc", "qdisc", "add", "dev", "eth0", "root", *SHAPER)
        subprocess.run([*node.within, *line], check=True)
    module = ("--module", "benchmarks.allreduce", str(folder), *map(str, SIZES))
    here = str(Path(__file__).parent.parent)
    threads = {"OMP_NUM_THREADS": "1", "PYTHONPATH": here}
    outputs = made.run(*made.torchrun, *module, environment=threads)
    for output in outputs:
        print(output.stdout, end="")
        if output.exit_code:
            print(output.stderr, file=sys.stderr)
            return 2
    return allreduce.judge(folder)


if __name__ == "__main__":
    sys.exit(main())
