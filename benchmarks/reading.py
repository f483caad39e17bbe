"""How fast `ddoctor diagnose` reads logs, memory snapshots and traces, and in how much memory.

Each kind is read in a process of its own. Printed are megabytes per second of CPU time and the peak
of memory. Exit code 1: a log of a usual training is read at less than 50 MB/s, a snapshot at less
than 2 MB/s; a log of any kind, or 1,000 of them, take more than 500 MB, a snapshot more than 1000
MB; or eight traces, of this size each, take more than 60 s or 3 GB.
"""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.traced import Dose, Made

RATE, MEMORY = 50.0, 500.0
"""MB/s of a log, at least, and MB, at most."""
SNAPSHOT_RATE, SNAPSHOT_MEMORY = 2.0, 1000.0
FILES = 1_000
BLOCKS, EVENTS, FRAMES = 1_000_000, 100_000, 40
"""Of a snapshot: an event has so many frames."""
RANKS, OPERATORS = 8, 100_000
TRACES_SECONDS, TRACES_MEMORY = 60.0, 3000.0
READ = """
import sys, time
from pathlib import Path
from ddoctor.reading import reader
began = time.process_time()
evidence, _ = reader.read([Path(one) for one in sys.argv[1:]])
seconds = time.process_time() - began
# The peak of the process itself; that of getrusage begins with its parent's.
rows = Path("/proc/self/status").read_text().splitlines()
print(seconds, next(int(row.split()[1]) / 1024 for row in rows if row.startswith("VmHWM")))
"""


def step(number: int) -> str:
    """A step of torchtitan."""
    when = f"2026-11-25 10:{number % 60:02}:{number % 59:02}"
    told = f"step: {number} loss: {random.random():.4f} memory: 49.59GiB(52.19%) tps: 5,603"
    return f"[rank{number % 8}]:{when} - INFO - {told}\n"


def nccl(number: int) -> str:
    """A channel, as NCCL_DEBUG=INFO tells it."""
    gpu = number % 8
    said = f"Channel {number % 32:02}/0 : {gpu}[{gpu}] -> 3[3] via P2P/CUMEM"
    return f"node-{number % 4}:{gpu}:9 [{gpu}] NCCL INFO {said}\n"


def bar(number: int) -> str:
    """A bar of tqdm, of which fifty overwrite one another."""
    end = "\n" if number % 50 == 0 else "\r"
    return f"Epoch 1: {number % 100:3}%|###   | {number % 1000}/1000 [00:31<00:29, 16.5it/s]{end}"


def words(number: int) -> str:
    """A line that is like no other."""
    return " ".join(random.choice("abcdefgh") * random.randint(1, 9) for _ in range(15)) + "\n"


def failure(number: int) -> str:
    """An exception in each tenth line."""
    return f"[rank{number % 8}]: ValueError: no {number}\n" if number % 10 == 0 else step(number)


KINDS: Mapping[str, Callable[[int], str]] = {
    "steps": step,
    "NCCL": nccl,
    "bars": bar,
    "unlike": words,
    "failures": failure,
}


