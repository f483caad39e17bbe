"""Ranks that ran out of GPU memory: the figures of the error, and the kind of the case.

The text is that of torch's CUDA allocator (c10/cuda/CUDACachingAllocator.cpp), up to torch 1.13 and
from 2.0 on, which ROCm ("HIP out of memory") and XPU (c10/xpu/XPUCachingAllocator.cpp) share, or of
the backend cudaMallocAsync (c10/cuda/CUDAMallocAsyncAllocator.cpp).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from ddoctor.analysis import endings
from ddoctor.analysis.describe import GIB
from ddoctor.analysis.memory_fixes import MemoryNeed, expandable, remedies
from ddoctor.evidence.plan import MemoryParts
from ddoctor.evidence.software import Environment
from ddoctor.evidence.training import RankEnding, TrainingRun
from ddoctor.evidence.wrapping import Wrapping
from ddoctor.models import Confidence, Cost, Finding, Fix, Observation, Severity, Where

UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
SIZE = r"(\d{1,15}(?:\.\d{1,15})? (?:bytes|[KMG]iB))"
# Until 2.1 it was spelt capacty.
NOW = re.compile(
    rf"Tried to allocate {SIZE}\. GPU (\d{{1,9}}) has a total capaci?ty of {SIZE} of which "
    rf"{SIZE} is free"
)
HELD = re.compile(
    rf"Of the allocated memory {SIZE} is allocated by PyTorch, .*?and {SIZE} is reserved", re.DOTALL
)
ALLOWED = re.compile(rf"{SIZE} allowed")
ITSELF = re.compile(rf"this process has {SIZE} memory in use")
PROCESS = re.compile(rf"Process (\d{{1,9}}) has {SIZE} memory in use")
BEFORE = re.compile(
    rf"Tried to allocate {SIZE} \(GPU (\d{{1,9}}); {SIZE} total capacity; "
    rf"{SIZE} already allocated; {SIZE} free; (?:{SIZE} allowed; )?"
    rf"{SIZE} reserved in total by PyTorch\)"
)
ASYNCHRONOUS = re.compile(
    r"Allocation on device (\d{1,9}) would exceed allowed memory.{0,40}?"
    rf"\sCurrently allocated\s{{0,9}}: {SIZE}\s+Requested\s{{0,20}}: {SIZE}"
    rf"\s+Device limit\s{{0,20}}: {SIZE}\s+Free \(according to CUDA\): {SIZE}",
    re.DOTALL,
)

# A process with only a context and torch's kernels takes about 1 GiB
# (https://github.com/pytorch/pytorch/issues/12873); twice that is real work.
CONTEXT, NOTABLE = GIB, 2 * GIB
# The contexts of equal processes differ by less.
ALIKE = 1.1
# The allocator frees whole unused segments before it fails, so the rest of the unused memory lies
# between used blocks. A few per cent always do.
IN_PIECES = 0.1
# The optimizer creates its states in the first step; the second step is like all later ones.
FIRST_STEPS = 2

# How a sharded model is gathered: torch/distributed/fsdp/_state_dict_utils.py,
# torch/distributed/checkpoint/state_dict.py, torch/distributed/tensor/_api.py.
GATHERS = re.compile(r"state_dict|full_tensor")
LOADS = "torch/serialization.py"
# Copies of each trained parameter that an optimizer keeps, by its class in torch.optim; Adafactor
# keeps a row and a column of each matrix.
STATES = {"Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2, "Adamax": 2, "Adadelta": 2}
STATES |= {"SGD": 1, "Adagrad": 1, "RMSprop": 1, "Adafactor": 0}
# Unused memory helps if it is at least this share of the missing memory.
SPARE = 0.25
# Function names of Lightning, transformers and most scripts.
EVALUATES = re.compile(
    r"_?(eval(uate|uation)?(_loop|_step|_model|_epoch)?|valid(ate|ation)?(_loop|_step|_epoch)?"
    r"|prediction_(loop|step)|torch_pad_and_concatenate|nested_concat)"
)

Kind = Literal[
    "ranks",
    "contexts",
    "others",
    "loading",
    "state-dict",
    "evaluation",
    "pieces",
    "narrow",
    "too-much",
]
"""The reason that memory ran out.

- ranks, others: other ranks of this run, or processes outside this run, hold the memory.
- contexts: several processes hold as little of GPU 0 as one that works on another GPU.
- loading: a rank loads a checkpoint onto the GPU of another rank.
- state-dict: a rank gathers a sharded model.
- evaluation: it failed outside a training step.
- pieces: enough memory was unused, but not in one block.
- narrow, too-much: it failed after many good steps, or in the first ones.
"""


@dataclass(frozen=True, kw_only=True)
class OutOfMemory:
    """The figures of the allocator's error, in bytes."""

    device: int
    accelerator: str = "cuda"
    """The name of its kind in torch; ``cuda`` with ROCm as well."""
    wanted: int
    total: int
    """Of the GPU; less if the process may not use all of it."""
    free: int
    allocated: int
    unused: int
    """Reserved by torch and not allocated."""
    others: Mapping[int, int]
    """Memory of other processes by process id, as far as the driver names them."""
    unnamed: int
    """In use by processes that the error does not name."""

    @property
    def missing(self) -> int:
        """The least additional memory that the request needs."""
        return max(0, self.wanted - self.free)

    def expanding(self, environment: Environment | None) -> Fix | None:
        """The fix that turns on expandable segments; None: they are on, or of no use."""
        # Of XPU, few versions have them.
        return expandable(environment, self.unused) if self.accelerator == "cuda" else None


