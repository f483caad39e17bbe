"""The memory and time that each training strategy needs per GPU, and the recommended one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from ddoctor.evidence.launch import Setting
from ddoctor.evidence.section import Part, Section

Strategy = Literal[
    "one-gpu",
    "one-copy",
    "ddp",
    "fsdp-gradients",
    "fsdp",
    "fsdp-hybrid",
    "fsdp-offload",
    "zero-1",
    "zero-2",
    "zero-3",
    "zero-2-offload",
    "zero-3-offload",
    "zero-3-cpu",
    "zero-3-nvme",
]
"""one-copy: model parallelism without data parallelism. fsdp-gradients: gradients and optimizer
states sharded, as FSDP's SHARD_GRAD_OP and ZeRO-2. fsdp-hybrid: sharded within a host, replicated
across hosts. fsdp-offload: the shards and the optimizer's step are on the CPU. zero-1 to zero-3:
DeepSpeed's stages. zero-2-offload and zero-3-offload: the optimizer is on the CPU; zero-3-cpu: the
parameters, too; zero-3-nvme: both are on NVMe, and the step is on the CPU."""

TITLES: Mapping[Strategy, str] = {
    "one-gpu": "one GPU",
    "one-copy": "one copy",
    "ddp": "DDP",
    "fsdp-gradients": "FSDP, gradients and states sharded",
    "fsdp": "FSDP, all sharded",
    "fsdp-hybrid": "FSDP within hosts",
    "fsdp-offload": "FSDP, kept on the CPU",
    "zero-1": "ZeRO-1",
    "zero-2": "ZeRO-2",
    "zero-3": "ZeRO-3",
    "zero-2-offload": "ZeRO-2, optimizer on the CPU",
    "zero-3-offload": "ZeRO-3, optimizer on the CPU",
    "zero-3-cpu": "ZeRO-3, kept on the CPU",
    "zero-3-nvme": "ZeRO-3, kept on NVMe",
}
"""Names of the strategies in reports."""
OFFLOADED = frozenset(
    ("fsdp-offload", "zero-2-offload", "zero-3-offload", "zero-3-cpu", "zero-3-nvme")
)
"""Strategies with the optimizer's step on the CPU."""

Fit = Literal["fits", "tight", "too-much", "host-too-small"]
"""host-too-small: the host's memory cannot hold the offloaded part."""


CHECKPOINTING = r"none|every|selective(?::op|:[1-9]\d{0,3})?"
Checkpointing = Annotated[str, msgspec.Meta(pattern=f"^(?:{CHECKPOINTING})$")]
"""every: each block keeps its inputs and recomputes the rest. selective: it also keeps the results
of matrix products and attention, which cost most to recompute. selective:op: of the products it
keeps every second one, as torchtitan's policy of that name. selective:N: each Nth block recomputes,
and the others keep all."""
METHODS = r"sft|dpo|grpo(?::beta=0)?"
Method = Annotated[str, msgspec.Meta(pattern=f"^(?:{METHODS})$")]
"""dpo: two rows for each sample, and a frozen reference model. grpo: a sample is one completion; it
has a reference as well, unless the weight of the divergence from it (beta) is 0."""
GPUS_PER_HOST = 8
Remedy = Literal["smaller evaluation", "smaller batch", "checkpointing", "8 bits", "offload"]
"""Half the batch of evaluation; half the micro-batch; checkpointing of every block; 8-bit optimizer
states; shards on the CPU."""
Way = Literal["closed form", "fake tensors"]
"""Method of the forecast: arithmetic, or a step on fake tensors, which take no memory."""
Source = Literal["as measured", "by the measured step", "by roofline"]
"""Origin of a step's time: measured as such, derived from a measured step, or by roofline."""


