"""The trained models: found by the optimizer's parameters, timed at their outermost call.

Hooks on every module would cost several per cent of a net of small modules. The outermost module
alone costs nothing measurable.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from threading import get_ident
from typing import Any
from weakref import ref

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer

from ddoctor.evidence.training import EvaluationMode
from ddoctor.recorder import alive, places, user_calls
from ddoctor.recorder.capture import capturing
from ddoctor.recorder.fingerprints import of_tensors, random_numbers
from ddoctor.recorder.harmless import harmless
from ddoctor.recorder.tape import COUNT, EVALUATION, FORWARD
from ddoctor.recorder.timeline import Timeline
from ddoctor.recorder.user_calls import Calls

MOST_SHAPES = 64
FIRST_INPUTS = 8
# A module that holds the model and is never called itself: look below it.
PATIENCE_STEPS = 2
WRAPPERS = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel")
"""torch's modules around a model, each with one child."""
FORWARDS, SAMPLES, ELEMENTS = COUNT["forwards"], COUNT["samples"], COUNT["elements"]


class Outermost:
    """The outermost modules that hold parameters of the optimizers."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.roots: dict[int, nn.Module] = {}
        self._called: set[int] = set()
        self._bypassed: set[int] = set()
        self._since: dict[int, int] = {}
        self._inside = False
        """Whether a watched module is being called."""
        self._doors: set[int] = set()
        """The modules whose calls are timed."""
        self._classes: set[type] = set()
        self._parameters: set[int] = set()
        self._optimizers: dict[int, ref[Optimizer]] = {}
        self._trained: set[int] = set()
        """The models that were called in training mode."""
        self._in_evaluation_mode: dict[int, int] = {}
        """The step since which a model learns in evaluation mode."""
        self.at_training: Callable[[bool], None] | None = None
        """Called before a forward pass of the training, with whether evaluations came before it."""
        self._evaluated = False
        self.inputs: list[str] = []
        """Fingerprints of the first inputs of the models, in training."""
        self.random = True
        """Whether all of these look like random numbers."""
        self.calls: Calls = ()
        """The user's calls that led to the first of them."""
        self.shapes: set[tuple[tuple[int, ...], ...]] = set()

    def find(self, optimizer: Optimizer | None) -> None:
        """Watch the outermost modules that hold parameters of this optimizer; None: that hold any
        to train."""
        every = modules()
        if optimizer is None:
            trained = (one for module in every for one in module.parameters(recurse=False))
            self._parameters |= {id(one) for one in trained if one.requires_grad}
        else:
            self._optimizers[id(optimizer)] = ref(optimizer)
            groups = optimizer.param_groups
            self._parameters |= {id(one) for group in groups for one in group["params"]}
        inner = {id(child) for one in every for child in one._modules.values()}
        for module in every:
            if id(module) not in inner and self._holds(module):
                self._watch(module)

    def settle(self, step: int) -> bool:
        """Search below a module that was never called; return whether that changes the models."""
        before = {*self.roots, *self._bypassed}
        waiting = self.roots.keys() - self._called - self._bypassed
        for name in waiting:
            if step - self._since[name] < PATIENCE_STEPS:
                continue
            module = self.roots[name]
            if isinstance(module, DistributedDataParallel) and id(module.module) in self._called:
                self._bypassed.add(name)
                continue
            del self.roots[name]
            self._doors.discard(name)
            for child in module.children():
                if self._holds(child):
                    self._watch(child)
        return before != {*self.roots, *self._bypassed}

    def bypasses(self, module: nn.Module) -> bool:
        """Whether the script calls what is inside of this wrapper, and never the wrapper."""
        return id(module) in self._bypassed

    def training(self) -> bool | None:
        """Whether the models are in training mode; None: no model yet."""
        return next((trains(one) for one in self.roots.values()), None)

    def updated(self) -> set[int]:
        """The parameters with a state in an optimizer: each has had a gradient."""
        found = (one() for one in list(self._optimizers.values()))
        return {id(tensor) for one in found if one is not None for tensor in list(one.state)}

    def wrapped(self) -> list[DistributedDataParallel]:
        """The models in DDP that the script calls so."""
        roots = (root for name, root in self.roots.items() if name not in self._bypassed)
        every = (module for root in roots for module in root.modules())
        return [module for module in every if isinstance(module, DistributedDataParallel)]

    def _holds(self, module: nn.Module) -> bool:
        return any(id(one) in self._parameters for one in module.parameters())

    def _watch(self, module: nn.Module) -> None:
        if id(module) in self.roots:
            return
        self.roots[id(module)] = module
        self._since[id(module)] = self._timeline.done
        self._doors.add(id(module))
        self._open(type(module))
        if isinstance(module, DistributedDataParallel):
            # Called by itself as well: the discriminator that judges for the generator, say.
            self._doors.add(id(module.module))
            self._open(type(module.module))

    @harmless
    def _open(self, kind: Any) -> None:
        """Time the calls of the watched modules of this class.

        The hook is in the class: inside of a module it would be copied and saved with it. It wraps
        what ``compile`` installs, which would otherwise compile it.
        """
        if kind in self._classes:
            return
        self._classes.add(kind)
        own = kind.__call__
        plain = own is nn.Module.__call__
        doors, timeline = self._doors, self._timeline

        @wraps(own)
        def call(this: Any, *args: Any, **kwargs: Any) -> Any:
            # Looked up at each call: tracers put theirs in its place.
            inner = nn.Module.__call__ if plain else own
            if is_dynamo_compiling() or self._inside or id(this) not in doors:
                return inner(this, *args, **kwargs)
            if get_ident() != timeline.busy:
                return inner(this, *args, **kwargs)
            depth = len(timeline.open)
            self._inside = True
            self._called.add(id(this))
            graph = torch.is_grad_enabled()
            learns = graph and self._learns(this)
            if learns:
                if self.at_training is not None:
                    self.at_training(self._evaluated)
                    self._evaluated = False
                timeline.enter(FORWARD)
                timeline.counts[FORWARDS] += 1
                self._measure(args, kwargs)
            else:
                self._evaluated = True
                timeline.enter(EVALUATION)
                if timeline.preparing is not None:
                    timeline.preparing.used(timeline)
            try:
                result = inner(this, *args, **kwargs)
                if graph and not learns:
                    self._expect_gradients(this, result)
                return result
            finally:
                self._inside = False
                timeline.unwind(depth)

        timeline.swaps.put(kind, "__call__", call)

    def _learns(self, module: nn.Module) -> bool:
        """Whether this call, with a graph, is one of the training's."""
        # The script may call what is in a wrapper as well, say for adversarial samples.
        name = id(_wrapped(module))
        if trains(module):
            self._trained.add(name)
            if self._in_evaluation_mode:
                self._in_evaluation_mode.pop(name, None)
            return True
        return name in self._in_evaluation_mode

    @harmless
    def _expect_gradients(self, module: nn.Module, output: Any) -> None:
        """A script may leave its model in evaluation mode, and train it all the same."""
        name, step = id(_wrapped(module)), self._timeline.done

        def came(gradient: torch.Tensor) -> None:
            self._in_evaluation_mode.setdefault(name, step)

        for tensor in tensors_among([output])[:1]:
            if tensor.requires_grad and not capturing():
                tensor.register_hook(came)  # type: ignore[no-untyped-call]

    def evaluation_mode(self) -> EvaluationMode | None:
        """The model that learns in evaluation mode for longest; None: none, or no layer minds."""
        models = [_wrapped(root) for root in list(self.roots.values())]
        found = [
            EvaluationMode(
                name=type(one).__name__,
                steps=self._timeline.done - since,
                trained_before=id(one) in self._trained,
                layers=layers,
            )
            for one in models
            if (since := self._in_evaluation_mode.get(id(one))) is not None
            and (layers := _minding(one))
        ]
        return max(found, key=lambda one: one.steps, default=None)

    @harmless
    def _measure(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # What the script hands over may be of any kind.
        alone = len(args) == 1 and not kwargs and type(args[0]) is torch.Tensor
        tensors = args if alone else tensors_among((*args, *kwargs.values()))
        if self._timeline.preparing is not None:
            self._timeline.preparing.arrived(self._timeline, tensors)
        if len(self.inputs) < FIRST_INPUTS:
            self._look_at(tensors)
        if tensors:
            shapes = tuple(one.shape for one in tensors)
            counts = self._timeline.counts
            counts[SAMPLES] += shapes[0][0] if shapes[0] else 1
            counts[ELEMENTS] += sum(one.numel() for one in tensors)
            if len(self.shapes) < MOST_SHAPES:
                self.shapes.add(shapes)

    @harmless
    def _look_at(self, tensors: Sequence[torch.Tensor]) -> None:
        # A capture ends with an error if something is copied to the host.
        if capturing():
            return
        if not self.inputs and (user := places.caller(sys._getframe())) is not None:
            self.calls = user_calls.calls(user)
        self.inputs.append(of_tensors(tensors) or "")
        for loader in self._timeline.feeding:
            loader.reach(tensors)
        self.random = self.random and bool(random_numbers(tensors))


def _minding(model: nn.Module) -> tuple[str, ...]:
    """The classes of its layers that compute something else in evaluation mode."""
    kinds = {
        type(one).__name__
        for one in model.modules()
        if isinstance(one, _BatchNorm) or (isinstance(one, _DropoutNd) and one.p > 0)
    }
    return tuple(sorted(kinds))


def trains(module: nn.Module) -> bool:
    """Whether it is in training mode; of one of torch's wrappers, whether the model in it is.

    Lightning leaves DDP in evaluation mode after its first validation, which DDP does not look at.
    """
    return _wrapped(module).training


def _wrapped(module: nn.Module) -> nn.Module:
    """The model in one of torch's wrappers, or the model itself."""
    if type(module).__name__ in WRAPPERS:
        return next(module.children(), module)
    return module


def modules() -> list[nn.Module]:
    """All modules of the process."""
    # Not those that are just being made.
    return [one for one in alive.objects(nn.Module) if "_modules" in one.__dict__]


def tensors_among(values: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors among the arguments, including lists and dictionaries."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (dict, list, tuple)):
            several = value.values() if isinstance(value, dict) else value
            found += [one for one in several if isinstance(one, torch.Tensor)]
    return found
