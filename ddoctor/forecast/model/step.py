"""One training step on fake tensors, and the memory that a real one would take."""

from __future__ import annotations

import gc
import logging
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ddoctor.errors import DoctorError
from ddoctor.evidence.plan import Checkpointing
from ddoctor.forecast.allocator import replay
from ddoctor.forecast.model.blueprint import Batch, on_meta
from ddoctor.forecast.model.recomputing import every, recompute, without_cache
from ddoctor.forecast.model.repeating import Repeating, deeper, repeating, shorten
from ddoctor.forecast.model.scans import by_kernels
from ddoctor.forecast.model.sharding import (
    Sharding,
    apart,
    exchange_if_last,
    own_shard,
    shard,
    units,
)
from ddoctor.memory_tracking.blocks import blocks
from ddoctor.memory_tracking.counting import WorkCounter
from ddoctor.memory_tracking.cuda import as_on_cuda
from ddoctor.memory_tracking.log import Entry, Peak, held, ordered
from ddoctor.memory_tracking.tracker import ShardedTracker, Tracker, on_gpu
from ddoctor.memory_tracking.values import KnownValues
from ddoctor.memory_tracking.work import StepWork
from ddoctor.proc import collector

if TYPE_CHECKING:
    from ddoctor.forecast.model.compiling import Compiler

# From the second step on, the optimizer has its states.
STEPS = 2

Optimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@contextmanager
def on_cuda() -> Iterator[None]:
    """Let operators and layers keep what the kernels on CUDA do."""
    with as_on_cuda(), by_kernels():
        yield


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """The memory of a step on one rank, in bytes."""

    log: Sequence[Entry]
    """What happened to each allocation."""
    kinds: Sequence[str]
    """torch's names of the kinds of memory."""
    peaks: tuple[Peak, ...]
    """The peak of each phase."""
    sizes: Sequence[tuple[int, int]]
    """Each allocation, as input of `ddoctor.forecast.allocator.replay`."""
    shared: frozenset[int]
    """The allocations that shrink with the number of ranks."""
    streams: Mapping[int, str]
    """The allocations that are on another stream than the computing, with the name of one."""
    gradients: int
    """Bytes of all gradients."""
    states: int
    """Bytes of the optimizer states of this rank's part."""
    block: int
    """Bytes of the parameters of the largest block, or of a whole model without blocks."""
    flops: int
    """FLOPs of the forward and the backward pass of one micro-batch.

    As torch's FlopCounterMode counts them: attention in full, though half of it is masked."""

    work: StepWork | None = None
    """The operators of the step, with one micro-batch; None: it is sharded, or accumulates."""

    repeats: bool = field(default=False, compare=False)
    """Whether runs with few of the model's blocks gave it."""

    factor: float = 1.0
    """The sharded allocations are this many times as large as ``sizes`` says, at most 1."""
    added: int = 0
    """Bytes of activations of other micro-batches in flight, which ``sizes`` lacks."""

    @cached_property
    def reserved(self) -> int:
        """Return the GPU memory that torch's caching allocator reserves for it.

        What is freed on one stream is not used again on another.
        """
        return self._reserved(expandable=False)

    @cached_property
    def expanded(self) -> int:
        """Return the same with expandable segments."""
        return self._reserved(expandable=True)

    def _reserved(self, *, expandable: bool) -> int:
        streams: dict[str, list[tuple[int, int]]] = {}
        for number, size in self.sizes:
            one = (number, round(size / self.factor) if number in self.shared else size)
            streams.setdefault(self.streams.get(number, ""), []).append(one)
        found = (replay(sizes, expandable=expandable) for sizes in streams.values())
        return sum(one.reserved for one in found) + self.added

    @property
    def peak(self) -> Peak:
        """Return the highest peak."""
        return max(self.peaks, key=lambda one: one.total)

    @property
    def total(self) -> int:
        """Return the bytes at that moment, as the allocator counts them."""
        return self.peak.total

    def filled(self, one: Footprint, times: int) -> Footprint:
        """Return the footprint with more micro-batches in flight; ``one`` has one less.

        Each adds as much as this one's last added.
        """
        before = {peak.phase: peak for peak in one.peaks}
        peaks = tuple(
            replace(
                peak,
                parts={
                    name: size + times * (size - before[peak.phase].parts.get(name, 0))
                    for name, size in peak.parts.items()
                },
            )
            for peak in self.peaks
        )
        found = replace(self, peaks=peaks)
        return replace(found, added=found.total - self.total)

    def spread(self, factor: float) -> Footprint:
        """Return the footprint with this many times as many ranks."""
        if factor == 1:
            return self
        whole = factor * self.factor
        return replace(
            self,
            peaks=tuple(held(self.log, self.kinds, whole).peaks.values()),
            states=round(self.states / factor),
            factor=whole,
        )


