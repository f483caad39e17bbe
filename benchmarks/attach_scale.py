"""How long the looks at a large run take to be joined and judged, and whether its fault is found.

The bundles of 128 hosts with 8 ranks each, of a run that stands still and of one that is slow, are
simulated and given to ``ddoctor diagnose``, whose time and memory are those of its process.
Exit code 1: a limit is passed, or the rank at the root is not the one that is told.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from ddoctor.evidence import bundle
from ddoctor.evidence.live import Activity, LiveRank, Turn
from ddoctor.evidence.section import Evidence
from tests.live_look import in_reduction, look, moving, standing
from tests.training_run import library, user

HOSTS, RANKS_PER_HOST = 128, 8
CULPRIT = 700
LIMIT_SECONDS, LIMIT_BYTES = 10.0, 2**30
OUTER = tuple(user(line, f"call_{line}(batch)", f"outer_{line}") for line in range(10, 14))
INNER = tuple(
    library(f"torch/nn/modules/layer_{one}.py", 100 + one, "forward") for one in range(20)
)
LINE = user(30, "wait_for_file(path)", "load")
FAMILIAR = {"forward": 30, "backward-or-wait": 45, "optimizer": 10, "loader": 5, "rest": 10}


def main() -> int:
    """Judge both, and say what it took."""
    good = [
        _judge("stands still", _hung, "rank-stuck-outside-collective"),
        _judge("is slow", _slow, "straggler-rank"),
    ]
    return 0 if all(good) else 1


def _judge(name: str, make: Callable[[int], LiveRank], cause: str) -> bool:
    with TemporaryDirectory() as folder:
        bundles = [Path(folder) / f"{host}.json" for host in range(HOSTS)]
        for host, path in enumerate(bundles):
            first = host * RANKS_PER_HOST
            ranks = (make(rank) for rank in range(first, first + RANKS_PER_HOST))
            section = look(*ranks, host=f"node-{host}")
            whole = msgspec.structs.replace(section, world=HOSTS * RANKS_PER_HOST)
            bundle.write(path, Evidence([whole]))
        size = sum(path.stat().st_size for path in bundles)
        began = time.perf_counter()
        command = [sys.executable, "-m", "ddoctor", "diagnose", *map(str, bundles), "--json", "-"]
        told = subprocess.run(command, capture_output=True, text=True)
        seconds = time.perf_counter() - began
    # Of all children so far, the largest.
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    first_finding = json.loads(told.stdout)["findings"][0]
    found = (first_finding["cause"], first_finding["where"]["ranks"])
    right = found == (cause, [CULPRIT])
    print(
        f"a run of {HOSTS * RANKS_PER_HOST} ranks that {name}: {size / 1e6:.1f} MB judged in "
        f"{seconds:.1f} s with {peak / 2**20:.0f} MiB; {'right' if right else f'WRONG: {found}'}"
    )
    return right and seconds < LIMIT_SECONDS and peak < LIMIT_BYTES


def _hung(rank: int) -> LiveRank:
    if rank == CULPRIT:
        return standing(rank, "rest", *OUTER, LINE)
    return msgspec.structs.replace(in_reduction(rank), stack=(*OUTER, *INNER))


def _slow(rank: int) -> LiveRank:
    late = rank == CULPRIT
    met = {**FAMILIAR, "forward": 70, "backward-or-wait": 5} if late else FAMILIAR
    calls = {name: (*OUTER, user(40 + n, f"{name}()")) for n, name in enumerate(met)}
    return msgspec.structs.replace(
        moving(rank, met, asleep=0.02 if late else 0.42),
        stack=(*OUTER, *INNER),
        activities=tuple(
            Activity(name=name, samples=samples, visits=20, calls=calls[name])
            for name, samples in sorted(met.items(), key=lambda item: -item[1])
        ),
        turns=tuple(Turn(name=name, samples=1) for _ in range(20) for name in met),
    )


if __name__ == "__main__":
    sys.exit(main())
