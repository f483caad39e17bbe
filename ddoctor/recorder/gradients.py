"""The backward pass: the rank's own computing, and the wait for the others at its end."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.autograd import Variable
from torch.jit import _builtins
from torch.nn.parallel import DistributedDataParallel

from ddoctor.recorder.operations import DDP_REDUCE
from ddoctor.recorder.tape import BACKWARD, COLLECTIVE, COUNT, OPERATION
from ddoctor.recorder.timeline import Timeline


class Gradients:
    """Splits each backward pass where the rank has no more work of its own in it.

    Autograd calls what was queued in the order in which it was queued. DDP queues its wait for the
    reduced gradients when the last of them is there; queued at the very beginning, ``_computed`` is
    called just before that.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.wrapped: list[DistributedDataParallel] = []
        self._inside = False
        self._computed_at: float | None = None
        self._mark = -1

    def install(self) -> None:
        """Take the place of ``backward``, through which all passes go that leave gradients in the
        parameters, and of ``grad``, which gives them back."""
        autograd: Any = torch.autograd
        original: Callable[..., None] = autograd.backward
        returned: Callable[..., Any] = autograd.grad

        @wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            # A pass within a pass is a checkpointed block that is computed anew.
            if torch.compiler.is_compiling() or self._inside or not self._timeline.here():
                original(tensors, *args, **kwargs)
                return
            self._run(original, tensors, args, kwargs)

        @wraps(returned)
        def grad(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not self._timeline.here():
                return returned(*args, **kwargs)
            depth = self._timeline.depth()
            self._timeline.enter(BACKWARD)
            try:
                return returned(*args, **kwargs)
            finally:
                self._timeline.unwind(depth)

        # TorchScript knows them by their identity.
        known: Any = _builtins
        for before, now in ((original, backward), (returned, grad)):
            known._register_builtin(now, known._find_builtin(before))
        autograd.backward, autograd.grad = backward, grad

    def _run(
        self, original: Callable[..., None], tensors: Any, args: Any, kwargs: dict[str, Any]
    ) -> None:
        timeline = self._timeline
        counts = timeline.counts
        counts[COUNT["backwards"]] += 1
        synced = any(one.require_backward_grad_sync for one in self.wrapped)
        counts[COUNT["synced"]] += synced
        handle = self._arm(tensors) if synced else None
        self._inside = True
        self._computed_at = None
        depth = timeline.depth()
        timeline.enter(BACKWARD)
        try:
            original(tensors, *args, **kwargs)
        finally:
            self._inside = False
            timeline.unwind(depth)
            if handle is not None:
                handle.remove()
            self._end_meeting()

    def _end_meeting(self) -> None:
        if self._computed_at is not None:
            passed = self._timeline.last - self._computed_at
            self._timeline.meeting(self._computed_at, passed, 0, DDP_REDUCE, self._mark)

    def _arm(self, tensors: Any) -> Any:
        several: tuple[Any, ...] = (
            tuple(tensors) if isinstance(tensors, (list, tuple)) else (tensors,)
        )
        for tensor in several:
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                arm: Any = tensor.register_hook
                return arm(self._begin)
        return None

    def _begin(self, gradient: Any) -> None:
        engine: Any = Variable._execution_engine
        engine.queue_callback(self._computed)

    def _computed(self) -> None:
        if self._timeline.here():
            self._timeline.enter(COLLECTIVE)
            self._timeline.head[OPERATION] = DDP_REDUCE
            self._computed_at = self._timeline.last
            self._mark = self._timeline.marked
