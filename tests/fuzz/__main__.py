"""``python -m tests.fuzz``: tries many inputs of each kind and reports what became of them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzz.kinds import KINDS
from tests.fuzz.trying import Told, tried

CHUNK = 50


def main() -> None:
    """Read the command line, and try the kinds one after the other."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("kind", nargs="*", help=f"kinds of input: {', '.join(KINDS)}")
    parser.add_argument("--tries", type=int, default=1_000, help="inputs of each kind")
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    numbers = range(given.first, given.first + given.tries)
    with TemporaryDirectory(prefix="ddoctor-fuzz-") as folder:
        for kind in given.kind or KINDS:
            _report(kind, numbers, given.processes, Path(folder))


def _report(kind: str, numbers: range, processes: int, folder: Path) -> None:
    whole, began = Told(), time.perf_counter()
    # Not forked: each begins with the memory of one.
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        for told in pool.map(partial(tried, kind, folder), _chunks(numbers)):
            whole.add(told)
    counts = ", ".join(f"{count} {what}" for what, count in whole.outcomes.most_common())
    seconds, number = whole.slowest
    print(
        f"{kind}: {len(numbers)} tries in {time.perf_counter() - began:.0f} s: {counts}; "
        f"slowest {seconds:.2f} s (number {number}); peak {whole.memory} MiB",
        flush=True,
    )
    for fault, met in sorted(whole.faults.items(), key=lambda item: -len(item[1])):
        print(f"  {len(met)} times, such as {met[0]}: {fault}", flush=True)


def _chunks(numbers: range) -> Iterator[range]:
    for start in range(0, len(numbers), CHUNK):
        yield numbers[start : start + CHUNK]


if __name__ == "__main__":
    main()
