"""How soon `ddoctor attach` names the rank: in 5 s of a run that stands, in 12 s of a slow one.

Eight ranks with four loader workers each train on this machine; rank 5 stops at a line of its
own, or takes longer than the others in each forward. Measured is the time from the command to the
first words on the terminal that name the rank, in turns of which each starts a training anew.
Exit code 1: the median of a kind is above its limit.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import psutil

from benchmarks.attached import training

RANKS, WORKERS, CULPRIT = 8, 4, 5
LIMITS = {"stands": 5.0, "slow": 12.0}
TURNS = 3
MOST_SECONDS = 60.0
SCRIPT = """
import os, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

kind = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()


class Items(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.randn(64)


class Model(nn.Linear):
    def forward(self, value):
        if rank == int(sys.argv[2]) and kind == "slow":
            time.sleep(0.3)
        return super().forward(value)


model = DistributedDataParallel(Model(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Items(), batch_size=8, num_workers=int(sys.argv[3]))
for step, batch in enumerate(loader):
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 10:
        open(f"trains{rank}", "w").close()
    if step == 10 and rank == int(sys.argv[2]) and kind == "stands":
        time.sleep(1_000_000)
"""


def main() -> int:
    """Measure both, and say what it comes to."""
    options = ArgumentParser(description=__doc__)
    options.add_argument("--turns", type=int, default=TURNS)
    turns = options.parse_args().turns
    good = True
    for kind, limit in LIMITS.items():
        seconds = [_turn(kind) for _ in range(turns)]
        told = ", ".join(f"{one:.1f}" for one in seconds)
        good &= median(seconds) <= limit
        print(f"{kind}: rank {CULPRIT} of {RANKS} is named after {told} s (limit {limit:.0f} s)")
    return 0 if good else 1


def _turn(kind: str) -> float:
    with TemporaryDirectory() as name, _training(kind, Path(name)) as launcher:
        command = [sys.executable, "-m", "ddoctor", "attach", str(launcher.pid)]
        ours, theirs = os.openpty()
        began = time.perf_counter()
        attached = subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=theirs)
        os.close(theirs)
        said = b""
        named = f"rank {CULPRIT} ".encode()
        try:
            while named not in b" ".join(said.split()):
                if time.perf_counter() - began > MOST_SECONDS:
                    raise SystemExit(f"nothing was said of rank {CULPRIT}: {said.decode()}")
                if select.select([ours], [], [], 1.0)[0]:
                    said += os.read(ours, 4096)
            return time.perf_counter() - began
        finally:
            attached.send_signal(signal.SIGINT)
            _drain(attached, ours)


def _training(kind: str, folder: Path) -> AbstractContextManager[psutil.Popen]:
    (folder / "train.py").write_text(SCRIPT)
    begun = [folder / f"trains{rank}" for rank in range(RANKS)]
    script = ("train.py", kind, str(CULPRIT), str(WORKERS))
    return training(RANKS, script, folder, lambda: all(one.exists() for one in begun))


def _drain(attached: subprocess.Popen[bytes], ours: int) -> None:
    """Let it come to its end: it must not block on a terminal that nobody reads."""
    while attached.poll() is None:
        # Linux answers with an error once nobody has the other end open.
        with suppress(OSError):
            if select.select([ours], [], [], 0.2)[0]:
                os.read(ours, 4096)
    os.close(ours)


if __name__ == "__main__":
    sys.exit(main())
