"""The faults that the ward of attached trainings provokes, and what is to be told of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.live.conftest import LIMIT_SECONDS, Live

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
        parts={"workers": 4, "length": "16", "epochs": 100_000},
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
    "each receives first": Sick(
        cause="unmatched-send-recv",
        parts={
            "work": """
                if step == 20:
                    request = dist.irecv(torch.ones(8), 1 - rank)
                    request.wait()
                    dist.send(torch.ones(8), 1 - rank)
                """,
        },
        line="request.wait()",
    ),
    "a key that nobody sets": Sick(
        cause="rank-stuck-outside-collective",
        parts={
            "work": """
                if step == 20:
                    store = dist.distributed_c10d._get_default_store()
                    store.wait(["ready"])
                """,
        },
        line='store.wait(["ready"])',
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
    "waiting for a lock that a thread of it has taken, and wants again": Sick(
        cause="rank-stuck-outside-collective",
        parts={
            "before": """
                global lock, keep
                lock = threading.Lock()
                def count():
                    with lock:
                        return 1
                def keep():
                    with lock:  # and again in count()
                        count()
                """,
            "work": f"""
                if {IN_STEP_20}:
                    threading.Thread(target=keep, daemon=True).start()
                    while not lock.locked(): time.sleep(0.001)
                with lock:
                    pass
                """,
        },
        rank=1,
        line="with lock:  # and again",
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
            "work": "kept.append(torch.ones(1_000_000))",
        },
        # Within 6 s it grows to less than what malloc may keep by itself.
        words=("--seconds", "15"),
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
