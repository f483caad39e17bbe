"""Measures the memory of a step after each operator, on CPU tensors or on a GPU."""

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
    """A tracker with a memory limit: a step runs out of memory as on a GPU."""

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
        """Bytes after each operator."""

    def _register_global_optimizer_hook(self) -> None:
        """Register no hook: the owner of memory is irrelevant, and tracking may begin in one."""

    def _pre_fw_hook(self, module: nn.Module, inputs: Any) -> None:
        """Track no modules: with tracking, a step could call a model only once."""

    def _post_fw_hook(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        """Do nothing, as above."""

    def _pre_bw_hook(self, module: nn.Module | None, args: Any) -> None:
        """Do nothing, as above."""

    def _post_bw_hook(self, module: nn.Module | None, args: Any) -> None:
        """Do nothing, as above."""

    def _update_peak_stats(self, peak_state: _State) -> None:
        held = sum(now[_TOTAL_KEY] for now in self._curr_mem_snap.values()) + self._own
        self.held.append(held)
        if held > self._limit:
            raise torch.cuda.OutOfMemoryError(
                f"CPU tensors, out of memory. {held} bytes are needed of {self._limit}"
            )


class Allocated(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the statistics of CUDA's caching allocator."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self.held: list[int] = []
        """Peak bytes of each operator."""
        self.reserved = 0
        """The allocator's peak of reserved bytes."""
        torch.cuda.reset_peak_memory_stats(device)
        self._before = self._retries(torch.cuda.memory_stats(device))
        self.retries = 0
        """Number of times that it freed its cache because the device was full."""

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