@collector.old_objects_left_alone()
def footprint(
    build: Callable[[], nn.Module],
    batch: Callable[[], Batch],
    optimizer: Optimizer,
    *,
    autocast: torch.dtype | None = None,
    sharding: Sharding | None = None,
    checkpointing: Checkpointing = "none",
    compiled: bool = False,
    accumulation: int = 1,
    in_flight: int = 1,
    evaluation: Callable[[], Batch] | None = None,
    kernels: Callable[[], AbstractContextManager[None]] = on_cuda,
    own: Callable[[Any, Sequence[Any]], int] = on_gpu,
) -> Footprint:
    """Return the footprint of a step of a model whose forward pass returns its loss.

    ``autocast``: the computing dtype, if it differs from the weights'; ``sharding``: None if this
    rank has the whole model; ``compiled``: whether torch.compile compiles each block;
    ``accumulation``: micro-batches per optimizer step; ``in_flight``: those whose activations a
    pipeline stage keeps at a time; ``evaluation``: the batch of an evaluation that follows each
    step, None: there is none; ``kernels``: a context in which operators keep and return what the
    device's kernels do; ``own``: bytes that a call of an operator needs besides its outputs.

    Raises:
        DoctorError: the forward pass returns no loss.
    """
    model = on_meta(build)
    gradients = sum(one.nbytes for one in model.parameters() if one.requires_grad)
    *rows, (_, whole) = units(model)
    block = max((size for _, size in rows), default=whole)

    def run(model: nn.Module) -> _Run:
        with kernels():
            return _run(
                model,
                batch,
                optimizer,
                own,
                autocast,
                sharding,
                checkpointing,
                compiled,
                accumulation,
                in_flight,
                evaluation,
            )

    row = repeating(model, every(checkpointing))
    repeated = _with_fewer_blocks(row, build, run) if row is not None else None
    found = repeated or run(model)
    told = held(found.log, found.kinds)
    return Footprint(
        log=tuple(found.log),
        kinds=found.kinds,
        peaks=tuple(told.peaks.values()),
        sizes=told.sizes,
        shared=frozenset(told.shared),
        streams=told.streams,
        gradients=gradients,
        states=found.states,
        block=block,
        flops=found.flops,
        work=found.work,
        repeats=repeated is not None,
    )


@collector.old_objects_left_alone()
def passes(
    build: Callable[[], nn.Module],
    batch: Callable[[], Batch],
    optimizer: Optimizer,
    like: Footprint,
    *,
    autocast: torch.dtype | None = None,
    checkpointing: Checkpointing = "none",
    compiled: bool = False,
) -> StepWork | None:
    """Return the operators of a step, of which only the forward and the backward pass run.

    ``like``: the footprint with other samples or checkpointing, whose optimizer does the same.
    """

    def run(model: nn.Module) -> StepWork | None:
        with on_cuda():
            return _run(
                *(model, batch, optimizer, on_gpu, autocast, None),
                *(checkpointing, compiled, 1, 1),
                steps=1,
            ).work

    model = on_meta(build)
    row = repeating(model, every(checkpointing)) if like.repeats else None
    if row is None:
        found = run(model)
    else:
        short, longer = (run(_shortened(build, depth)) for depth in row.depths)
        found = short.deeper(longer, row.more) if short and longer else None
    if found is None or like.work is None:
        return None
    optimized = {"optimizer": like.work.phases["optimizer"]}
    return replace(found, phases={**found.phases, **optimized})