class MemoryParts(Part, frozen=True, kw_only=True):
    """Memory of one GPU at the peak of a step, in bytes."""

    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    reference: int = 0
    """Bytes of the frozen reference model of DPO and GRPO."""
    activations: int = 0
    logits: int = 0
    """Bytes of the output besides the loss: its copy in float32, intermediates, the gradient."""
    temporaries: int = 0
    """Bytes of copies in the compute dtype and temporaries of the optimizer's step."""
    communication: int = 0
    """Bytes of gradient buckets, and of gathered parameters and gradients of FSDP units."""
    generation: int = 0
    """Bytes of keys and values while completions are generated, or of vLLM on the same GPU."""
    unused: int = 0
    """Bytes that torch's allocator reserves but cannot use: rounding and fragmentation."""
    context: int = 0
    """Bytes of the CUDA context and the communication library."""

    @property
    def model(self) -> int:
        """Bytes of parameters, gradients, optimizer states and the reference model."""
        return self.parameters + self.gradients + self.optimizer + self.reference

    @property
    def total(self) -> int:
        """All bytes, as nvidia-smi shows them."""
        return sum(size for _, size in self.named())

    @property
    def used(self) -> int:
        """All bytes but those that the allocator reserves without use."""
        return self.total - self.unused

    def named(self) -> tuple[tuple[str, int], ...]:
        """Each part with its name, in the order of the table."""
        return tuple(msgspec.structs.asdict(self).items())


class ModelParallel(Part, frozen=True, kw_only=True):
    """The numbers of GPUs that share one copy of the model, by what they divide."""

    tensor: int = 1
    """Divides each matrix and, as sequence parallelism, what is between them (arXiv 2205.05198)."""
    pipeline: int = 1
    """Divides the blocks into stages."""
    context: int = 1
    """Divides each sequence."""
    expert: int = 1
    """Divides the experts between data-parallel ranks."""
    expert_load: float = 1.0
    """Tokens that the experts of the busiest rank get, as many times as with even routing."""

    @property
    def gpus(self) -> int:
        """GPUs of one copy; experts are divided between copies."""
        return self.tensor * self.pipeline * self.context

    @property
    def words(self) -> str:
        """The sizes above 1, as of one copy; empty: there is none."""
        return self.of(1).removeprefix("1 × ")

    def of(self, copies: int) -> str:
        """The sizes above 1, say ``4 × tensor 8 × pipeline 2, experts over 4``; empty: none."""
        sizes = {"tensor": self.tensor, "pipeline": self.pipeline, "context": self.context}
        words = [f"{name} {size}" for name, size in sizes.items() if size > 1]
        divided = [" × ".join([str(copies), *words])] if words else []
        load = f" with {self.expert_load:g} times the load" if self.expert_load > 1 else ""
        experts = [f"experts over {self.expert}{load}"] if self.expert > 1 else []
        return ", ".join(divided + experts)


NO_PARALLELISM = ModelParallel()


class StepTime(Part, frozen=True, kw_only=True):
    """One optimizer step, in seconds."""

    source: Source = "by roofline"
    compute: float
    """Seconds of computation on each GPU."""
    exposed: float | None
    """Seconds of communication that no computation hides; None: measured together with it."""
    loading: float = 0.0
    """Seconds of waiting for data, as far as measured."""
    bubble: float = 0.0
    """Seconds without work while a pipeline fills and drains."""
    share_of_peak: float | None = None
    """Share of the GPU's peak FLOP/s in the roofline forecast, 0 to 1; None: measured."""

    @property
    def seconds(self) -> float:
        """Seconds of the whole step."""
        return self.compute + (self.exposed or 0.0) + self.loading + self.bubble

    @property
    def efficiency(self) -> float | None:
        """Share of the step that computes, 0 to 1; None: not known."""
        return self.compute / self.seconds if self.exposed is not None and self.seconds else None


