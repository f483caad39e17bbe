"""How fast a launch command is reviewed: a script of 5,000 lines that imports 50 modules.

Exit code 1: reading takes 1 s of CPU time or more, or imports torch; or the whole of `ddoctor
doctor --no-probes` takes 5 s or more.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

RUNS = 5
LINES, MODULES = 5_000, 50
READING_SECONDS, WHOLE_SECONDS = 1.0, 5.0
COMMAND = ("torchrun", "--nproc-per-node", "2", "train.py")
READ = f"""
import sys, time
from pathlib import Path
began = time.process_time()
from ddoctor.launch.review import review
sections = [*review({COMMAND!r}, Path())]
print(time.process_time() - began, "torch" in sys.modules, len(sections))
"""
BLOCK = """
class Block{number}(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.inner, self.norm = nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x, scale=1.0):
        for _ in range(3):
            x = self.norm(self.inner(x)) + x * scale
        return x if x.mean() > 0 else x * 0.5


def totals_{number}(rows, limit):
    kept = [row for row in rows if row["length"] < limit]
    return {{"rows": kept, "total": sum(row["length"] for row in kept)}}

"""
LOOP = """
dist.init_process_group("gloo")
data = list(range(100))
sampler = DistributedSampler(data)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for batch in DataLoader(data, sampler=sampler, num_workers=2, persistent_workers=True):
        pass
dist.destroy_process_group()
"""
IMPORTS = """import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
"""


def main() -> int:
    """Write the script, then read it and examine the launch in turns."""
    reading, whole = [], []
    light = True
    with TemporaryDirectory() as folder:
        _write(Path(folder))
        for _ in range(RUNS):
            read = [sys.executable, "-c", READ]
            told = subprocess.run(read, cwd=folder, check=True, capture_output=True, text=True)
            seconds, torch, sections = told.stdout.split()
            light = light and torch == "False" and sections == "2"
            reading.append(float(seconds))
            doctor = [sys.executable, "-m", "ddoctor", "doctor", "--no-probes", "--", *COMMAND]
            began = time.perf_counter()
            subprocess.run(doctor, cwd=folder, capture_output=True)
            whole.append(time.perf_counter() - began)
    for name, times in (("reading, CPU", reading), ("doctor, in all", whole)):
        low, _, high = quantiles(times, n=4)
        print(f"{name:16} median {median(times):.2f} s ({low:.2f} to {high:.2f}, {RUNS} runs)")
    print(f"torch is {'not ' if light else ''}imported")
    good = median(reading) < READING_SECONDS and median(whole) < WHOLE_SECONDS
    return 0 if good and light else 1


def _write(folder: Path) -> None:
    """The script, and modules of 70 lines."""
    names = [f"module_{number}" for number in range(MODULES)]
    for number, name in enumerate(names):
        blocks = (BLOCK.format(number=f"{number}_{part}") for part in range(4))
        (folder / f"{name}.py").write_text(IMPORTS + "".join(blocks))
    imports = IMPORTS + "".join(f"import {name}\n" for name in names)
    lines = LINES - imports.count("\n") - LOOP.count("\n")
    blocks = (BLOCK.format(number=number) for number in range(lines // BLOCK.count("\n")))
    (folder / "train.py").write_text(imports + "".join(blocks) + LOOP)


if __name__ == "__main__":
    sys.exit(main())
