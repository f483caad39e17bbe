"""What each strategy would need of a GPU, and which of them to take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import msgspec

from ddoctor.evidence.section import Part, Section

Strategy = Literal["one-gpu", "ddp", "fsdp-gradients", "fsdp", "fsdp-hybrid", "fsdp-offload"]
"""fsdp-gradients: gradients and optimizer states sharded, as FSDP's SHARD_GRAD_OP and ZeRO-2;
fsdp-hybrid: sharded within a host, repeated over hosts; fsdp-offload: what is sharded is kept, and
the optimizer's step computed, on the CPU."""

TITLES: Mapping[Strategy, str] = {
    "one-gpu": "one GPU",
    "ddp": "DDP",
    "fsdp-gradients": "FSDP, gradients and states sharded",
    "fsdp": "FSDP, all sharded",
    "fsdp-hybrid": "FSDP within hosts",
    "fsdp-offload": "FSDP, kept on the CPU",
}
"""As people call them."""

Fit = Literal["fits", "tight", "too-much", "host-too-small"]
"""host-too-small: for what would be kept there."""


Checkpointing = Literal["none", "every", "selective"]
"""every: each block keeps its inputs alone, and computes the rest again; selective: it keeps also
what products of matrices and attention give, which cost most to compute again."""
GPUS_PER_HOST = 8
Remedy = Literal["smaller batch", "checkpointing", "8 bits", "offload"]
"""Half the micro-batch; every block computed again; the optimizer's states; what is sharded, kept
on the CPU."""
Way = Literal["closed form", "fake tensors"]
"""How it was forecast: by arithmetic, or by a step on tensors that take no memory."""
Source = Literal["as measured", "by the measured step", "by roofline"]
"""Where the time of a step is from: such a step was measured, or one on other GPUs, or none."""


class MemoryParts(Part, frozen=True, kw_only=True):
    """What lies on one GPU at the peak of a step, in bytes."""

    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    logits: int = 0
    """What the model returns beside its loss, with whatever has as many numbers as that, and as
    many classes: its copy in float32, what the loss makes of it, its gradient."""
    temporaries: int = 0
    """Beyond the activations: copies in the dtype of computing, what the optimizer makes in its
    step."""
    communication: int = 0
    """Buckets of gradients; parameters and gradients of units that are gathered."""
    unused: int = 0
    """Reserved by torch's allocator, and of no use: what it rounds, and what lies between."""
    context: int = 0
    """CUDA's own, and the communication library's."""

    @property
    def total(self) -> int:
        """As nvidia-smi shows it."""
        return sum(size for _, size in self.named())

    @property
    def allocated(self) -> int:
        """By tensors: torch.cuda.max_memory_allocated()."""
        return self.used - self.context

    @property
    def reserved(self) -> int:
        """By torch's allocator: torch.cuda.max_memory_reserved()."""
        return self.total - self.context

    @property
    def used(self) -> int:
        """Without what the allocator has and does not use."""
        return self.total - self.unused

    def named(self) -> tuple[tuple[str, int], ...]:
        """Each part with its name, in the order of the table."""
        return tuple(msgspec.structs.asdict(self).items())


class StepTime(Part, frozen=True, kw_only=True):
    """One step of the optimizer, in seconds."""

    source: Source = "by roofline"
    compute: float
    """What each GPU does for itself."""
    exposed: float | None
    """Communication that no computing hides; None: measured, and not told from the computing."""
    loading: float = 0.0
    """Waiting for data, as far as it was measured."""
    share_of_peak: float | None = None
    """At which it computes by roofline."""

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.compute + (self.exposed or 0.0) + self.loading

    @property
    def efficiency(self) -> float | None:
        """The share that computes; None: it is not known."""
        return None if self.exposed is None else self.compute / self.seconds


class PlanRow(Part, frozen=True, kw_only=True):
    """One strategy on so many GPUs."""

    strategy: Strategy
    gpus: int
    parts: MemoryParts
    fit: Fit
    host: int = 0
    """Bytes of its host's memory that each rank has for what is kept there."""
    accumulation: int = 1
    """Micro-batches for one step of the optimizer."""
    moment: str = ""
    """When the peak comes, say ``backward pass, at lm_head``; empty: not known."""
    step: StepTime | None = None
    """None: not known, or somebody has measured one."""

    @property
    def title(self) -> str:
        """Say ``FSDP on 8 GPUs``."""
        return TITLES[self.strategy] + (f" on {self.gpus} GPUs" if self.gpus > 1 else "")


class Schedule(Part, frozen=True, kw_only=True):
    """How long it all takes."""

    samples: int
    epochs: float
    global_batch: int
    steps_per_epoch: int
    steps: int
    seconds: float | None = None
    """None: nobody knows how long a step takes."""
    source: Source | None = None
    """Where that is from; None: somebody said how long."""


class Plan(Section, frozen=True, kw_only=True):
    """Strategies × numbers of GPUs, and the one to take."""

    of_planning: ClassVar[bool] = True

    model: str
    """As people call it, say ``4.4B parameters, 82M of them trained``."""
    precision: str
    optimizer: str
    device: str
    device_memory: int
    """Bytes that a process can have of it."""
    checkpointing: Checkpointing = "none"
    way: Way = "closed form"
    coarse: str = ""
    """Why no step of the model could be made; empty: one was, or none was asked for."""
    host_memory: int | None = None
    """Bytes of each host; None: nobody told."""
    doubt: float
    """The truth may be so many times the forecast."""
    activations_known: bool
    rows: tuple[PlanRow, ...]
    chosen: int | None = None
    """Which of the rows; None: none fits."""
    reason: str = ""
    blocks: tuple[str, ...] = ()
    """The classes of the model's blocks, each of which FSDP would wrap; empty: not known."""
    sequence: int | None = None
    """Tokens of a sample; None: not known, or it has none."""
    micro_batch: int | None = None
    largest_micro_batch: int | None = None
    """Of the chosen row, by the same forecast; None: not known."""
    gains: Mapping[Remedy, int] = {}
    """Bytes of a GPU that each remedy saves, where none of the rows fits well: of the chosen one,
    or of the smallest. Empty: not forecast."""
    without_checkpointing: MemoryParts | None = None
    """What the chosen row would need if no block were computed again; None: none is, or it is not
    known."""
    schedule: Schedule | None = None
    measured: str = ""
    """The step that was measured, in words; empty: none was."""
    links: str = ""
    """How fast the network between hosts is, and which links are not known, in words; empty: no
    row needs it, or no step is told."""
    with_tf32: StepTime | None = None
    """The step of the chosen row if matrix products of floats took TF32; None: it has no floats, or
    it is not known."""
    checkpoint: int
    """Bytes of a checkpoint of all parameters as they are trained."""
    checkpoint_bf16: int | None = None
    """The same in bfloat16, if that is less."""

    def samples_per_second(self, row: PlanRow) -> float | None:
        """On all GPUs of a row by its forecast; None: it has none."""
        if row.step is None or self.micro_batch is None:
            return None
        return self.micro_batch * row.gpus * row.accumulation / row.step.seconds
