"""Several ranks hold memory of the first GPU in addition to their own GPU.

A rank that does not select its GPU uses the first one. Each such rank creates a CUDA context there,
some hundred MiB, or loads a whole checkpoint there, since ``torch.load`` restores tensors to the
device that saved them. Rank 0 then runs out of memory while the other GPUs have room.

Symptoms: ``nvidia-smi`` lists the processes of all ranks on GPU 0, and one on each other GPU.

To fix it, call ``torch.cuda.set_device(LOCAL_RANK)`` first, and load checkpoints with
``map_location="cpu"``.
"""

# Above 150 lines: a live run, a failure, nvidia-smi's table, memory snapshots, and the source.

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ddoctor.analysis import cuda_oom, endings, snapshot_failures
from ddoctor.analysis.cuda_oom import NOTABLE
from ddoctor.analysis.describe import GIB
from ddoctor.analysis.live_state import LiveState
from ddoctor.analysis.script_source import is_plain, shown, with_keywords
from ddoctor.analysis.snapshot_failures import SnapshotFailures
from ddoctor.evidence.gpus import Gpus
from ddoctor.evidence.printed import GpuProcesses
from ddoctor.evidence.script import Script
from ddoctor.evidence.source_lines import SourceCall
from ddoctor.evidence.training import TrainingRun
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

EXPLAINS = ("memory-headroom-low", "uneven-gpu-memory")

ON_CURRENT = (
    "torch.distributed.barrier",
    "torch.distributed.all_gather_object",
    "torch.distributed.broadcast_object_list",
    "torch.distributed.gather_object",
)
CONTEXT, EQUAL = GIB // 8, 1.05
"""Bytes that each context takes at least, and the ratio of the largest to the smallest one."""
NEAR = 4
"""PIDs for each process of one start."""
CHOOSES = ("torch.cuda.set_device", "torch.cuda.device", "torch.accelerator.set_device_index")


def met_by_a_rank(run: TrainingRun) -> Iterator[Finding]:
    found = cuda_oom.of_kind(run, "ranks", "loading")
    if not found:
        return
    case = found[0]
    memory, one = case.memory, case.rank
    sure = case.kind == "ranks"
    why = f"it loaded a checkpoint onto GPU {memory.device}, which belongs to another rank"
    if sure:
        held = {
            other.rank: memory.others[other.pid]
            for other in run.ranks
            if other.host == one.host and other.pid in memory.others
        }
        verb = "hold" if len(held) > 1 else "holds"
        why = f"{endings.ranks(held)} {verb} {sum(held.values()) / GIB:.1f} GiB of the same GPU"
    confidence = Confidence.CERTAIN if sure else Confidence.LIKELY
    yield cuda_oom.finding(found, run, f"; {why}", _FIXES, confidence=confidence)


def met_contexts(run: TrainingRun) -> Iterator[Finding]:
    found = cuda_oom.of_kind(run, "contexts")
    if found:
        others = found[0].memory.others
        yield cuda_oom.finding(
            found,
            run,
            f"; {len(others)} other processes hold {sum(others.values()) / GIB:.1f} GiB of it, "
            "each as much as a rank that works on another GPU and has touched this one",
            _FIXES,
            confidence=Confidence.LIKELY,
        )


def in_a_snapshot(failures: SnapshotFailures) -> Iterator[Finding]:
    found = failures.of_kind("ranks")
    if found:
        held = {one.rank: one.reserved for one in found[0].guests if one.rank is not None}
        lines = (one.line for guest in found[0].guests for one in guest.holders)
        line = next((one for one in lines if one is not None), None)
        yield snapshot_failures.finding(
            found,
            f"; {endings.ranks(held)} hold {sum(held.values()) / GIB:.1f} GiB of the same GPU"
            f"{', allocated' * (line is not None)}{endings.at(line)}, and more on another one",
            _FIXES,
        )


