"""Blocks as torch.compile runs them, each compiled by itself.

AOTAutograd traces a block with inductor's decompositions, and torch's min-cut partitioner decides
what the forward pass keeps for the backward pass (torch/_inductor/compile_fx.py, partition_fn).
Dynamo has no part in it: it compiles nothing while a dispatch mode watches the operators.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import active_fake_mode
from torch._inductor.decomposition import select_decomp_table
from torch.autograd.graph import saved_tensors_hooks
from torch.fx import GraphModule
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_unflatten

from ddoctor.errors import DoctorError
from ddoctor.forecast.model.blueprint import said
from ddoctor.forecast.model.repeating import described
from ddoctor.memory_tracking.fusion import Kernels
from ddoctor.memory_tracking.tracker import ShardedTracker, Tracker

Compiled = Callable[[dict[str, Tensor], list[Tensor]], Any]


class Compiler:
    """Compiles blocks; equal ones share their graphs."""

    def __init__(self) -> None:
        self.tracker: Tracker | ShardedTracker
        """Sees what the graphs write to memory; set by the caller before a block runs."""
        self._traced: dict[Hashable, Compiled] = {}

    def compile(self, block: nn.Module) -> None:
        """Compile a block's forward pass, within the hooks that later checkpoint or shard it."""
        forward, kind = block.forward, repr(described(block))

        @wraps(forward)
        def run(*args: Any, **kwargs: Any) -> Any:
            owned = {**dict(block.named_parameters()), **dict(block.named_buffers())}
            leaves, form = tree_flatten((args, kwargs))
            tensors = [one for one in leaves if isinstance(one, Tensor)]
            others = [None if isinstance(one, Tensor) else one for one in leaves]
            key = (kind, str(form), repr(others), *map(_layout, tensors), torch.is_grad_enabled())
            if key not in self._traced:
                places = [place for place, one in enumerate(leaves) if isinstance(one, Tensor)]
                body = _Body(block, forward)

                def called(owned: dict[str, Tensor], given: list[Tensor]) -> Any:
                    whole = list(others)
                    for place, one in zip(places, given, strict=True):
                        whole[place] = one
                    names = {f"block.{name}": one for name, one in owned.items()}
                    positional, named = tree_unflatten(whole, form)
                    return torch.func.functional_call(body, names, positional, named)

                name = type(block).__name__
                self._traced[key] = _traced(called, owned, tensors, self.tracker, name)
            return self._traced[key](owned, tensors)

        block.forward = run


class _Body(nn.Module):
    """A block's own forward pass, without the hooks around it."""

    def __init__(self, block: nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.block, self._forward = block, forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._forward(*args, **kwargs)


def _traced(
    called: Compiled,
    owned: dict[str, Tensor],
    tensors: list[Tensor],
    tracker: Tracker | ShardedTracker,
    name: str,
) -> Compiled:
    def kernels(gm: GraphModule, example_inputs: Any) -> Callable[[list[Any]], Any]:
        def run(values: list[Any]) -> Any:
            return Kernels(gm, tracker).boxed_run(values)

        # Then AOTAutograd hands over its only references to the saved tensors.
        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    found = aot_function(
        called,
        kernels,
        partition_fn=partial(min_cut_rematerialization_partition, compiler="inductor"),
        decompositions=select_decomp_table(),
        num_params_buffers=len(owned),
    )
    with _unwatched(tracker):
        try:
            # The first call traces, and its arguments live as long as the graphs.
            found({name: _alike(one) for name, one in owned.items()}, [*map(_alike, tensors)])
        except Exception as error:  # what the block's own code does may fail to trace
            raise DoctorError(
                f"{name} cannot be compiled as one graph ({said(error)}): leave out --compile"
            ) from None
    return found


@contextmanager
def _unwatched(tracker: Tracker | ShardedTracker) -> Iterator[None]:
    """Run on the same fake tensors, and let nothing see it that watches or checkpoints the step."""
    mode, modules = active_fake_mode(), tracker._mod_tracker
    dtype, enabled = torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu")
    assert mode is not None
    modules.__exit__(None, None, None)  # type: ignore[no-untyped-call]
    try:
        with (
            _disable_current_modes(),
            mode,
            # Only the innermost hooks are called.
            saved_tensors_hooks(lambda one: one, lambda one: one),
            # The copies of weights that are made while it traces belong to no step.
            torch.autocast("cpu", dtype, enabled=enabled, cache_enabled=False),
        ):
            yield
    finally:
        modules.__enter__()  # type: ignore[no-untyped-call]


def _alike(one: Tensor) -> Tensor:
    made = torch.empty_strided(one.shape, one.stride(), dtype=one.dtype)
    return made.requires_grad_(one.requires_grad)


def _layout(one: Tensor) -> tuple[Any, ...]:
    return tuple(one.shape), one.dtype, one.stride(), one.requires_grad
