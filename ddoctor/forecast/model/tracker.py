"""torch's memory tracker, made to tell when the peak comes, and what no tensor shows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import (
    _TOTAL_KEY,
    MemTracker,
    _RefType,
    _State,
    _UpdateType,
    _WeakRefInfo,
)
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

CONVOLUTION, CONVOLUTION_BACKWARD = (
    torch.ops.aten.convolution.default,
    torch.ops.aten.convolution_backward.default,
)


class _Peak(MemTracker):  # type: ignore[no-untyped-call]
    """What lies in memory at the peak of a training step, and when that is."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.phase = ""
        """Of the step, as whoever runs it calls it."""
        self.moment: tuple[str, str] = "", ""
        """Phase and module of the peak."""
        self.beside = 0
        """Bytes at the peak that an operator had for itself."""
        self.sizes: list[tuple[int, int]] = []
        """What was allocated, as `ddoctor.forecast.allocator.replay` takes it."""
        self._own = 0

    def peak(self) -> Mapping[str, int]:
        """Bytes by torch's names of what they are for."""
        (parts,) = self._peak_mem_snap.values()
        return {
            kind.value if isinstance(kind, _RefType) else kind: size
            for kind, size in parts.items()
            if kind != _TOTAL_KEY
        }

    def _update_snap(
        self, u_type: _UpdateType, winfo: _WeakRefInfo, *args: Any, **more: Any
    ) -> None:
        if u_type is not _UpdateType.REF:
            size = 0 if u_type is _UpdateType.DEL else winfo.mem_consumed
            self.sizes.append((id(winfo), size))
        super()._update_snap(u_type, winfo, *args, **more)

    def _update_peak_stats(self, peak_state: _State) -> None:
        """Without the statistics of each module, for which every operator would go through all."""
        for device, now in self._curr_mem_snap.items():
            whole = now[_TOTAL_KEY] + self._own
            if self._peak_mem.get(device, 0) < whole:
                self._peak_mem[device] = whole
                self._peak_mem_snap[device] = dict(now)
                self.beside = self._own
                self.moment = self.phase, max(self._mod_tracker.parents, key=len)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._own = _own(func, args)
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        finally:
            self._own = 0


class Tracker(_Peak):  # type: ignore[no-untyped-call]
    """Of a model that each rank has whole."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, inputs: Iterable[Tensor]) -> None:
        super().__init__()
        for parameter in model.parameters():
            # torch's tracker wants to hook all of them, and a frozen one takes no hook.
            if not parameter.requires_grad:
                nothing = RemovableHandle(OrderedDict())
                self._param_to_grad_hook_handles[parameter] = nothing, nothing
        self.track_external(model, optimizer, *inputs)

    def _pre_bw_hook(self, module: nn.Module | None, args: Any) -> None:
        # A loss that was made within the forward pass is gone by then.
        if module is not None:
            super()._pre_bw_hook(module, args)

    def _post_bw_hook(self, module: nn.Module | None, args: Any) -> None:
        if module is not None:
            super()._post_bw_hook(module, args)


class ShardedTracker(_Peak, FSDPMemTracker):  # type: ignore[no-untyped-call]
    """Of a model that FSDP2 has spread."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, inputs: Iterable[Tensor]) -> None:
        super().__init__(model, optimizer)
        self.track_inputs(tuple(inputs))


def _own(func: Any, args: Any) -> int:
    """What a convolution on a CPU has for itself, beyond what it returns.

    oneDNN copies inputs and weights into blocks of its own, and computes into such a block (the
    allocations that torch 2.13's profiler shows). Tensors in channels_last are used as they are.
    """
    if func is CONVOLUTION:
        inputs, weights = args[0], args[1]
        if _blocked(inputs):
            outputs = func(*args).nbytes
            return int(max(inputs.nbytes + weights.nbytes, outputs))
    if func is CONVOLUTION_BACKWARD:
        gradient, inputs, weights, wanted = args[0], args[1], args[2], args[-1]
        if _blocked(inputs):
            of_weights = inputs.nbytes if wanted[1] else weights.nbytes
            return int(gradient.nbytes + of_weights)
    return 0


def _blocked(inputs: Tensor) -> bool:
    return inputs.dim() > 3 and not inputs.is_contiguous(memory_format=torch.channels_last)