def in_a_table(gpus: Gpus) -> Iterator[Finding]:
    """What nvidia-smi printed: processes that hold little of one GPU and more of another one."""
    held = {
        (process.pid, gpu.index): process.memory or 0
        for gpu in gpus.answering
        for process in gpu.processes or ()
    }
    yield from _guests(held if gpus.printed else {})


def in_a_list(listed: GpuProcesses) -> Iterator[Finding]:
    """The same of its list of processes alone."""
    yield from _guests({(one.pid, one.gpu): one.memory for one in listed.processes})
    yield from _contexts(listed)


def _contexts(listed: GpuProcesses) -> Iterator[Finding]:
    """Processes that hold equally little of the only GPU in the list, next to one with more."""
    gpus = {one.gpu for one in listed.processes}
    python = [one for one in listed.processes if "python" in one.name]
    few = [one for one in python if CONTEXT < one.memory < NOTABLE]
    equal = max((one.memory for one in few), default=0) <= EQUAL * min(
        (one.memory for one in few), default=0
    )
    most = max((one.memory for one in python), default=0)
    if len(gpus) != 1 or len(few) < 2 or not equal or most < 2 * few[0].memory:
        return
    # A launcher starts its ranks one after the other.
    pids = [one.pid for one in python]
    if len(few) + 1 != len(python) or max(pids) - min(pids) > NEAR * len(pids):
        return
    gpu = gpus.pop()
    yield Finding(
        severity=Severity.WARNING,
        confidence=Confidence.POSSIBLE,
        because=(
            f"{len(few)} processes hold {few[0].memory / GIB:.1f} GiB each of GPU {gpu}, which is "
            "about what a CUDA context takes, and one holds more: ranks of other GPUs have touched "
            "this one"
        ),
        where=Where(devices=(f"cuda:{gpu}",)),
        cost=Cost(value=round(sum(one.memory for one in few) / GIB, 1), unit="GiB"),
        fixes=_FIXES,
    )


def _guests(held: Mapping[tuple[int, int], int]) -> Iterator[Finding]:
    """``held``: bytes by process and GPU."""
    own: dict[int, int] = {}
    for (pid, gpu), memory in held.items():
        if pid not in own or memory > held[pid, own[pid]]:
            own[pid] = gpu
    for gpu in dict.fromkeys(gpu for _, gpu in held):
        guests = {
            pid: memory
            for (pid, on), memory in held.items()
            if on == gpu and 0 < memory < min(NOTABLE, held[pid, own[pid]])
        }
        # A process for each GPU; one that spreads its model has its own way to use them.
        if len(guests) > 1 and len({own[pid] for pid in guests}) == len(guests):
            total = sum(guests.values()) / GIB
            yield Finding(
                severity=Severity.WARNING,
                confidence=Confidence.LIKELY,
                because=(
                    f"{len(guests)} processes hold {total:.1f} GiB of GPU {gpu}, and each holds "
                    "more of a GPU that is its own"
                ),
                where=Where(devices=(f"cuda:{gpu}",)),
                cost=Cost(value=round(total, 1), unit="GiB"),
                fixes=_FIXES,
            )


