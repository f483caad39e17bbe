"""What the main thread itself does to a batch, between the loader that gave it and the model."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from time import perf_counter

import torch

from ddoctor.recorder.harmless import harmless
from ddoctor.recorder.tape import REST
from ddoctor.recorder.timeline import Timeline

MOST_TIMES = 20_000


class Preparing:
    """The batches of one loader, on their way to the model."""

    def __init__(self) -> None:
        self.times: deque[tuple[int, float]] = deque(maxlen=MOST_TIMES)
        """Step and seconds of each batch that the main thread works on."""
        self.changes: bool | None = None
        """Whether the model gets other tensors than the loader gave; None: not seen yet."""
        self._given: _Given | None = None
        self._rest = 0.0

    def taken(self, timeline: Timeline, tensors: Sequence[torch.Tensor] | None) -> None:
        """A batch came; ``tensors``: all that it holds, None: it is not looked into."""
        if timeline.phase != REST or (tensors is None and not self.changes):
            return
        self._given = None if tensors is None else _given(tensors)
        self._rest = timeline.seconds[REST] + perf_counter() - timeline.last
        timeline.preparing = self

    def arrived(self, timeline: Timeline, tensors: Sequence[torch.Tensor]) -> None:
        """The model is called with these, and its phase has begun."""
        timeline.preparing = None
        if self._given is not None:
            self.changes = bool(tensors) and not any(map(self._given.has, tensors))
        if self.changes:
            seconds = timeline.seconds[REST] - self._rest
            self.times.append((timeline.done, max(0.0, seconds)))


class _Given:
    """How to recognise the tensors of a batch, without keeping them alive."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._places = {one.untyped_storage().data_ptr() for one in tensors}
        self._kinds = {(one.shape, one.dtype) for one in tensors}

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether it is one of them, a view of one, or may be its copy on a device."""
        if tensor.device.type == "cpu":
            return tensor.untyped_storage().data_ptr() in self._places
        return (tensor.shape, tensor.dtype) in self._kinds


@harmless
def _given(tensors: Sequence[torch.Tensor]) -> _Given:
    """None where one has no storage, say a sparse tensor."""
    return _Given(tensors)