@dataclass(frozen=True, kw_only=True)
class Case:
    """One rank that ran out of memory."""

    rank: RankEnding
    memory: OutOfMemory
    kind: Kind


def read(message: str) -> OutOfMemory | None:
    """Parse the text of an error; None: it is another error."""
    # A log may have broken its lines.
    message = " ".join(message.split())
    if found := ASYNCHRONOUS.search(message):
        return _asynchronous(*found.groups())
    if found := BEFORE.search(message):
        wanted, index, total, allocated, free, allowed, reserved = found.groups()
        unused = _bytes(reserved) - _bytes(allocated)
        own, others = None, {}
    elif (found := NOW.search(message)) and (held := HELD.search(message)):
        wanted, index, total, free = found.groups()
        allocated, unused = held[1], _bytes(held[2])
        limit, itself = ALLOWED.search(message), ITSELF.search(message)
        allowed, own = limit[1] if limit else None, _bytes(itself[1]) if itself else None
        if own == 0:
            own = None  # Where the driver does not count by process: WSL, virtual machines.
        others = {int(pid): _bytes(size) for pid, size in PROCESS.findall(message)}
    else:
        return None
    used = _bytes(allocated) + unused
    if own is None:
        own = _itself(others, used)
    limit_bytes = _bytes(allowed) if allowed else _bytes(total)
    return OutOfMemory(
        device=int(index),
        accelerator="xpu" if "XPU out of memory" in message else "cuda",
        wanted=_bytes(wanted),
        total=min(limit_bytes, _bytes(total)),
        free=min(_bytes(free), max(0, limit_bytes - used)),
        allocated=_bytes(allocated),
        unused=unused,
        others=others,
        unnamed=max(0, _bytes(total) - _bytes(free) - own - sum(others.values())),
    )


def _asynchronous(index: str, allocated: str, wanted: str, total: str, free: str) -> OutOfMemory:
    """The pool of cudaMallocAsync belongs to the driver, which does not tell its unused part."""
    return OutOfMemory(
        device=int(index),
        wanted=_bytes(wanted),
        total=_bytes(total),
        free=_bytes(free),
        allocated=_bytes(allocated),
        unused=0,
        others={},
        unnamed=0,
    )


def _itself(others: dict[int, int], used: int) -> int:
    """The memory of this process, if the driver does not name it.

    In a container it is one of the others, under a process id that the process does not know.
    """
    alike = [pid for pid, size in others.items() if used <= size <= used + NOTABLE]
    if alike:
        return others.pop(min(alike, key=lambda pid: others[pid]))
    return used + CONTEXT


def _bytes(text: str) -> int:
    number, unit = text.split()
    return round(float(number) * UNITS[unit])


def cases(run: TrainingRun) -> Iterator[Case]:
    """The ranks that ran out of GPU memory, the earliest first."""
    for one in run.failures:
        memory = read(one.message)
        if memory is not None:
            yield Case(rank=one, memory=memory, kind=_kind(run, one, memory))


def of_kind(
    run: TrainingRun, *kinds: Kind, environment: Environment | None = None
) -> Sequence[Case]:
    """The cases of the same kind as the first one, if that is one of these kinds.

    None if the first case is on another host than the environment.
    """
    found = list(cases(run))
    if environment is not None and found and environment.host not in ("", found[0].rank.host):
        return []
    return [one for one in found if one.kind == found[0].kind and one.kind in kinds]


def _kind(run: TrainingRun, one: RankEnding, memory: OutOfMemory) -> Kind:
    neighbours = [other for other in run.ranks if other.host == one.host and other is not one]
    of_ranks = sum(memory.others.get(other.pid, 0) for other in neighbours)
    if of_ranks and of_ranks >= memory.missing:
        return "ranks"
    guests = [*memory.others.values()]
    if (
        memory.device == 0
        and len(guests) > 1
        and sum(guests) >= memory.missing
        and max(guests) <= min(NOTABLE, ALIKE * min(guests))
    ):
        # As much as a process holds that only touches a GPU, for each of several alike.
        return "contexts"
    foreign = sum(memory.others.values()) + memory.unnamed
    if foreign >= max(NOTABLE, memory.missing):
        # A log may show only one of them.
        first = bool(neighbours) and all(other.rank > one.rank for other in neighbours)
        reads = any(frame.file.endswith(LOADS) for frame in one.stack)
        return "loading" if reads and not first and memory.device == 0 else "others"
    for frame in one.stack:
        if "torch/distributed/" in frame.file and GATHERS.search(frame.function):
            return "state-dict"
        if EVALUATES.fullmatch(frame.bare):
            return "evaluation"
    if memory.unused >= max(memory.missing, IN_PIECES * (memory.allocated + memory.unused)):
        return "pieces"
    return "narrow" if one.steps > FIRST_STEPS else "too-much"


