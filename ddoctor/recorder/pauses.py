"""Pauses of a step: garbage collection, and writing a checkpoint."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from ddoctor.recorder.tape import CHECKPOINT, COUNT, GC
from ddoctor.recorder.timeline import Timeline
from ddoctor.recorder.writers import WRITERS


def install(timeline: Timeline) -> None:
    """Watch Python's collector and torch.save."""

    def collecting(phase: str, info: dict[str, int]) -> None:
        if timeline.here():
            if phase == "start":
                timeline.enter(GC)
            elif timeline.phase == GC:
                timeline.leave()

    gc.callbacks.append(collecting)
    collect = gc.collect

    @wraps(collect)
    def counted(*args: Any, **kwargs: Any) -> int:
        if timeline.here():
            timeline.counts[COUNT["collected"]] += 1
        return collect(*args, **kwargs)

    setattr(gc, "collect", counted)  # noqa: B010
    setattr(torch, "save", _timed(timeline, torch.save))  # noqa: B010
    cuda: Any = torch.cuda
    empty = cuda.empty_cache

    @wraps(empty)
    def empty_cache() -> None:
        if timeline.here():
            timeline.counts[COUNT["empty_cache"]] += 1
        empty()

    cuda.empty_cache = empty_cache
    for name in WRITERS:
        if name in sys.modules:
            watch(name, timeline)


def watch(name: str, timeline: Timeline) -> None:
    """Time the functions of a module that write checkpoints."""
    module: Any = sys.modules[name]
    for function in WRITERS[name]:
        original = getattr(module, function, None)
        if original is not None:
            setattr(module, function, _timed(timeline, original))


def _timed(timeline: Timeline, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not timeline.here():
            return original(*args, **kwargs)
        depth = len(timeline.open)
        timeline.enter(CHECKPOINT)
        try:
            return original(*args, **kwargs)
        finally:
            timeline.unwind(depth)

    return save