def in_a_live_run(live: LiveState, hosts: tuple[Gpus, ...]) -> Iterator[Finding]:
    for section in hosts:
        ranks = {rank.seen.pid: rank.rank for rank in live.ranks if rank.host == section.host}
        # Bytes by rank and by GPU.
        held: dict[int, dict[int, int]] = {}
        for gpu in section.answering:
            for process in gpu.processes or ():
                if process.pid in ranks and process.memory is not None:
                    held.setdefault(ranks[process.pid], {})[gpu.index] = process.memory
        for gpu in section.answering:
            # Ranks that hold little of this GPU, and more of another one.
            guests = {
                rank: each[gpu.index]
                for rank, each in sorted(held.items())
                if each.get(gpu.index, NOTABLE) < min(NOTABLE, max(each.values()))
            }
            if len(guests) < 2:  # a single rank may do so on purpose
                continue
            total = sum(guests.values()) / GIB
            yield Finding(
                severity=Severity.WARNING,
                confidence=Confidence.CERTAIN,
                because=(
                    f"{endings.ranks(guests)} hold {total:.1f} GiB of {gpu.title}, and each rank "
                    "holds more on another GPU"
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
                where=Where(hosts=(section.host,), ranks=tuple(guests), devices=(gpu.device,)),
                cost=Cost(value=round(total, 1), unit="GiB"),
                fixes=_FIXES,
            )


def in_the_source(script: Script) -> Iterator[Finding]:
    if not is_plain(script) or not script.of("torch.cuda.set_device", ".cuda", ".to"):
        return
    loads = script.of("torch.load")
    placed = {one.at.function for one in loads if _is_placed(one, script)}
    saves = [" ".join((one.at.text, *one.values.values())) for one in script.of("torch.save")]
    if any("cpu" in one for one in saves):
        return  # What the script itself writes returns to the CPU.
    for one in loads:
        if one.on_all_ranks and one.at.function not in placed and one.at in script.restored:
            yield Finding(
                severity=Severity.WARNING,
                confidence=Confidence.POSSIBLE,
                because=(
                    f"every rank runs {shown(one.at)}, which puts the tensors onto GPU 0, on all "
                    "ranks"
                    if one.origin("map_location", 1) not in ((), ("None",))
                    else f"every rank runs {shown(one.at)} without map_location: tensors that rank "
                    "0 saved from its GPU return to GPU 0, on all ranks; correct only if the file "
                    "holds tensors of the CPU"
                ),
                fixes=(
                    Fix.python(
                        summary="load the checkpoint into host memory first",
                        paste=with_keywords(one, map_location="'cpu'"),
                    ),
                ),
            )
            return


def without_a_current_device(script: Script) -> Iterator[Finding]:
    """Collectives without tensors use the current device, which is GPU 0."""
    joins = [
        one
        for one in script.of("torch.distributed.init_process_group")
        if "'nccl'" in one.origin("backend", 0)
    ]
    asks = [one for one in script.of(*ON_CURRENT) if "device_ids" not in one.keywords]
    chosen = script.of(*CHOOSES) or any("device_id" in one.keywords for one in joins)
    shown_one = any("CUDA_VISIBLE_DEVICES" in one.name for one in script.settings)
    own = [one for one in script.of(".cuda", ".to", "torch.device") if one.arguments]
    if not joins or not asks or not own or chosen or shown_one or not is_plain(script):
        return
    yield Finding(
        severity=Severity.NOTE,
        confidence=Confidence.POSSIBLE,
        because=f"{shown(asks[0].at)} uses the current GPU, which is GPU 0 on all ranks: no line "
        "sets it, and init_process_group gets no device_id",
        fixes=_FIXES[:1],
    )


_FIXES = (
    Fix.python(
        summary="set the device of each rank before anything else uses CUDA",
        paste=(
            "device = torch.device('cuda', int(os.environ['LOCAL_RANK']))\n"
            "torch.cuda.set_device(device)\n"
            "torch.distributed.init_process_group(device_id=device)"
        ),
        caution="plain 'cuda', .cuda() or barrier() before it uses GPU 0",
    ),
    Fix.python(
        summary="and load checkpoints onto the CPU first",
        paste="torch.load(path, map_location='cpu', mmap=True)",
    ),
)


def _is_placed(load: SourceCall, script: Script) -> bool:
    given = load.argument("map_location", 1)
    if load.origin("map_location", 1) == ("None",):
        given = None
    on_first = given is not None and "cuda:0" in given
    if given in ("'cuda'", "torch.device('cuda')"):
        # The current GPU, which is the first one until the rank chooses its own.
        chosen = [one.at for one in script.of("torch.cuda.set_device")]
        same = [one for one in chosen if one.function == load.at.function]
        on_first = bool(same) and all(one.line > load.at.line for one in same)
    return (given is not None and not on_first) or "**" in load.keywords