def repeated(size: int, line: Callable[[int], str], folder: Path) -> None:
    """A log of one piece over and over: in real ones numbers differ, and forms of lines do not."""
    piece = "".join(map(line, range(50_000))).encode()
    with (folder / "log").open("wb") as file:
        for _ in range(max(1, size // len(piece))):
            file.write(piece)


def one_line(size: int, folder: Path) -> None:
    """A log whose only line has no end."""
    with (folder / "log").open("wb") as file:
        for _ in range(max(1, size // 10**6)):
            file.write(b"weights 0.1 0.2 " * 62_500)


def rank_files(size: int, folder: Path) -> None:
    """A log of each of 1,000 ranks, all of which lose the connection to another."""
    piece = "".join(map(step, range(size // FILES // 100))).encode()
    for rank in range(FILES):
        lost = (
            f"[rank{rank}]: RuntimeError: [10.0.0.{rank % 250}]:{rank}: Connection closed by peer\n"
        )
        (folder / f"rank{rank}.log").write_bytes(piece + lost.encode())


def snapshot() -> bytes:
    """As torch.cuda.memory._dump_snapshot() writes it, with a stack of its own for each event."""
    frames = [{"filename": f"/a/{n}.py", "line": n, "name": f"f{n}"} for n in range(5_000)]
    size, base = 64 * 1024, 0x7F0000000000
    blocks: list[dict[str, object]] = [
        {
            "address": base + number * size,
            "size": size,
            "requested_size": size - 300,
            "state": "inactive" if number % 3 else "active_allocated",
            "frames": [],
        }
        for number in range(BLOCKS)
    ]
    events = [
        {
            "action": "free_completed" if number % 2 else "alloc",
            "addr": base + number // 2 * size,
            "size": size,
            "stream": 0,
            "time_us": 10**15 + number,
            "frames": frames[number % 4_000 :][:FRAMES],
        }
        for number in range(EVENTS)
    ]
    segment = {"device": 0, "address": base, "total_size": BLOCKS * size, "segment_type": "large"}
    value = {"segments": [{**segment, "stream": 0, "blocks": blocks}], "device_traces": [events]}
    return pickle.dumps(value)


def trace(paths: Sequence[Path], size: int) -> None:
    """Traces of about ``size`` bytes each: steps of 100,000 operators, as of a large model."""
    one = Made(world=len(paths))
    files = [path.open("w") for path in paths]
    for rank, file in enumerate(files):
        told = Made(rank=rank, world=len(paths)).distributed()
        head = json.dumps({"schemaVersion": 1, "deviceProperties": [], **told})
        file.write(head.removesuffix("}") + ', "traceEvents": [')
    begin, written = 0.0, 0
    while written < size:
        end = one.step(round(begin), begin, Dose())
        for place in range(OPERATORS):
            moment = begin + (end - begin) * place / OPERATORS
            one.operator("aten::add_", moment, 2e-4)
            if place % 4 == 0:
                one.on_gpu("kernel", "elementwise_kernel", moment, moment, 2e-4)
        text = json.dumps(one.events, indent=1).strip("[]")
        for file in files:
            file.write(", " * bool(written) + text)
        begin, written = end, written + len(text)
        one.events.clear()
    for file in files:
        file.write("]}")
        file.close()


def traces(size: int) -> bool:
    """Read traces of all ranks at once; whether that takes too long, or too much memory."""
    with TemporaryDirectory() as folder:
        paths = [Path(folder, f"rank{rank}.json") for rank in range(RANKS)]
        trace(paths, size)
        whole = sum(path.stat().st_size for path in paths) / 1e6
        seconds, memory = read(*paths)
    told("traces", whole, seconds, memory)
    return seconds > TRACES_SECONDS or memory > TRACES_MEMORY


def read(*paths: Path) -> tuple[float, float]:
    """Read files in a process; return CPU seconds and MB."""
    done = subprocess.run(
        [sys.executable, "-c", READ, *map(str, paths)], capture_output=True, text=True, check=True
    )
    seconds, memory = map(float, done.stdout.split())
    return seconds, memory


def told(kind: str, size: float, seconds: float, memory: float) -> None:
    rate = f"{size / seconds:6.1f} MB/s"
    print(f"{kind:9} {size:6.0f} MB  {rate}  {memory:5.0f} MB at most", flush=True)


def main(arguments: Sequence[str]) -> int:
    """Write and read each kind."""
    options = ArgumentParser(prog="python -m benchmarks.reading")
    options.add_argument("--megabytes", type=int, default=200)
    chosen = options.parse_args(arguments)
    random.seed(1)
    slow = False
    size = chosen.megabytes * 10**6
    logs: Mapping[str, Callable[[Path], None]] = {
        **{kind: partial(repeated, size, line) for kind, line in KINDS.items()},
        "one line": partial(one_line, size),
        "files": partial(rank_files, size),
    }
    for kind, write in logs.items():
        with TemporaryDirectory() as folder:
            write(Path(folder))
            whole = sum(path.stat().st_size for path in Path(folder).iterdir()) / 1e6
            seconds, memory = read(Path(folder))
        slow = slow or memory > MEMORY or whole / seconds < RATE
        told(kind, whole, seconds, memory)
    with TemporaryDirectory() as folder:
        path = Path(folder, "rank0.pickle")
        path.write_bytes(snapshot())
        whole = path.stat().st_size / 1e6
        seconds, memory = read(path)
    slow = slow or memory > SNAPSHOT_MEMORY or whole / seconds < SNAPSHOT_RATE
    told("snapshot", whole, seconds, memory)
    slow = traces(size) or slow
    return int(slow)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
