"""Measures the memory of a step after each operator, on CPU tensors or on a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed._tools.mem_tracker import _TOTAL_KEY, _State
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from ddoctor.memory_tracking.tracker import Tracker


@dataclass
class Meter:
    """The memory of a step in bytes, complete once it is over."""

    held: Sequence[int] = ()
    """Allocated bytes after each operator."""
    reserved: int = 0
    """The caching allocator's peak of reserved memory."""
    retries: int = 0
    """Number of times that it freed its cache because the device was full."""


class LimitedTracker(Tracker):  # type: ignore[no-untyped-call]
    """A tracker with a memory limit: a step runs out of memory as on a GPU."""

    retries = 0

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        others: Iterable[Tensor | Optimizer],
        limit: int,
        unseen: int = 0,
    ) -> None:
        """Track these tensors, and count ``unseen`` bytes more."""
        super().__init__(model, optimizer, others)
        self._limit, self._unseen = limit, unseen
        self.held: list[int] = []
        """Bytes after each operator."""

    def __enter__(self) -> LimitedTracker:
        super().__enter__()
        return self

    @property
    def reserved(self) -> int:
        """Return the peak: without an allocator, nothing else is reserved."""
        return max(self.held)

    def _ignore(self, *args: Any) -> None:
        """Track no modules: with tracking, a step could call a model only once.

        Nor optimizers: the owner of memory is irrelevant, and tracking may begin in a step.
        """

    _register_global_optimizer_hook = _ignore
    _pre_fw_hook = _post_fw_hook = _ignore  # type: ignore[assignment]
    _pre_bw_hook = _post_bw_hook = _ignore  # type: ignore[assignment]

    def _update_peak_stats(self, peak_state: _State) -> None:
        held = sum(now[_TOTAL_KEY] for now in self._curr_mem_snap.values())
        held += self._own + self._unseen
        self.held.append(held)
        if held > self._limit:
            raise torch.cuda.OutOfMemoryError(
                f"CPU tensors, out of memory. {held} bytes are needed of {self._limit}"
            )


class Allocated(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the statistics of CUDA's caching allocator, from an empty cache on."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self.held: list[int] = []
        """Peak bytes of each operator."""
        self.reserved = 0
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        self._before = torch.cuda.memory_stats(device).get("num_alloc_retries", 0)
        self.retries = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        told = torch.cuda.memory_stats(self._device)
        self.held.append(told["allocated_bytes.all.peak"])
        self.reserved = max(self.reserved, told["reserved_bytes.all.peak"])
        self.retries = told.get("num_alloc_retries", 0) - self._before
        torch.cuda.reset_peak_memory_stats(self._device)
        return result
