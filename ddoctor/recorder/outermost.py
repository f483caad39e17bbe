"""The models that are trained: found by the parameters of the optimizer, watched at their door.

Hooks on every module would cost several per cent of a net of small ones; the outermost module alone
costs nothing that can be measured.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer

from ddoctor.recorder.harmless import harmless
from ddoctor.recorder.tape import EVALUATION, FORWARD
from ddoctor.recorder.timeline import COUNT, Timeline

MOST_SHAPES = 64
UNDISTURBED_SECONDS = 10.0
# A module that holds the model and is never called itself: look below it.
PATIENCE_STEPS = 2


class Outermost:
    """The outermost modules that hold parameters of the optimizers."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.roots: dict[int, nn.Module] = {}
        self._called: set[int] = set()
        self._handles: dict[int, list[Any]] = {}
        self._since: dict[int, int] = {}
        self._depth: list[int] = []
        self._parameters: set[int] = set()
        self.shapes: set[tuple[tuple[int, ...], ...]] = set()

    def find(self, optimizer: Optimizer) -> None:
        """Watch the outermost modules that hold parameters of this optimizer."""
        self._parameters |= {id(one) for group in optimizer.param_groups for one in group["params"]}
        modules = _modules()
        inner = {id(child) for one in modules for child in one._modules.values()}
        for module in modules:
            if id(module) not in inner and self._holds(module):
                self._watch(module)

    def settle(self, step: int) -> None:
        """Look below a module that was never called."""
        waiting = [one for one in self.roots if one not in self._called]
        for name in waiting:
            if step - self._since[name] < PATIENCE_STEPS:
                continue
            module = self.roots.pop(name)
            for handle in self._handles.pop(name):
                handle.remove()
            for child in module.children():
                if self._holds(child):
                    self._watch(child)

    def training(self) -> bool | None:
        """Whether the models are in training; None: there is none yet."""
        return next((one.training for one in self.roots.values()), None)

    def wrapped(self) -> Iterator[DistributedDataParallel]:
        """The models in DDP."""
        for root in self.roots.values():
            for module in root.modules():
                if isinstance(module, DistributedDataParallel):
                    yield module

    def _holds(self, module: nn.Module) -> bool:
        return any(id(one) in self._parameters for one in module.parameters())

    def _watch(self, module: nn.Module) -> None:
        if id(module) in self.roots:
            return
        self.roots[id(module)] = module
        self._since[id(module)] = self._timeline.done
        if module._compiled_call_impl is not None:
            self._watch_compiled(module)
            return
        doors = [module]
        # Called by itself as well: the discriminator that judges for the generator, say.
        if isinstance(module, DistributedDataParallel) and not module.module._compiled_call_impl:
            doors.append(module.module)
        self._handles[id(module)] = [
            handle
            for door in doors
            for handle in (
                door.register_forward_pre_hook(self._enter, prepend=True, with_kwargs=True),
                door.register_forward_hook(self._leave, always_call=True),
            )
        ]

    def _watch_compiled(self, module: nn.Module) -> None:
        """One that was compiled in place: a hook would be compiled with it, and tell nothing."""
        compiled: Any = module._compiled_call_impl

        def call(*args: Any, **kwargs: Any) -> Any:
            self._enter(module, args, kwargs)
            try:
                return compiled(*args, **kwargs)
            finally:
                self._leave(module, args, None)

        module._compiled_call_impl = call
        self._handles[id(module)] = []

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling() or not self._timeline.here():
            return
        self._called.add(id(module))
        timeline = self._timeline
        inside = bool(self._depth)
        self._depth.append(timeline.depth())
        if inside:
            return
        if not module.training or not torch.is_grad_enabled():
            timeline.enter(EVALUATION)
            return
        timeline.enter(FORWARD)
        timeline.counts[COUNT["forwards"]] += 1
        self._measure(args, kwargs)

    @harmless
    def _measure(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        counts = self._timeline.counts
        shapes = tuple(tuple(one.shape) for one in _tensors((*args, *kwargs.values())))
        if shapes:
            counts[COUNT["samples"]] += shapes[0][0] if shapes[0] else 1
            counts[COUNT["elements"]] += sum(map(_numbers, shapes))
            if len(self.shapes) < MOST_SHAPES:
                self.shapes.add(shapes)

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or not self._timeline.here():
            return
        if self._depth:
            self._timeline.unwind(self._depth.pop())


def _modules() -> list[nn.Module]:
    """All modules there are."""
    # The list of all objects must be gone before another thread goes on: a tuple that it is just
    # building may have one owner only.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(UNDISTURBED_SECONDS)
    try:
        found = [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]
        # Not those that are just being made.
        return [one for one in found if "_modules" in one.__dict__]
    finally:
        sys.setswitchinterval(interval)


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Those among the arguments, and in lists and dictionaries among them."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, dict):
            yield from (one for one in value.values() if isinstance(one, torch.Tensor))
        elif isinstance(value, (list, tuple)):
            yield from (one for one in value if isinstance(one, torch.Tensor))


def _numbers(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product
