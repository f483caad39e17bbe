"""How the model is wrapped for parallel training on each rank, and what the wrapper costs."""

from __future__ import annotations

from typing import ClassVar, Literal

from ddoctor.evidence.section import Part, Section


class Wrapper(Part, frozen=True, kw_only=True):
    """One parallel wrapper (or bare model) on one rank."""

    rank: int
    kind: Literal["none", "ddp", "fsdp1", "fsdp2"]
    name: str
    """The class of the wrapped model."""
    parameters: int
    """Numbers in all parameters (of FSDP: before sharding)."""
    parameter_bytes: int
    trainable_bytes: int
    buffers: int = 0
    buffer_bytes: int = 0
    batch_norms: int = 0
    """Modules whose buffers are statistics of batches."""
    sync_batch_norms: int = 0
    units: int = 0
    """FSDP: how many groups of parameters are gathered on their own."""
    sharding: Literal["", "all", "gradients", "within-hosts"] = ""
    """FSDP: parameters, gradients and optimizer states; all but the parameters between forward and
    backward pass; within each of several groups of ranks; empty: another way, or not seen."""
    block: str = ""
    """The class whose modules, none of them inside of another, hold most parameters together."""
    blocks: int | None = None
    """How many of them; less than two: the model repeats nothing; None: not looked for."""
    checksum: tuple[float, ...] = ()
    """Of the parameters in order, at the end of the run, folded into a few sums; empty for FSDP."""
    checksum_scale: tuple[float, ...] = ()
    """The sums of their magnitudes, by which a difference is judged."""

    find_unused_parameters: bool | None = None
    """DDP's own settings; None: no DDP."""
    static_graph: bool | None = None
    broadcast_buffers: bool | None = None
    gradient_as_bucket_view: bool | None = None
    bucket_cap_mb: float | None = None
    bucket_bytes: tuple[int, ...] = ()
    comm_hook: str = ""

    inspected_steps: int = 0
    """Steps in which it was seen which parameters got a gradient on this rank itself."""
    unused: tuple[str, ...] = ()
    """Parameters that got none in any of these steps, by name."""
    sometimes_unused: tuple[str, ...] = ()
    """Parameters that got none in some of these steps."""
    find_unused_seconds: tuple[float, ...] = ()
    """Of each judged step: the walk through the graph that find_unused_parameters asks for."""
    buffer_broadcast_seconds: tuple[float, ...] = ()
    """Of each judged step."""


class Wrapping(Section, frozen=True, kw_only=True):
    """The models of all ranks."""

    of_training: ClassVar[bool] = True

    wrappers: tuple[Wrapper, ...]


class Calls(Part, frozen=True, kw_only=True):
    """The collectives that one line of Python calls, on one rank, in the judged steps."""

    rank: int
    operation: str
    """As torch.distributed names it, say all_reduce."""
    place: str
    """file:line of the user's code, or of the library that calls it."""
    of_user: bool
    """Whether that is the user's own code."""
    calls: int
    bytes: int
    """Of all of them together."""
    seconds: float
    """That the main thread was in them, or waited for them."""


class CollectiveCalls(Section, frozen=True, kw_only=True):
    """All collectives called from Python; those of DDP's own reducer are not among them."""

    of_training: ClassVar[bool] = True

    steps: int
    """The judged steps that they are counted over."""
    calls: tuple[Calls, ...]