class _Run(NamedTuple):
    """What a run of all steps gives."""

    log: Sequence[Entry]
    kinds: Sequence[str]
    """torch's names of the kinds of memory."""
    states: int
    """Bytes of optimizer states."""
    flops: int
    """Of one micro-batch."""
    work: StepWork | None
    """Of a model on one GPU, without accumulation."""


def _with_fewer_blocks(
    row: Repeating, build: Callable[[], nn.Module], run: Callable[[nn.Module], _Run]
) -> _Run | None:
    """Return what a run of the model would give, by runs with few of its blocks.

    None: the runs do not tell.
    """
    try:
        short, longer = (run(_shortened(build, depth)) for depth in row.depths)
    except DoctorError:
        raise
    except Exception:  # the model's own code may count its blocks
        return None
    log = deeper((short.log, longer.log), row)
    if log is None:
        return None
    return short._replace(
        log=log,
        states=short.states + row.more * (longer.states - short.states),
        flops=short.flops + row.more * (longer.flops - short.flops),
        work=short.work.deeper(longer.work, row.more) if short.work and longer.work else None,
    )


def _shortened(build: Callable[[], nn.Module], depth: int) -> nn.Module:
    model = on_meta(build)
    shorten(model, depth)
    return model


def _run(
    model: nn.Module,
    batch: Callable[[], Batch],
    optimizer: Optimizer,
    own: Callable[[Any, Sequence[Any]], int],
    autocast: torch.dtype | None,
    sharding: Sharding | None,
    checkpointing: Checkpointing,
    compiled: bool,
    accumulation: int,
    in_flight: int,
    evaluation: Callable[[], Batch] | None = None,
    steps: int = STEPS,
) -> _Run:
    # Python frees cycles between steps only, so that the same step gives the same log.
    gc.collect()
    with _quiet(), _unpacked(), collector.at_rest(), apart(sharding) as mesh, FakeTensorMode():
        _as_fake(model)
        compiler = _compile_blocks(model) if compiled else None
        recompute(model, checkpointing, compiled=compiled)
        if sharding is not None and mesh is not None:
            shard(model, sharding, mesh)
        shards = [(one, own_shard(one)) for one in model.parameters() if one.requires_grad]
        updates = optimizer([part for _, part in shards])
        known = KnownValues()
        samples = known.faked(batch())
        evaluated = known.faked(evaluation()) if evaluation is not None else None
        kind = Tracker if sharding is None else ShardedTracker
        tracker = kind(model, updates, [one for one in samples.values() if isinstance(one, Tensor)])
        tracker.own = own
        tracker.known = known or None
        if compiler is not None:
            compiler.tracker = tracker
        with tracker:
            for number in range(steps):
                tracker.begin()
                alone = sharding is None and accumulation == in_flight == 1
                if number == steps - 1 and alone:
                    tracker.work = WorkCounter()
                waiting: deque[Any] = deque()
                more = in_flight - 1 + accumulation
                while more:
                    more -= 1
                    tracker.flops = 0
                    tracker.phase = "forward"
                    # Otherwise torch's tracker refuses one forward pass after another.
                    tracker.memory_tracking.pop(model, None)  # type: ignore[no-untyped-call]
                    with torch.autocast("cpu", autocast, enabled=autocast is not None):
                        waiting.append(model(**samples))
                    tracker.logits = _numbers(getattr(waiting[-1], "logits", None))
                    while len(waiting) == in_flight or (waiting and not more):
                        if sharding is not None and sharding.pipelined:
                            exchange_if_last(model, last=len(waiting) == 1 and not more)
                        _go_back(tracker, waiting)
                tracker.phase = "optimizer"
                for parameter, part in shards:
                    if parameter is not part:
                        part.grad = getattr(parameter.grad, "_local_tensor", None)
                updates.step()
                for parameter, part in shards:
                    parameter.grad = part.grad = None
                if evaluated is not None:
                    with torch.autocast("cpu", autocast, enabled=autocast is not None):
                        _evaluate(tracker, model, evaluated)
        work = None
        if tracker.work is not None:
            gradients = sum(one.nbytes for one, _ in shards)
            work = StepWork(phases=tracker.work.phases, gradients=gradients, tensors=len(shards))
        states = (one for state in updates.state.values() for one in state.values())
        return _Run(
            log=tuple(ordered(tracker.log)),  # it goes on while the model is freed
            kinds=tracker.kinds,
            states=sum(one.nbytes for one in states if isinstance(one, Tensor)),
            flops=tracker.flops,
            work=work,
        )