class PlanRow(Part, frozen=True, kw_only=True):
    """One strategy on one number of GPUs."""

    strategy: Strategy
    gpus: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    parts: MemoryParts
    fit: Fit
    host: int = 0
    """Bytes of host memory that each rank needs for offloaded shards."""
    nvme: int = 0
    """Bytes on NVMe disks that each rank needs for offloaded shards."""
    accumulation: int = 1
    """Micro-batches per optimizer step."""
    moment: str = ""
    """The moment of the peak, say ``backward pass, at lm_head``; empty: not known."""
    step: StepTime | None = None
    """Time of a step; None: not known, or the user stated one."""
    parallel: ModelParallel = NO_PARALLELISM

    @property
    def copies(self) -> int:
        """Data-parallel copies of the model, each with its own samples."""
        return self.gpus // self.parallel.gpus

    @property
    def title(self) -> str:
        """Name of the row, say ``FSDP on 64 GPUs: 4 × tensor 8 × pipeline 2``."""
        words = self.parallel.of(self.copies)
        gpus = f" on {self.gpus} GPUs" if self.gpus > 1 else ""
        return TITLES[self.strategy] + gpus + (f": {words}" if words else "")

    @property
    def offloads(self) -> bool:
        """Whether the optimizer's step is on the CPU."""
        return self.strategy in OFFLOADED


class ZeroBuffers(Part, frozen=True, kw_only=True):
    """Sizes of DeepSpeed's buffers, in elements."""

    reduce_bucket: int
    """Gradients reduced at a time."""
    overlap: bool
    """Whether gradients are reduced during the backward pass, which takes a second bucket."""
    prefetch_bucket: int
    """Parameters gathered ahead at each module, at stage 3."""
    max_live: int
    """Gathered parameters from which on none is gathered ahead."""
    persistence: int
    """Parameter tensors of this size or smaller stay whole at stage 3."""
    sub_group: int
    """Parameters of a rank that the optimizer updates at a time, at stage 3."""
    nvme_buffer: int
    """One buffer between NVMe and the GPU: the largest shard of a parameter must fit."""


class Candidate(Part, frozen=True, kw_only=True):
    """A configuration that a search for the fastest one found."""

    strategy: Strategy
    gpus: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    micro_batch: int
    """Samples per GPU and micro-batch."""
    accumulation: int
    """Micro-batches per optimizer step."""
    checkpointing: Checkpointing
    memory: int
    """Bytes of one GPU at the peak of a step, as nvidia-smi shows them."""
    estimated: bool = False
    """Whether the memory follows from steps with fewer samples."""
    step: StepTime

    @property
    def global_batch(self) -> int:
        """Samples per optimizer step on all GPUs."""
        return self.micro_batch * self.gpus * self.accumulation

    @property
    def samples_per_second(self) -> float:
        """Samples per second on all GPUs."""
        return self.global_batch / self.step.seconds if self.step.seconds else 0.0


class Schedule(Part, frozen=True, kw_only=True):
    """Duration of the whole training."""

    samples: int
    epochs: float
    global_batch: int
    steps_per_epoch: int
    steps: int
    seconds: float | None = None
    """Seconds of the training; None: the time of a step is not known."""
    source: Source | None = None
    """Origin of that time; None: the user stated the time of a step."""


class HostPeaks(Part, frozen=True, kw_only=True):
    """The host memory of loading the weights and of saving them, in bytes."""

    ranks: Annotated[int, msgspec.Meta(ge=1, le=GPUS_PER_HOST)]
    """Ranks of a host."""
    loading: int
    """Bytes of the copy of the weights that each rank makes, unless rank 0 loads alone."""
    mapped: bool = False
    """Whether weights keep the usual dtype of files, so that ranks share the mapped file."""
    saving: int = 0
    """Bytes of a full state dict on rank 0; 0: the GPUs have the whole model."""


class SampleLengths(Part, frozen=True, kw_only=True):
    """The lengths of a dataset's samples, in tokens."""

    samples: Annotated[int, msgspec.Meta(ge=1)]
    mean: float
    longest: int
    cut: int = 0
    """Number of samples that are longer, and are cut."""
    padded: float
    """Mean length of a batch that is padded to its longest sample."""
    packed: bool = False
    """Whether samples fill whole rows, so that nothing is padded."""

    @property
    def padding(self) -> float:
        """Share of the tokens of padded batches that are padding, 0 to 1."""
        return 1 - self.mean / self.padded if self.padded else 0.0