def parts(case: Case, run: TrainingRun, wrapping: Wrapping | None) -> MemoryParts | None:
    """The contents of GPU memory, computed from model and optimizer; None: these are not known."""
    models = wrapping.wrappers if wrapping is not None else ()
    model = next((one for one in models if one.rank == case.rank.rank), None)
    states = STATES.get(run.optimizers[0]) if run.optimizers else 0
    if model is None or states is None:
        return None
    shards = len(run.ranks) if model.kind.startswith("fsdp") else 1
    has_states = case.rank.steps > 0
    # Most loops free the gradients before the next forward pass.
    has_gradients = case.rank.doing != "forward"
    fixed = MemoryParts(
        parameters=model.parameter_bytes // shards,
        gradients=has_gradients * model.trainable_bytes // shards,
        optimizer=has_states * states * model.trainable_bytes // shards,
    )
    rest = case.memory.allocated - fixed.total
    return None if rest < 0 else msgspec.structs.replace(fixed, activations=rest)


def finding(
    found: Sequence[Case],
    run: TrainingRun,
    more: str,
    fixes: Iterable[Fix],
    *,
    confidence: Confidence = Confidence.CERTAIN,
    cost: int | None = None,
) -> Finding:
    """The finding about the first case; ``more`` follows its sentence, ``cost`` is in bytes."""
    case = found[0]
    memory, place = case.memory, endings.place(case.rank.place)
    figures = {
        "requested": memory.wanted,
        "free": memory.free,
        "allocated by torch": memory.allocated,
        "reserved, not allocated": memory.unused,
        "used by other processes": sum(memory.others.values()),
        "used by unnamed processes": memory.unnamed,
    }
    return Finding(
        severity=Severity.ERROR,
        confidence=confidence,
        because=(
            f"{endings.who(case.rank)} ran out of memory on GPU {memory.device} "
            f"{endings.when(run, case.rank)}{f', at {place}' if place else ''}: it requested "
            f"{memory.wanted / GIB:.2f} GiB, and {memory.free / GIB:.2f} of "
            f"{memory.total / GIB:.1f} GiB were free{more}"
        ),
        evidence=tuple(
            Observation(
                name=name, value=round(size / GIB, 2), unit="GiB", source="torch's allocator"
            )
            for name, size in figures.items()
        ),
        where=Where(
            hosts=tuple(sorted({one.rank.host for one in found})),
            ranks=tuple(one.rank.rank for one in found),
            devices=tuple(
                sorted({f"{one.memory.accelerator}:{one.memory.device}" for one in found})
            ),
        ),
        cost=Cost(value=round(cost / GIB, 2), unit="GiB") if cost is not None else None,
        fixes=tuple(fixes),
    )


def needs_too_much(
    found: Sequence[Case],
    run: TrainingRun,
    wrapping: Wrapping | None,
    environment: Environment | None,
    *,
    confidence: Confidence = Confidence.CERTAIN,
    more: str = "",
) -> Finding:
    """The finding that a step needs too much memory; ``more`` follows as a last clause."""
    case = found[0]
    memory, known = case.memory, parts(case, run, wrapping)
    optimizer = run.optimizers[0] if run.optimizers else ""
    held = f"; torch held {memory.allocated / GIB:.1f} GiB"
    if known is not None:
        named = {
            "parameters": known.parameters,
            "gradients": known.gradients,
            f"states of {optimizer}": known.optimizer,
            "activations and temporary tensors": known.activations,
        }
        each = (f"{size / GIB:.1f} {name}" for name, size in named.items() if size)
        held += f", about {', '.join(each)}"
    models = wrapping.wrappers if wrapping is not None else ()
    sharded = any(one.kind.startswith("fsdp") for one in models)
    world = max(run.world, len(run.ranks))
    need = MemoryNeed(
        parts=known,
        missing=memory.missing,
        optimizer=optimizer,
        checkpointed=any("utils/checkpoint" in frame.file for frame in case.rank.stack),
        sharded=world if sharded else 1,
        # A log does not show whether the model is sharded.
        shards=0 if sharded or not models else max(2, world),
    )
    grow = memory.expanding(environment)
    fixes = [grow] if grow is not None and memory.unused >= SPARE * memory.missing else []
    return finding(
        found,
        run,
        held + more,
        (*fixes, *remedies(need)),
        confidence=confidence,
        cost=memory.missing,
    )
