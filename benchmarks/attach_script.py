"""An ordinary DDP training for ``benchmarks.attach``, which counts its steps in a file."""

from __future__ import annotations

import mmap
import struct
import sys
from pathlib import Path
from threading import Event, Thread

import torch.distributed as dist  # noqa: TID253

from benchmarks.overhead_script import Training


def main() -> None:
    """Train until it is ended."""
    width, threads, path = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    dist.init_process_group("gloo")
    training = Training(width)
    for _ in range(threads):
        Thread(target=Event().wait, daemon=True).start()
    counts = dist.get_rank() == 0
    if counts:
        path.write_bytes(bytes(8))
    dist.barrier()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 8) as memory:
        done = 0
        while True:
            training.train(1)
            done += 1
            if counts:
                struct.pack_into("q", memory, 0, done)


if __name__ == "__main__":
    main()
