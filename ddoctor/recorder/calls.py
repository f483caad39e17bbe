"""Functions whose calls are a phase of the step, or are counted in it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from threading import get_ident
from types import CodeType
from typing import Any

import torch
from torch.utils import checkpoint

from ddoctor.recorder import alive, collector
from ddoctor.recorder.harmless import harmless
from ddoctor.recorder.swaps import replaces
from ddoctor.recorder.tape import CHECKPOINT, COUNT, FORWARD, REST, TO_DEVICE
from ddoctor.recorder.timeline import Timeline

PAGEABLE, PINNED = COUNT["pageable_bytes"], COUNT["pinned_bytes"]


def install(timeline: Timeline) -> None:
    """Watch Python's collector, torch.save, autocast and torch.utils.checkpoint."""
    collector.install(timeline)
    alive.install()
    time_saving(timeline, torch, ("save",))
    # Torch imports it, if it is installed.
    time_saving(timeline, sys.modules.get("numpy"), ("savez", "savez_compressed"))
    _count(timeline, gc, "collect", COUNT["collected"])
    _count(timeline, torch.cuda, "empty_cache", COUNT["empty_cache"])
    # Not ``checkpoint`` itself, which ``compile`` recognises by name. Within a backward pass a
    # block is already computed again, and may hold others.
    implementations = (
        (checkpoint._CheckpointFrame, "__init__"),
        (checkpoint.CheckpointFunction, "forward"),
    )
    for owner, name in implementations:
        harmless(_count)(timeline, owner, name, COUNT["checkpointed"], FORWARD)
    enter: Any = torch.autocast.__enter__

    @replaces(torch.autocast, "__enter__")
    def entered(context: Any) -> Any:
        if context._enabled and not torch.compiler.is_compiling():
            timeline.autocast = str(context.fast_dtype).removeprefix("torch.")
        return enter(context)


def time_saving(timeline: Timeline, module: Any, functions: Iterable[str]) -> None:
    """Time what writes checkpoints in a module: functions, and methods as ``Class.method``."""
    for function in functions:
        kind, _, name = function.rpartition(".")
        owner = getattr(module, kind, None) if kind else module
        original = getattr(owner, name, None)
        if original is not None:
            setattr(owner, name, timed(timeline, original, CHECKPOINT))


def time_copies(timeline: Timeline) -> None:
    """Time copies of tensors by the script itself, once the model is known to be on a GPU."""
    for name in ("to", "cuda"):
        _time_copies(timeline, name)


def _time_copies(timeline: Timeline, name: str) -> None:
    original = getattr(torch.Tensor, name)
    copy = timed(timeline, original, TO_DEVICE)

    @replaces(torch.Tensor, name)
    def send(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        # Casts within the model are its own work, and what is on the GPU already stays there.
        if timeline.phase != REST or tensor.is_cuda or torch.compiler.is_compiling():
            return original(tensor, *args, **kwargs)
        sent = copy(tensor, *args, **kwargs)
        if sent.is_cuda and get_ident() == timeline.busy:
            _count_bytes(timeline, tensor)
        return sent


@harmless
def _count_bytes(timeline: Timeline, tensor: Any) -> None:
    # Subclasses of tensors may know nothing of pinned memory.
    timeline.counts[PINNED if tensor.is_pinned() else PAGEABLE] += tensor.nbytes


def timed(timeline: Timeline, original: Callable[..., Any], phase: int) -> Callable[..., Any]:
    """The function, with a phase for its calls in the main thread."""

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not timeline.here():
            return original(*args, **kwargs)
        depth = len(timeline.open)
        timeline.enter(phase)
        try:
            return original(*args, **kwargs)
        finally:
            timeline.unwind(depth)

    return call


def counts(code: CodeType) -> bool:
    """Whether it is the code of a function whose calls are counted."""
    return code.co_filename == __file__


def _count(
    timeline: Timeline, owner: Any, name: str, count: int, within: int | None = None
) -> None:
    """Count the calls of a function in recorded steps, or only in one phase of them."""
    original = getattr(owner, name)

    @wraps(original)
    def counted(*args: Any, **kwargs: Any) -> Any:
        if within in (None, timeline.phase) and get_ident() == timeline.busy:
            timeline.counts[count] += 1
        return original(*args, **kwargs)

    static = isinstance(vars(owner)[name], staticmethod)
    timeline.swaps.put(owner, name, staticmethod(counted) if static else counted)
