"""Steps of a training at any micro-batch, on all ranks, of which each may run out of memory.

A step is tried in two passes. First each rank takes it alone, without the exchange: who runs out of
memory then leaves nobody waiting, and all agree over the store what came of it. What the exchange
needs is there already, so that it takes nothing more that torch allocates. Only what all ranks got
through alone is done with the exchange. Should a rank still run out of memory there, the others
wait for it in a collective that nothing but its own part ends: gloo has no way to abort one, and
NCCL's ends the communicator. So that rank goes on with the collectives that are left, on zeros, and
then all agree again.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from ddoctor.errors import DoctorError
from ddoctor.memory_sweep.devices import GpuMemory, Meter, SimulatedMemory
from ddoctor.memory_sweep.exchange import Exchange
from ddoctor.memory_sweep.lines import MemoryLines
from ddoctor.memory_sweep.work import Shape, Workload

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ddoctor.probing.world import ProbeWorld


class Use(NamedTuple):
    """What one step took on one rank."""

    allocated: int
    """Bytes at the peak."""
    reserved: int
    retries: int
    seconds: float


class TrainingSteps:
    """One workload on all ranks together."""

    def __init__(
        self,
        world: ProbeWorld,
        device: SimulatedMemory | GpuMemory,
        exchange: Exchange,
        lines: MemoryLines,
    ) -> None:
        self._world, self._device, self._exchange = world, device, exchange
        self._has_states = False
        self._smallest: Shape | None = None
        self.lines = lines
        """Of what this rank gets through alone: the exchange has operators of its own."""
        self._held: Sequence[int] = ()
        exchange.renew()

    def alone(self, shape: Shape, size: int) -> tuple[Use | None, ...]:
        """A step of each rank on its own, by rank; None: it ran out of memory.

        ``size``: by which the lines know it.
        """
        mine = self._tried(lambda: self._first_steps(shape))
        if mine is not None:
            self.lines.record(size, self._held)
        used = self._all(mine)
        if None not in used:
            self._smallest = min(shape, self._smallest or shape)
        return used

    def together(self, shape: Shape) -> tuple[Use | None, ...]:
        """The same with the exchange of gradients; all ranks have got through it alone."""
        self._settle()
        return self._exchanged(shape, watched=True)

    def seconds(self, shape: Shape, steps: int) -> list[float]:
        """Of each step with the exchange, on the slowest rank; fewer than asked for where a rank
        ran out of memory."""
        self._settle()
        found: list[float] = []
        for _ in range(steps):
            used = [one for one in self._exchanged(shape, watched=False) if one is not None]
            if len(used) < self._world.size:
                break
            found.append(max(one.seconds for one in used))
        return found

    def _first_steps(self, shape: Shape) -> Use:
        """From the second step on the optimizer has its states."""
        if not self._has_states:
            self._step(self._exchange.apart, shape, watched=True)
            self._has_states = True
        return self._step(self._exchange.apart, shape, watched=True)

    def _settle(self) -> None:
        """At a size at which no rank has to be helped out."""
        if not self._has_states and (smallest := self._smallest) is not None:
            # This rank has made its model anew, and alone knows it.
            self._tried(lambda: self._first_steps(smallest))
        while not self._exchange.settled:
            assert self._smallest is not None
            self._exchanged(self._smallest, watched=False)

    def _exchanged(self, shape: Shape, *, watched: bool) -> tuple[Use | None, ...]:
        # Nothing here may hold the model, which is made anew where the step fails.
        mine = self._tried(lambda: self._step(self._exchange.together(), shape, watched=watched))
        if mine is None:
            self._world.doing("out of memory: the rest of the exchange")
            self._exchange.finish()
        used = self._all(mine)
        if None in used:
            self._exchange.renew()
        return used

    def _step(self, model: nn.Module, shape: Shape, *, watched: bool) -> Use:
        doing, work = self._world.doing, self._exchange.work
        of = "" if shape.tokens is None else f" of {shape.tokens} tokens"
        what = f"{shape.samples} samples{of}"
        begin = time.perf_counter()
        # What the workload makes lies on the rank's device.
        with self._watched() if watched else nullcontext(Meter()) as meter, self._world.device:
            doing(f"{what}, forward")
            loss = _loss(work, model, shape)
            doing(f"{what}, backward")
            loss.backward()  # type: ignore[no-untyped-call]
            del loss
            self._exchange.demand_gradients()
            doing(f"{what}, optimizer")
            work.optimizer.step()
            work.optimizer.zero_grad()
            self._synchronize()
        self._held = meter.held
        seconds = time.perf_counter() - begin
        return Use(max(meter.held, default=0), meter.reserved, meter.retries, seconds)

    def _watched(self) -> AbstractContextManager[Meter]:
        exchange, work = self._exchange, self._exchange.work
        return self._device.watch(work.model, work.optimizer, exchange.buckets, exchange.unseen)

    def _tried(self, step: Callable[[], Use]) -> Use | None:
        try:
            return step()
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
        # Outside of the handler, where the traceback no longer holds the step's tensors.
        self._has_states &= self._exchange.forget()
        if not self._has_states:
            # The step may have made some of them only.
            self._exchange.work.optimizer.state.clear()
        gc.collect()
        return None

    def _all(self, mine: Use | None) -> tuple[Use | None, ...]:
        return tuple(
            None if row is None else Use(*row) for row in self._world.gather(mine and list(mine))
        )

    def _synchronize(self) -> None:
        if self._world.on_gpu:
            import torch

            torch.cuda.synchronize(self._world.device)


def out_of_memory(error: RuntimeError) -> bool:
    """Whether a device had no more; libraries beside the allocator say so in other words."""
    import torch

    if isinstance(error, torch.cuda.OutOfMemoryError):
        return True
    return bool(import_module("accelerate.utils.memory").should_reduce_batch_size(error))


def _loss(work: Workload, model: nn.Module, shape: Shape) -> Tensor:
    from torch import Tensor

    loss = work.loss(model, *shape.told)
    if not isinstance(loss, Tensor):
        raise DoctorError(
            f"loss(model, samples) of --workload returned {type(loss).__name__}: return a tensor"
        )
    return loss