def _compile_blocks(model: nn.Module) -> Compiler:
    """Compile each block by itself.

    Raises:
        DoctorError: the model has none.
    """
    from ddoctor.forecast.model.compiling import Compiler  # it imports inductor

    found = blocks(model)
    if not found:
        name = type(model).__name__
        raise DoctorError(f"--compile compiles blocks, and {name} has no row of them")
    without_cache(model)  # a graph returns no cache
    compiler = Compiler()
    for block in found:
        compiler.compile(block)
    return compiler


def _go_back(tracker: Tracker | ShardedTracker, waiting: deque[Any]) -> None:
    """Run the backward pass of the micro-batch that waits longest."""
    tracker.phase = "backward"
    # Most loops keep the outputs until then, and logits are large.
    outputs = waiting.popleft()
    _loss(outputs).backward()  # type: ignore[no-untyped-call]
    del outputs
    if not waiting:
        tracker.reset_mod_stats()


def _evaluate(tracker: Tracker | ShardedTracker, model: nn.Module, samples: Batch) -> None:
    """Run a forward pass without gradients, of which neither operators nor FLOPs count."""
    tracker.phase = "evaluation"
    flops, work, tracker.work = tracker.flops, tracker.work, None
    training = [one for one in model.modules() if one.training]
    model.eval()
    tracker.memory_tracking.pop(model, None)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        outputs = model(**samples)
    # Evaluation loops read the loss and the logits.
    del outputs
    for module in training:
        module.training = True
    tracker.reset_mod_stats()
    tracker.flops, tracker.work = flops, work


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's warnings, which concern real training, and the stacks that it logs."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            logger.setLevel(level)


def _as_fake(model: nn.Module) -> None:
    """Give the model fake CPU tensors, in a FakeTensorMode; shared tensors stay shared."""
    made: dict[int, tuple[Tensor, Tensor]] = {}

    def new(old: Tensor) -> Tensor:
        if id(old) not in made:
            empty = torch.empty_strided(old.shape, old.stride(), dtype=old.dtype, device="cpu")
            if isinstance(old, nn.Parameter):
                empty = nn.Parameter(empty, requires_grad=old.requires_grad)
            # The old tensor is kept, so that no other one gets its id.
            made[id(old)] = empty, old
        return made[id(old)][0]

    for module in model.modules():
        for owned in (module._parameters, module._buffers):
            for name, old in owned.items():
                if old is not None:
                    owned[name] = new(old)  # type: ignore[assignment]


@contextmanager
def _unpacked() -> Iterator[None]:
    """Treat each row as one sample, not as several packed ones, so that no mask is made for that.

    transformers (5.0 and later, masking_utils) finds packing by the position of each token. Without
    values it makes the mask, which most training steps do not have.
    """
    masks = sys.modules.get("transformers.masking_utils")
    name = "find_packed_sequence_indices"
    looks = getattr(masks, name, None)
    if masks is None or looks is None:
        yield
        return
    setattr(masks, name, lambda position_ids: None)
    try:
        yield
    finally:
        setattr(masks, name, looks)


def _loss(outputs: object) -> Tensor:
    found = getattr(outputs, "loss", None)
    if not isinstance(found, Tensor):
        raise DoctorError(
            "the model's forward pass returns no loss (a tensor in .loss): pass a function that "
            "returns one with --workload"
        )
    return found


def _numbers(logits: object) -> tuple[int, int] | None:
    if not isinstance(logits, Tensor) or not logits.dim():
        return None
    return logits.numel(), logits.shape[-1]
