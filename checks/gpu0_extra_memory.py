"""Several ranks hold memory of the first GPU in addition to their own GPU.

A rank that does not select its GPU uses the first one. Each such rank creates a CUDA context there,
some hundred MiB, or loads a whole checkpoint there, since ``torch.load`` restores tensors to the
device that saved them. Rank 0 then runs out of memory while the other GPUs have room.

Symptoms: ``nvidia-smi`` lists the processes of all ranks on GPU 0, and one on each other GPU.

To fix it, call ``torch.cuda.set_device(LOCAL_RANK)`` first, and load checkpoints with
``map_location="cpu"``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ddoctor.analysis import cuda_oom, endings
from ddoctor.analysis.cuda_oom import NOTABLE
from ddoctor.analysis.live_ranks import LiveRankState
from ddoctor.analysis.live_state import LiveState
from ddoctor.evidence.gpus import Gpu, Gpus
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("memory-headroom-low", "uneven-gpu-memory")

GIB = 2**30


def met_by_a_rank(run: TrainingRun) -> Iterator[Finding]:
    found = cuda_oom.of_kind(run, "ranks", "loading")
    if not found:
        return
    case = found[0]
    memory, one = case.memory, case.rank
    if case.kind == "loading":
        why = f"it loaded a checkpoint onto GPU {memory.device}, which belongs to another rank"
    else:
        held = {
            other.rank: memory.others[other.pid]
            for other in run.ranks
            if other.host == one.host and other.pid in memory.others
        }
        verb = "hold" if len(held) > 1 else "holds"
        why = f"{endings.ranks(held)} {verb} {sum(held.values()) / GIB:.1f} GiB of the same GPU"
    yield Finding(
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN if case.kind == "ranks" else Confidence.LIKELY,
        because=f"{cuda_oom.sentence(case, run)}; {why}",
        evidence=tuple(cuda_oom.observations(case)),
        where=cuda_oom.where(found),
        fixes=_FIXES,
    )


def in_a_live_run(live: LiveState, hosts: tuple[Gpus, ...]) -> Iterator[Finding]:
    for section in hosts:
        ranks = {rank.seen.pid: rank for rank in live.ranks if rank.host == section.host}
        for gpu in section.answering:
            guests = _guests(gpu, section, ranks)
            # A single rank may do so on purpose.
            if len(guests) > 1:
                yield _live(gpu, guests, section.host)


def _guests(gpu: Gpu, section: Gpus, ranks: Mapping[int, LiveRankState]) -> dict[int, int]:
    """Bytes by rank, of ranks that hold little of this GPU and more of another one."""
    held: dict[int, dict[int, int]] = {}
    for one in section.answering:
        for process in one.processes or ():
            if process.pid in ranks and process.memory is not None:
                held.setdefault(ranks[process.pid].rank, {})[one.index] = process.memory
    return {
        rank: each[gpu.index]
        for rank, each in sorted(held.items())
        if each.get(gpu.index, NOTABLE) < min(NOTABLE, max(each.values()))
    }


def _live(gpu: Gpu, guests: dict[int, int], host: str) -> Finding:
    held = sum(guests.values()) / GIB
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.CERTAIN,
        because=(
            f"{endings.ranks(guests)} hold {held:.1f} GiB of {gpu.title}, and each rank holds more "
            "on another GPU"
        ),
        evidence=tuple(
            Observation(
                name=f"rank {rank} on GPU {gpu.index}",
                value=round(memory / GIB, 2),
                unit="GiB",
                expected=0,
                source="NVML",
            )
            for rank, memory in guests.items()
        ),
        where=Where(hosts=(host,), ranks=tuple(guests), devices=(gpu.device,)),
        cost=Cost(value=round(held, 1), unit="GiB"),
        fixes=_FIXES,
    )


_FIXES = (
    Fix(
        summary="set the device of each rank before anything else uses CUDA",
        paste=(
            "device = torch.device('cuda', int(os.environ['LOCAL_RANK']))\n"
            "torch.cuda.set_device(device)\n"
            "torch.distributed.init_process_group(device_id=device)"
        ),
        language="python",
        caution="plain 'cuda', .cuda() or barrier() before it uses GPU 0",
    ),
    Fix(
        summary="and load checkpoints onto the CPU first",
        paste="torch.load(path, map_location='cpu', mmap=True)",
        language="python",
    ),
)
