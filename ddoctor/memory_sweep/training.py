"""Runs training steps of any micro-batch on all ranks, each of which may run out of memory.

A trial has two passes. First each rank runs the step alone, without communication: a rank that runs
out of memory blocks no other, and all agree on the result over the store. The buffers for
communication already exist, so the second pass allocates nothing more in torch.

Only a size that all ranks completed alone is run with communication. If a rank still runs out of
memory there, the others wait for it in a collective that only this rank can complete: gloo cannot
abort a collective, and NCCL's abort ends the communicator. So that rank runs the remaining
collectives on zeros, and then all agree again.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib import import_module
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ddoctor.errors import DoctorError
from ddoctor.memory_sweep.devices import DeviceMemory
from ddoctor.memory_sweep.exchange import Exchange
from ddoctor.memory_sweep.search import MemoryLines
from ddoctor.memory_sweep.work import Shape
from ddoctor.memory_tracking.operators import Meter
from ddoctor.probing.world import ProbeWorld


class Use(NamedTuple):
    """The memory of one step on one rank."""

    allocated: int
    """Bytes at the peak."""
    reserved: int
    retries: int
    seconds: float


class TrainingSteps:
    """Steps of one workload on all ranks."""

    def __init__(
        self,
        world: ProbeWorld,
        device: DeviceMemory,
        exchange: Exchange,
        lines: MemoryLines,
    ) -> None:
        self._world, self._device, self._exchange = world, device, exchange
        self._has_states = False
        self._smallest: Shape | None = None
        self.lines = lines
        """Of the steps that this rank runs alone: communication adds operators."""
        self._held: Sequence[int] = ()
        exchange.renew()

    def alone(self, shape: Shape, size: int) -> tuple[Use | None, ...]:
        """Run a step of each rank alone; return the memory by rank, None: out of memory.

        ``size``: the step's size in the lines.
        """
        mine = self._tried(lambda: self._first_steps(shape))
        if mine is not None:
            self.lines.record(size, self._held)
        used = self._all(mine)
        if None not in used:
            self._smallest = min(shape, self._smallest or shape)
        return used

    def together(self, shape: Shape) -> tuple[Use | None, ...]:
        """Run the step with communication, after all ranks completed it alone."""
        self._settle()
        return self._exchanged(shape, watched=True)

    def seconds(self, shape: Shape, steps: int) -> list[float]:
        """Return the seconds of each step with communication, on the slowest rank.

        There are fewer than ``steps`` if a rank ran out of memory.
        """
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
        """Run steps until the collectives are final, at a size at which every rank completes."""
        if not self._has_states and (smallest := self._smallest) is not None:
            # Only this rank knows that it built its model again.
            self._tried(lambda: self._first_steps(smallest))
        while not self._exchange.settled:
            assert self._smallest is not None
            self._exchanged(self._smallest, watched=False)

    def _exchanged(self, shape: Shape, *, watched: bool) -> tuple[Use | None, ...]:
        # Nothing here may keep a reference to the model, which is built again if the step fails.
        mine = self._tried(lambda: self._step(self._exchange.together(), shape, watched=watched))
        if mine is None:
            self._world.doing("out of memory: completing the collectives")
            self._exchange.finish()
        used = self._all(mine)
        if None in used:
            self._exchange.renew()
        return used

    def _step(self, model: nn.Module, shape: Shape, *, watched: bool) -> Use:
        doing, exchange = self._world.doing, self._exchange
        of = "" if shape.tokens is None else f" of {shape.tokens} tokens"
        what = f"{shape.samples} samples{of}"
        begin = time.perf_counter()
        watch = self._device.watch(exchange) if watched else nullcontext(Meter())
        # The workload creates its tensors on the rank's device.
        with watch as meter, self._world.device:
            doing(f"{what}, forward")
            loss = exchange.work.loss(model, *shape.arguments)
            if not isinstance(loss, Tensor):
                raise DoctorError(
                    f"loss(model, samples) of --workload returned {type(loss).__name__}: return a "
                    "tensor"
                )
            doing(f"{what}, backward")
            loss.backward()  # type: ignore[no-untyped-call]
            del loss
            exchange.demand_gradients()
            doing(f"{what}, optimizer")
            exchange.work.optimizer.step()
            exchange.work.optimizer.zero_grad()
            if self._world.on_gpu:
                torch.cuda.synchronize(self._world.device)
        self._held = meter.held
        seconds = time.perf_counter() - begin
        return Use(max(meter.held, default=0), meter.reserved, meter.retries, seconds)

    def _tried(self, step: Callable[[], Use]) -> Use | None:
        try:
            return step()
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
        # Outside of the handler, where the traceback no longer holds the step's tensors.
        self._has_states &= self._exchange.forget()
        if not self._has_states:
            # The step may have created only some of them.
            self._exchange.work.optimizer.state.clear()
        gc.collect()
        return None

    def _all(self, mine: Use | None) -> tuple[Use | None, ...]:
        return tuple(
            None if row is None else Use(*row) for row in self._world.gather(mine and list(mine))
        )


def out_of_memory(error: RuntimeError) -> bool:
    """Whether a device is out of memory; libraries other than the allocator use other words."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return True
    return bool(import_module("accelerate.utils.memory").should_reduce_batch_size(error))
