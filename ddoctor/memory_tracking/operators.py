"""What a step holds in memory after each of its operators, on CPU tensors or on a GPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._tools.mem_tracker import _TOTAL_KEY, _State
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from ddoctor.memory_tracking.tracker import Tracker


class LimitedTracker(Tracker):  # type: ignore[no-untyped-call]
    """A tracker under which a step has so many bytes, and runs out of memory as on a GPU."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        others: Iterable[Tensor | Optimizer],
        limit: int,
    ) -> None:
        super().__init__(model, optimizer, others)
        self._limit = limit
        self.held: list[int] = []
        """Bytes, operator by operator."""

    def _register_global_optimizer_hook(self) -> None:
        """Whose something is does not matter here, and it may begin within such a hook."""

    def _pre_fw_hook(self, module: nn.Module, inputs: Any) -> None:
        """Nothing of each module: with that a model could be called once a step only."""

    def _post_fw_hook(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        """The same."""

    def _pre_bw_hook(self, module: nn.Module | None, args: Any) -> None:
        """The same."""

    def _post_bw_hook(self, module: nn.Module | None, args: Any) -> None:
        """The same."""

    def _update_peak_stats(self, peak_state: _State) -> None:
        held = sum(now[_TOTAL_KEY] for now in self._curr_mem_snap.values()) + self._own
        self.held.append(held)
        if held > self._limit:
            raise torch.cuda.OutOfMemoryError(
                f"CPU tensors, out of memory. {held} bytes are needed of {self._limit}"
            )


class Allocated(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What CUDA's caching allocator tells."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self.held: list[int] = []
        """The most that each operator held, in bytes."""
        self.reserved = 0
        """The most that the allocator had from the device, in bytes."""
        torch.cuda.reset_peak_memory_stats(device)
        self._before = self._retries(torch.cuda.memory_stats(device))
        self.retries = 0
        """How often it gave back all that was cached, because there was no more."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        told = torch.cuda.memory_stats(self._device)
        self.held.append(told["allocated_bytes.all.peak"])
        self.reserved = max(self.reserved, told["reserved_bytes.all.peak"])
        self.retries = self._retries(told) - self._before
        torch.cuda.reset_peak_memory_stats(self._device)
        return result

    @staticmethod
    def _retries(told: dict[str, Any]) -> int:
        return int(told.get("num_alloc_retries", 0))
