"""Sick and sound trainings, started as anybody starts them, looked at from outside.

As in `tests/ward`: the fault is provoked, and the first finding has to name it, its rank and the
user's line.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.live.conftest import LIMIT_SECONDS, Live, StartLive

AT_WORK = 20
"""Steps after which a training is looked at; what happens in that step comes before its end."""
IN_STEP_20 = "step == 20 and rank == 1"


def kill(live: Live) -> None:
    """As the kernel does it for memory."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not all((live.folder / f"early{rank}").exists() for rank in (0, 1)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    live.ranks()[1].kill()


def wait_until_gone(live: Live) -> None:
    """Until the second rank is no more."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while len(live.ranks()) > 1 or not (live.folder / "cache").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@dataclass(frozen=True, kw_only=True)
class Sick:
    """A fault, and what is to be told of it."""

    cause: str
    parts: Mapping[str, Any]
    rank: int | None = None
    line: str = ""
    """What stands at the line that is to be named; empty: none."""
    wait_for: int = AT_WORK - 1
    words: tuple[str, ...] = ()
    """More of the command; ``{folder}``: where it trains."""
    provoke: Callable[[Live], None] = field(default=lambda live: None)


SICK = {
    "slow in its own forward": Sick(
        cause="straggler-rank",
        parts={"forward": "if rank == 1: busy(0.04)"},
        rank=1,
        line="busy(0.04)",
    ),
    "slow inside of its backward": Sick(
        cause="straggler-rank",
        parts={"backward": "if rank == 1: busy(0.04)"},
        rank=1,
        line="busy(0.04)",
    ),
    "rank 0 draws in every step": Sick(
        cause="rank0-extra-work",
        parts={"work": "if rank == 0: busy(0.04)"},
        rank=0,
        line="if rank == 0: busy(0.04)",
    ),
    "a slow dataset": Sick(
        cause="dataloader-bottleneck", parts={"item": "time.sleep(0.01)", "workers": 1}
    ),
    "a slow dataset on one rank, without workers": Sick(
        cause="dataloader-bottleneck",
        parts={"item": "if rank == 1: time.sleep(0.008)"},
        rank=1,
    ),
    "batches that are slow to put together": Sick(
        cause="collate-bottleneck", parts={"collate": "time.sleep(0.08)", "workers": 1}
    ),
    "resumed, by going through what was trained on": Sick(
        cause="resume-batch-skipping-slow",
        parts={"item": "time.sleep(0.002)", "workers": 2, "start": 100_000},
        line="for step, batch in enumerate(batches):",
        wait_for=-1,
        provoke=lambda live: time.sleep(5.0),
    ),
    "resumed, by accelerate's loader": Sick(
        cause="resume-batch-skipping-slow",
        parts={
            "item": "time.sleep(0.002)",
            "before": """
                from accelerate.data_loader import SkipDataLoader
                loader = SkipDataLoader(Items(), 100_000, batch_size=8, num_workers=2)
                for batch in loader: pass
                """,
        },
        line="for batch in loader: pass",
        wait_for=-1,
        provoke=lambda live: time.sleep(5.0),
    ),
    "workers that are started in each epoch": Sick(
        cause="worker-restart-each-epoch",
        parts={"workers": 4, "length": "64", "epochs": 100_000},
    ),
    "rank 0 validates alone": Sick(
        cause="rank0-extra-work",
        parts={
            "before": """
                global validate
                def validate():
                    model = Model().eval()
                    for _ in range(30): model(torch.randn(20_000, 16))
                """,
            "work": "if rank == 0 and step % 4 == 0: validate()",
        },
        rank=0,
        line="if rank == 0 and step % 4 == 0: validate()",
    ),
    "a worker that holds a lock": Sick(
        cause="dataloader-worker-deadlock",
        parts={
            "item": """
                if rank == 1 and index == 200:
                    lock = threading.Lock()
                    lock.acquire()
                    lock.acquire(timeout=1_000_000)
                """,
            "workers": 1,
        },
        rank=1,
        line="lock.acquire(timeout=1_000_000)",
    ),
    "another branch": Sick(
        cause="rank-dependent-control-flow",
        parts={
            "work": """
                skip = step == 20 and rank == 1
                if skip: dist.all_reduce(torch.ones(1))
                if step == 20: dist.barrier()
                """
        },
        line="dist.all_reduce(torch.ones(1))",
    ),
    "short of data": Sick(
        cause="uneven-inputs-per-rank",
        parts={"length": "240 if rank == 1 else 480", "after": "dist.barrier()"},
        rank=1,
        line="dist.barrier()",
    ),
    "a collective for rank 0 only": Sick(
        cause="rank0-only-collective",
        parts={
            "work": """
                if rank == 0 and step == 20:
                    dist.barrier()
                """
        },
        rank=0,
        line="dist.barrier()",
    ),
    "a loop of forward passes that rank 0 leaves before the others": Sick(
        cause="sharded-forward-not-synced",
        parts={
            "before": """
                global generate
                from torch.distributed.device_mesh import DeviceMesh
                from torch.distributed.fsdp import fully_shard
                mesh = DeviceMesh.from_group(dist.new_group(), "cpu")
                sharded = nn.Linear(16, 16)
                fully_shard(sharded, mesh=mesh, reshard_after_forward=True)
                def generate(most):
                    value, turns = torch.ones(8, 16), 0
                    while turns < most:
                        value = sharded(value)
                        turns += 1
                """,
            "work": """
                most = 30 if rank == 1 else 20
                if step == 20:
                    generate(most)
                """,
        },
        rank=0,
        line="value = sharded(value)",
    ),
    "stopped": Sick(
        cause="rank-stuck-outside-collective", parts={}, rank=1, provoke=lambda live: live.stop(1)
    ),
    "waiting for an answer": Sick(
        cause="rank-stuck-outside-collective",
        parts={"work": f"if {IN_STEP_20}: os.read(os.pipe()[0], 1)"},
        rank=1,
        line="os.read(",
    ),
    "in a call of the kernel that does not return": Sick(
        cause="rank-stuck-outside-collective",
        parts={
            "work": f"""
                if {IN_STEP_20}:
                    os.mkfifo("fifo")
                    opens = (os.POSIX_SPAWN_OPEN, 0, "fifo", os.O_RDONLY, 0)
                    os.posix_spawn("/bin/true", ["true"], {{}}, file_actions=[opens])
                """
        },
        rank=1,
        line='os.posix_spawn("/bin/true"',
    ),
    "waiting for an answer, and the others for what they began": Sick(
        cause="rank-stuck-outside-collective",
        parts={
            "work": f"""
                if {IN_STEP_20}: os.read(os.pipe()[0], 1)
                handle = dist.all_reduce(torch.ones(8), async_op=True)
                handle.wait()
                """
        },
        rank=1,
        line="os.read(",
    ),
    "killed, and its launcher lives on": Sick(
        cause="dead-rank",
        parts={
            "plain": True,
            "early": """
                open(f"early{rank}", "w").close()
                if rank == 1: time.sleep(1_000_000)
                """,
        },
        rank=1,
        wait_for=-3,
        provoke=kill,
    ),
    "a folder that another rank has made, and a log": Sick(
        cause="shared-filesystem-race",
        parts={
            "plain": True,
            "early": """
                os.dup2(os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
                while rank == 1 and not os.path.exists("cache"): time.sleep(0.1)
                os.mkdir("cache")
                """,
        },
        rank=1,
        line='os.mkdir("cache")',
        wait_for=-3,
        words=("--log", "{folder}/log"),
        provoke=wait_until_gone,
    ),
    "a different shape": Sick(
        cause="mismatched-collective-shapes",
        parts={
            "work": """
                if step == 20: exchange()
                """,
            "before": """
                global exchange
                def exchange():
                    length = 4_000_000 if rank == 1 else 1_000_000
                    dist.all_reduce(torch.ones(length))
                    dist.barrier()
                """,
        },
        rank=1,
        line="dist.all_reduce(torch.ones(length))",
    ),
    "collects garbage": Sick(
        cause="step-loop-overhead",
        parts={"work": "gc.collect()"},
        line="gc.collect()",
    ),
    "pauses to collect garbage": Sick(
        cause="gc-pause-straggler",
        parts={
            "before": """
                global kept
                kept = [[] for _ in range(1_000_000)]
                gc.set_threshold(700, 10, 2)
                """,
            "work": "waste = [[] for _ in range(10_000)]",
        },
        words=("--native",),
    ),
    "a slow disk": Sick(
        cause="checkpoint-stall",
        parts={
            "before": """
                global Slow
                class Slow:
                    def write(self, data):
                        time.sleep(0.01)
                        return len(data)
                    def flush(self):
                        pass
                """,
            "work": "if rank == 0 and step % 10 == 0: torch.save(torch.ones(8), Slow())",
        },
        rank=0,
        line="torch.save(",
    ),
    "prepares before the first barrier": Sick(
        cause="late-rank-timeout",
        parts={
            "before": """
                if rank == 0:
                    busy(1_000_000)
                dist.barrier()
                """
        },
        rank=0,
        line="busy(1_000_000)",
        wait_for=-1,
    ),
    "a lock that a build has left": Sick(
        cause="stale-jit-extension-cache",
        parts={
            "environment": {"TORCH_EXTENSIONS_DIR": "extensions"},
            "before": """
                if rank == 1:
                    from torch.utils import cpp_extension
                    os.makedirs("extensions/scale")
                    open("extensions/scale/lock", "w").close()
                    cpp_extension.load_inline("scale", cpp_sources="")
                """,
        },
        rank=1,
        line='cpp_extension.load_inline("scale"',
        wait_for=-1,
    ),
    "keeps what it has computed": Sick(
        cause="host-memory-leak",
        parts={
            "before": "global kept; kept = []",
            "work": "kept.append(torch.ones(500_000))",
        },
    ),
    "reads values back": Sick(
        cause="step-loop-overhead",
        parts={"work": "for _ in range(5000): print(torch.ones(1).item(), flush=True)"},
        line="print(torch.ones(1).item(), flush=True)",
    ),
    "all on one core": Sick(
        cause="cpu-affinity-wrong",
        parts={"before": "os.sched_setaffinity(0, {0})", "work": "busy(0.02)"},
    ),
}


@pytest.mark.ward
@pytest.mark.parametrize("name", SICK)
def test_sick(start: StartLive, name: str) -> None:
    case = SICK[name]
    live = start(**case.parts)
    live.wait_for(case.wait_for)
    case.provoke(live)
    words = (word.format(folder=live.folder) for word in case.words)
    attached = live.attach("--seconds", "6", *words)
    first = attached.first
    assert first["cause"] == case.cause, attached.report
    assert first["severity"] != "note"
    if case.rank is not None:
        assert first["where"]["ranks"] == [case.rank]
    if case.line:
        assert live.place(case.line) in _told(first)


def _told(finding: Mapping[str, Any]) -> str:
    """With the lines of stacks as people write them."""
    told = finding["because"] + "".join(fix["paste"] for fix in finding["fixes"])
    return re.sub(r'File "[^"]*/([^"/]+)", line (\d+)', r"\1:\2", told)


SOUND: Mapping[str, Mapping[str, Any]] = {
    "workers that are started in each epoch": {"workers": 1, "length": "800", "epochs": 100_000},
    "with workers": {"workers": 1},
    "without workers": {},
    "resumed, and gone through what was trained on": {"workers": 1, "start": 200},
    "a slow first batch": {"item": "if index == 0: busy(15)", "workers": 1},
    "long steps": {"work": "busy(1.5)"},
    "draws now and then": {"work": "if rank == 0 and step % 100 == 0: busy(0.3)"},
    "saves now and then": {
        "work": "if rank == 0 and step % 200 == 0: torch.save(torch.ones(1000), 'x.pt')"
    },
    "evaluates now and then": {
        "work": """
            if step % 100 == 99:
                for _ in range(20): busy(0.01)
                dist.all_reduce(torch.ones(1))
            """
    },
    "logs now and then": {"work": "if step % 10 == 0: print(step, flush=True)"},
    "writes to its disk in each step": {
        "work": """
            with open(f"notes{rank}", "w") as file:
                file.write(100_000 * "x")
                file.flush()
                os.fsync(file.fileno())
            """
    },
    "other lengths": {"work": "busy(0.002 * ((step * 7 + rank * 3) % 5))"},
}


@pytest.mark.ward
@pytest.mark.parametrize("name", SOUND)
def test_sound(start: StartLive, name: str) -> None:
    live = start(**SOUND[name])
    live.wait_for({"long steps": 2, "a slow first batch": -1}.get(name, AT_WORK))
    before = live.step(0)
    attached = live.attach("--seconds", "6")
    assert attached.causes == [], attached.report
    live.wait_for(before + 1)


@pytest.fixture
def swap(tmp_path: Path) -> Iterator[None]:
    """Room on a disk for memory."""
    path = tmp_path / "swap"
    path.write_bytes(bytes(512 * 2**20))
    path.chmod(0o600)
    for command in ("mkswap", "swapon"):
        if subprocess.run([command, path], capture_output=True).returncode:
            pytest.skip("swap cannot be added here")
    yield
    subprocess.run(["swapoff", path], check=True)


@pytest.mark.ward
@pytest.mark.skipif(os.geteuid() != 0, reason="only root adds swap")
def test_a_rank_that_swaps(swap: None, start: StartLive) -> None:
    # 21: MADV_PAGEOUT of madvise(2), what the kernel does by itself where memory is short.
    live = start(
        before="""
            global memory
            import mmap
            memory = mmap.mmap(-1, 256 * 2**20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            memory.write(b"x" * len(memory))
            """,
        work="""
            if rank == 1:
                memory.madvise(21)
                sum(memory[step % 20 * 8192 * 400 : (step % 20 + 1) * 8192 * 400 : 4096])
            """,
    )
    live.wait_for(AT_WORK)
    first = live.attach("--seconds", "6").first
    assert (first["cause"], first["where"]["ranks"]) == ("host-ram-oom", [1]), first


NOTES: Mapping[str, Mapping[str, Any]] = {
    "compute-bound": {"forward": "busy(0.2)", "ranks": 1},
    "per-rank-metrics-or-logging": {
        "work": "for _ in range(5000): print(step, flush=True)",
    },
}


@pytest.mark.ward
@pytest.mark.parametrize("cause", NOTES)
def test_notes(start: StartLive, cause: str) -> None:
    live = start(**NOTES[cause])
    live.wait_for(AT_WORK)
    told = {one["cause"]: one for one in live.attach("--seconds", "6").report["findings"]}
    assert told[cause]["severity"] == "note", told
