"""How each rank wraps the model for parallel training, and what the wrapper costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from ddoctor.evidence.section import Part, RunSection


class BufferSum(Part, frozen=True, kw_only=True):
    """What a buffer of a model holds, at the end of the run."""

    signed = frozenset({"sum"})

    name: str
    elements: int
    sum: float
    magnitude: float
    """Sum of the magnitudes, the scale of differences."""


class ParameterSum(Part, frozen=True, kw_only=True):
    """What a trained parameter holds before the first step, and at the end of the run."""

    signed = frozenset({"first", "last"})

    name: str
    first: float
    last: float
    magnitude: float
    """Sum of the magnitudes at the end, the scale of differences."""


class Wrapper(Part, frozen=True, kw_only=True):
    """One parallel wrapper (or bare model) on one rank."""

    signed = frozenset({"checksum"})

    rank: int
    kind: Literal["none", "ddp", "fsdp1", "fsdp2"]
    name: str
    """Class of the wrapped model."""
    bypassed: bool = False
    """DDP: whether the script calls the model inside of it, and never DDP."""
    parameters: int
    """Numbers in all parameters (FSDP: before sharding)."""
    parameter_bytes: int
    """Bytes of all parameters (FSDP: before sharding)."""
    trainable_bytes: int
    """Bytes of the parameters that are trained."""
    buffers: int = 0
    """Number of buffers."""
    buffer_bytes: int = 0
    """Bytes of all buffers."""
    largest_buffer: str = ""
    """Name of the buffer with most bytes; empty: there is none."""
    batch_norms: int = 0
    """Modules with batch statistics in their buffers."""
    sync_batch_norms: int = 0
    units: int = 0
    """FSDP: number of parameter groups that are gathered separately."""
    sharding: Literal["", "all", "gradients", "within-hosts"] = ""
    """FSDP shards everything; all but the parameters between forward and backward pass; or within
    each of several groups of ranks. Empty: another way, or not seen."""
    block: str = ""
    """Class of the repeated, unnested modules that hold most parameters."""
    blocks: int | None = None
    """Number of them; less than two: the model repeats none; None: not searched."""
    checksum: tuple[float, ...] = ()
    """Checksums of the parameters in order, at the end of the run; empty for FSDP."""
    checksum_scale: tuple[float, ...] = ()
    """Sums of the parameters' magnitudes, the scale of differences."""
    buffer_sums: tuple[BufferSum, ...] = ()
    """Of floating buffers that checkpoints hold, but for those of norms; empty for FSDP."""
    parameter_sums: tuple[ParameterSum, ...] = ()
    """Of a model without a wrapper, on several ranks, unless it has too many or they may be shards.
    Without those that began with one number throughout, such as zero."""
    untrained: tuple[str, ...] = ()
    """Parameters that get gradients and that no optimizer has; unless FSDP shards the model."""
    spoiled: bool = False
    """Whether trained parameters are NaN; of a shard, those of this rank."""

    find_unused_parameters: bool | None = None
    """DDP's setting; None: no DDP."""
    static_graph: bool | None = None
    broadcast_buffers: bool | None = None
    bucket_cap_mb: float | None = None
    """Upper limit of a bucket in MiB; None: no DDP."""
    bucket_bytes: tuple[int, ...] = ()
    """Bytes of each bucket of DDP's reducer."""
    comm_hook: str = ""
    reduction_seconds: float = 0.0
    """DDP's own mean from the begin of the first reduction in a backward pass to the end of the
    last. Computation may run meanwhile. 0: not known."""

    inspected_steps: int = 0
    """Steps in which the local gradients of this rank were inspected."""
    unused: tuple[str, ...] = ()
    """Names of parameters without a gradient in all of these steps; sometimes: in some of them."""
    unused_bytes: int = 0
    """Bytes of those without one in all of these steps."""
    sometimes_unused: tuple[str, ...] = ()
    """Names of parameters without a gradient in some of these steps."""
    table_bytes: int = 0
    """Bytes of embedding tables whose gradients are dense, and that no other layer shares."""
    table_rows: float = 1.0
    """Share of their rows, 0 to 1, of which a step has a gradient, weighted by bytes."""
    discarded: float = 0.0
    """Share of the backward passes, 0 to 1, after the last gradient that an optimizer takes. What
    comes then are gradients of this model that are zeroed unused."""
    find_unused_seconds: tuple[float, ...] = ()
    """Seconds of the graph traversal for find_unused_parameters, in each judged step."""
    buffer_broadcast_seconds: tuple[float, ...] = ()
    """Seconds of DDP's buffer broadcast, in each judged step."""

    def __post_init__(self) -> None:
        if len(self.checksum) != len(self.checksum_scale):
            raise ValueError("checksum and checksum_scale have different lengths")


class Wrapping(RunSection, frozen=True, kw_only=True):
    """The models of all ranks."""

    wrappers: tuple[Wrapper, ...]

    def by_name(self, wanted: Callable[[Wrapper], object]) -> Iterator[tuple[Wrapper, ...]]:
        """Each model that some ranks wrap as wanted: its wrappers on these ranks."""
        found = [one for one in self.wrappers if wanted(one)]
        for name in dict.fromkeys(one.name for one in found):
            yield tuple(one for one in found if one.name == name)


class Calls(Part, frozen=True, kw_only=True):
    """The collectives that one line of Python calls on one rank, in the judged steps."""

    rank: int
    operation: str
    """Name in torch.distributed, say all_reduce."""
    place: str
    """The calling line of the user's code or a library: file:line."""
    of_user: bool
    """Whether that is the user's code."""
    within: str = ""
    """The phase of the last call, such as forward; empty: not known."""
    in_steps: int | None = None
    """Number of judged steps that call it; None: not known."""
    calls: int
    bytes: int
    """Bytes of all of them together."""
    seconds: float
    """Seconds of the main thread in them, or waiting for them."""


class CollectiveCalls(RunSection, frozen=True, kw_only=True):
    """All collectives called from Python, without those of DDP's reducer."""

    steps: int
    """Number of judged steps that they cover."""
    calls: tuple[Calls, ...]