class Plan(Section, frozen=True, kw_only=True):
    """Strategies × numbers of GPUs, and the recommended row."""

    commands = ("plan",)

    model: str
    """The model in words, say ``4.4B parameters, 82M of them trained``."""
    precision: str
    optimizer: str
    device: str
    device_memory: int
    """Bytes of a device that a process can use."""
    checkpointing: Checkpointing = "none"
    method: Method = "sft"
    cache: int = 0
    """Bytes of keys and values of one sample while it is generated; 0: no model generates here."""
    way: Way = "closed form"
    coarse: str = ""
    """Why no step of the model could be traced; empty: one was, or none was requested."""
    host_memory: int | None = None
    """Bytes of each host; None: not stated."""
    doubt: float
    """Factor by which the real memory may exceed the forecast."""
    activations_known: bool
    rows: tuple[PlanRow, ...]
    chosen: int | None = None
    """Index of the recommended row; None: no row fits."""
    reason: str = ""
    blocks: tuple[str, ...] = ()
    """Classes of the model's blocks, each of which FSDP would wrap; empty: not known."""
    sequence: int | None = None
    """Tokens per sample; None: not known, or the samples have none."""
    lengths: SampleLengths | None = None
    """Lengths of the samples; None: not stated."""
    micro_batch: int | None = None
    largest_micro_batch: int | None = None
    """Largest micro-batch of the recommended row; None: not known."""
    eval_batch: int | None = None
    """Samples per GPU and batch of evaluation; None: the plan has no evaluation."""
    gains: Mapping[Remedy, int] = {}
    """Bytes per GPU that each remedy saves, for the recommended or smallest row. Empty: unknown."""
    without_checkpointing: MemoryParts | None = None
    """Memory of the recommended row without checkpointing; None: it has none, or not known."""
    expandable: bool = False
    """Whether segments of torch's allocator are expandable, as the environment says."""
    with_expandable: MemoryParts | None = None
    """Memory of the recommended row with expandable segments, if it is tight; None: they are on, or
    not known."""
    without_compile: PlanRow | None = None
    """The recommended row, or that of least memory if none fits, without torch.compile; None: the
    plan does not compile."""
    schedule: Schedule | None = None
    candidates: tuple[Candidate, ...] = ()
    """What a search found for each number of GPUs, fastest first: no other one is as fast with as
    little memory. Empty: no search."""
    global_batch: int | None = None
    """Samples per optimizer step that the search compares at; None: each at its own."""
    measured: str = ""
    """The measured step, in words; empty: none."""
    links: str = ""
    """Bandwidth between hosts, and unknown links, in words; empty: no row needs it."""
    with_tf32: StepTime | None = None
    """Step of the recommended row with TF32 products; None: no float32 products, or not known."""
    with_float8: StepTime | None = None
    """Step of the recommended row with linear layers in float8; None: no gain, or not known."""
    zero: ZeroBuffers | None = None
    """The buffers of DeepSpeed; None: the plan is for FSDP."""
    taken: tuple[Setting, ...] = ()
    """The options that configuration files of the training gave."""
    beyond: tuple[Setting, ...] = ()
    """What these files ask for and the plan does not know."""
    checkpoint: int
    """Bytes of a checkpoint of all parameters in their training dtype."""
    checkpoint_bf16: int | None = None
    """The same in bfloat16, if smaller; in bytes."""

    host_peaks: HostPeaks | None = None
    """Host memory of loading and saving; None: not known, as for weights in 4 bits."""

    def __post_init__(self) -> None:
        if self.chosen is not None and not 0 <= self.chosen < len(self.rows):
            raise ValueError(f"there is no row {self.chosen} to recommend")

    @property
    def recommended(self) -> PlanRow | None:
        """The recommended row; None: no row fits."""
        return None if self.chosen is None else self.rows[self.chosen]

    @property
    def advised(self) -> Candidate | None:
        """The fastest candidate; None: no search, or none fits."""
        return max(self.candidates, key=lambda one: one.samples_per_second, default=None)

    def samples_per_second(self, row: PlanRow) -> float | None:
        """Samples per second on all GPUs of a row; None: its step has no time."""
        if row.step is None or self.micro_batch is None or not row.step.seconds:
            return None
        return self.micro_batch * row.copies * row.accumulation / row.step.seconds
