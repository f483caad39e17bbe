"""The sweep for the largest micro-batch against trying every one, and against accelerate's search.

Two ranks under torchrun on gloo, CPU tensors against a stated size of device. Truth: every size
from one on under torch's own MemTracker, in one process. Beside ours: accelerate's
`find_executable_batch_size` on the same limit, begun at a power of two of at least twice the truth;
it stops at the first size that fits, and knows one process only. A trial is a step of training at a
new size. Exit code 1: another largest micro-batch than the truth, or more than 6 trials.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from ddoctor.evidence import bundle
from ddoctor.evidence.memory_headroom import MemoryHeadroom
from ddoctor.forecast.model.operators import Rationed
from ddoctor.headroom.search import TRIALS
from tests.headroom import exhaustive, workloads

MIB = 2**20
ROOT = Path(__file__).parent.parent
# Workload, MiB of each of two ranks, and the micro-batch to begin at.
CASES = (
    ("dense", (10, 10), 1),
    ("dense", (14, 12), 8),
    ("dense", (32, 24), 64),
    ("attention", (10, 10), 1),
    ("attention", (24, 16), 4),
)


def main() -> int:
    """Measure, and say what it comes to."""
    warnings.simplefilter("ignore")
    print(f"{'':32}{'truth':>8}{'ddoctor':>18}{'accelerate':>18}")
    right = [_row(*case) for case in CASES]
    return 0 if all(right) else 1


def _row(name: str, memory: tuple[int, int], first: int) -> bool:
    make = getattr(workloads, name)
    limit = min(memory) * MIB
    truth = exhaustive.largest(make, limit, ranks=2)
    section = _swept(name, memory, first)
    trials = len([one for one in section.trials if not one.exchange])
    other, calls = _accelerate(make, limit, 2 ** (2 * truth - 1).bit_length())
    title = f"{name}, {memory[0]} and {memory[1]} MiB, from {first}"
    print(
        f"{title:32}{truth:8}{section.largest:8} in {trials:2}   {other:11} in {calls:2}",
        flush=True,
    )
    return section.largest == truth and trials <= TRIALS


def _swept(name: str, memory: tuple[int, int], first: int) -> MemoryHeadroom:
    with TemporaryDirectory() as folder:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"),
                *(
                    "-m",
                    "ddoctor.probe",
                    "memory_headroom",
                    "--json",
                    "-",
                    "--bundle",
                    "found.json",
                ),
                f"--workload=tests.headroom.workloads:{name}",
                f"--micro-batch={first}",
                "--device-memory=" + ",".join(f"{one}MiB" for one in memory),
            ],
            env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)},
            cwd=folder,
            capture_output=True,
            text=True,
        )
        assert not json.loads(done.stdout)["crashed"], done.stdout
        (section,) = bundle.read(Path(folder, "found.json")).all(MemoryHeadroom)
        return section


def _accelerate(make: Callable[[], workloads.Made], limit: int, start: int) -> tuple[int, int]:
    model, optimizer, loss = make()
    room = limit - sum(one.nbytes for one in model.parameters())
    tried: list[int] = []

    def step(samples: int) -> None:
        tracker = Rationed(model, optimizer, (), room)
        with tracker:
            value = loss(model, samples)
            value.backward()  # type: ignore[no-untyped-call]
            del value
            optimizer.step()
            optimizer.zero_grad()

    step(1)  # the optimizer makes its states

    def search(batch_size: int) -> int:
        tried.append(batch_size)
        optimizer.zero_grad()
        step(batch_size)
        return batch_size

    shrink = import_module("accelerate.utils").find_executable_batch_size
    return int(shrink(search, starting_batch_size=start)()), len(tried)


if __name__ == "__main__":
    sys.exit(main())
