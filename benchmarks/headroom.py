"""The sweep for the largest micro-batch against trying every one, and against others' search.

Two ranks under torchrun on gloo, CPU tensors against a stated size of device. Truth: every size
from one on under torch's own MemTracker, in one process. Beside ours, on the same limit, in one
process each: accelerate's `find_executable_batch_size`, begun at a power of two of at least twice
the truth, which stops at the first size that fits; and Lightning's `BatchSizeFinder` (binsearch, no
margin) where it is installed (``pip install pytorch-lightning``), begun where ours is, which counts
its trials by steps as well. A trial is a step of training at a new size. Exit code 1: another
largest micro-batch than the truth, or more than 6 trials.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch  # noqa: TID253
from torch.utils.data import DataLoader, TensorDataset  # noqa: TID253

from ddoctor.evidence import bundle
from ddoctor.evidence.memory_headroom import MemoryHeadroom
from ddoctor.memory_sweep.search import TRIALS
from ddoctor.memory_tracking.operators import LimitedTracker
from tests.memory_sweep import exhaustive, workloads

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
    print(f"{'':32}{'truth':>8}{'ddoctor':>18}{'accelerate':>18}{'Lightning':>18}")
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
        f"{title:32}{truth:8}{section.largest:12} in {trials:2}{other:12} in {calls:2}"
        f"{_lightning(make, limit, first):>18}",
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
                f"--workload=tests.memory_sweep.workloads:{name}",
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
        tracker = LimitedTracker(model, optimizer, (), room)
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


class _Ended(LimitedTracker):  # type: ignore[no-untyped-call]
    """In words that Lightning knows, and only once: it cleans up under the same tracker."""

    def _update_peak_stats(self, peak_state: Any) -> None:
        try:
            super()._update_peak_stats(peak_state)
        except torch.cuda.OutOfMemoryError as error:
            self._limit = sys.maxsize
            raise RuntimeError(f"CUDA out of memory: {error}") from None


def _lightning(make: Callable[[], workloads.Made], limit: int, first: int) -> str:
    """What it finds, and in how many steps; two ranks' buckets are taken off the limit."""
    if find_spec("pytorch_lightning") is None:
        return "not installed"
    lightning: Any = import_module("pytorch_lightning")
    finder: Any = import_module("pytorch_lightning.callbacks").BatchSizeFinder
    model, optimizer, loss = make()
    room = limit - sum(one.nbytes for one in model.parameters())
    tried: list[int] = []

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model, self.batch_size = model, first
            self.tracker: _Ended | None = None

        def train_dataloader(self) -> Any:
            return DataLoader(TensorDataset(torch.zeros(2**16)), batch_size=self.batch_size)

        def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
            tried.append(len(batch[0]))
            return loss(self.model, len(batch[0]))

        def configure_optimizers(self) -> Any:
            return optimizer

        # The finder takes all callbacks away.
        def on_train_batch_start(self, *args: Any) -> None:
            self.on_train_batch_end()
            self.tracker = _Ended(model, optimizer, (), room)
            self.tracker.__enter__()

        def on_train_batch_end(self, *args: Any) -> None:
            if self.tracker is not None:
                self.tracker.__exit__(None, None, None)
                self.tracker = None

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    module = Module()
    search = finder(mode="binsearch", steps_per_trial=1, init_val=first, margin=0.0)
    trainer = lightning.Trainer(
        max_steps=0,
        accelerator="cpu",
        callbacks=[search],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        trainer.fit(module)
        module.on_train_batch_end()
        os.chdir(ROOT)
    return f"{module.batch_size} in {len(tried):2}"


if __name__ == "__main__":
    sys.exit(main())
