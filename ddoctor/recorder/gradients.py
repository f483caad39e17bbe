"""The backward pass: the rank's own computation, and the wait for other ranks at its end."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from threading import get_ident
from typing import Any

import torch
from torch.autograd import Variable
from torch.compiler import is_dynamo_compiling
from torch.jit import _builtins
from torch.nn.parallel import DistributedDataParallel

from ddoctor.recorder.calls import timed
from ddoctor.recorder.graph import Graph
from ddoctor.recorder.harmless import harmless
from ddoctor.recorder.tape import (
    BACKWARD,
    COLLECTIVE,
    COUNT,
    DDP_REDUCE,
    GROUP,
    GROUP_SIZE,
    OPERATION,
)
from ddoctor.recorder.timeline import Timeline

OWN = "ddoctor"
BACKWARDS, SYNCED = COUNT["backwards"], COUNT["synced_backwards"]
COUNTED = 2
"""The step whose graphs are counted; the first may lack a part of the training."""


class Gradients:
    """Splits each backward pass where the rank's own work ends.

    Autograd runs queued callbacks in their order. DDP queues its wait for the reduced gradients
    with the last of them; ``_computed`` is queued at the very beginning and runs just before that.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.wrapped: list[DistributedDataParallel] = []
        self.at_first: list[Callable[[], object]] = []
        """Called in each pass before the first step."""
        self.at_end: list[Callable[[], object]] = []
        """Called after each pass, but those that only add to an accumulation."""
        self.graph = Graph()
        self._inside = False
        self._computed_at = 0.0
        self._mark = -1
        engine: Any = Variable._execution_engine
        self._queue: Callable[[Callable[[], None]], None] = engine.queue_callback

    def install(self) -> None:
        """Replace ``backward``, which every pass uses that stores gradients in parameters, and
        ``grad``, which returns them."""
        autograd: Any = torch.autograd
        original: Callable[..., None] = autograd.backward
        returned = autograd.grad
        timed_grad = timed(self._timeline, returned, BACKWARD)

        @wraps(returned)
        def grad(*args: Any, **kwargs: Any) -> Any:
            found = timed_grad(*args, **kwargs)
            # Without batches to tell them apart, a script may need any number of them for a step.
            timeline = self._timeline
            if timeline.batches and not self._inside and get_ident() == timeline.busy:
                self._ended()
            return found

        @wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            # A pass within a pass is a checkpointed block that is computed anew.
            if is_dynamo_compiling() or self._inside or get_ident() != self._timeline.busy:
                original(tensors, *args, **kwargs)
                return
            self._run(original, tensors, args, kwargs)

        # TorchScript knows them by their identity.
        known: Any = _builtins
        for before, now in ((original, backward), (returned, grad)):
            known._register_builtin(now, known._find_builtin(before))
        autograd.grad = grad
        self._timeline.swaps.put(autograd, "backward", backward)

    def _run(
        self, original: Callable[..., None], tensors: Any, args: Any, kwargs: dict[str, Any]
    ) -> None:
        timeline = self._timeline
        timeline.counts[BACKWARDS] += 1
        if not timeline.done:
            for call in self.at_first:
                call()
        elif timeline.done == COUNTED:
            self._count(tensors)
        armed = None
        # The forward pass decides (DistributedDataParallel._post_forward): no_sync around the
        # backward pass alone holds nothing back.
        if any(
            one.require_forward_param_sync or one.require_backward_grad_sync for one in self.wrapped
        ):
            timeline.counts[SYNCED] += 1
            armed = self._arm(tensors)
        self._inside = True
        self._computed_at = 0.0
        depth = len(timeline.open)
        timeline.enter(BACKWARD)
        try:
            original(tensors, *args, **kwargs)
        finally:
            self._inside = False
            timeline.unwind(depth)
            if armed is not None:
                armed.pop(OWN, None)
            if self._computed_at:
                passed = timeline.last - self._computed_at
                timeline.meeting(self._computed_at, passed, 0, DDP_REDUCE, self._mark)
        if armed is not None or not self.wrapped:
            self._ended()

    def _ended(self) -> None:
        for call in self.at_end:
            call()

    @harmless
    def _count(self, tensors: Any) -> None:
        self.graph.add(tensors)

    @harmless
    def _arm(self, tensors: Any) -> Any:
        """Attach ``_begin`` to the first of these; returns how to remove it. Without it, the pass
        is recorded as a whole."""
        for tensor in tensors if isinstance(tensors, (list, tuple)) else (tensors,):
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                # As ``register_hook`` does it, whose handle takes 20 µs with cold caches.
                hooks: Any = tensor._backward_hooks
                if hooks is None:
                    hooks = tensor._backward_hooks = OrderedDict()
                    if tensor.grad_fn is not None:
                        tensor.grad_fn._register_hook_dict(tensor)
                hooks[OWN] = self._begin
                return hooks
        return None

    def _begin(self, gradient: Any) -> None:
        self._queue(self._computed)

    def _computed(self) -> None:
        timeline = self._timeline
        if get_ident() == timeline.main:
            timeline.enter(COLLECTIVE)
            timeline.head[OPERATION] = DDP_REDUCE
            timeline.head[GROUP] = timeline.head[GROUP_SIZE] = 0.0
            self._computed_at = timeline.last
            self._mark = timeline.marked
