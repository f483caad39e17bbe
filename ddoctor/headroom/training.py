"""Steps of a training at any micro-batch, on all ranks, of which each may run out of memory.

A step is tried in two passes. First each rank takes it alone, without the exchange of gradients:
who runs out of memory then leaves nobody waiting, and all agree over the store what came of it.
DDP's buckets are there already, so that the exchange takes nothing more that torch allocates. Only
what all ranks got through alone is done with the exchange. Should a rank still run out of memory
there, the others wait for it in an all-reduce that nothing but its own part ends: gloo has no way
to abort one, and NCCL's ends the communicator. So that rank goes on with the all-reduces that are
left, on zeros, and then all agree again.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from ddoctor.errors import DoctorError
from ddoctor.headroom.devices import Gpu, Meter, Played
from ddoctor.headroom.lines import Lines
from ddoctor.headroom.work import Work

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ddoctor.harness import World

# DDP puts its buckets into the order of the first backward pass before the second forward pass.
SETTLED = 2


class Use(NamedTuple):
    """What one step took on one rank."""

    allocated: int
    """Bytes at the peak."""
    reserved: int
    retries: int
    seconds: float


class Training:
    """One workload on all ranks together."""

    def __init__(self, world: World, device: Played | Gpu, work: Work, lines: Lines) -> None:
        self._world, self._device, self._work = world, device, work
        self._has_states = False
        self._smallest = 0
        # Of what this rank got through alone: the exchange has operators of its own.
        self._lines = lines
        self._held: Sequence[int] = ()
        self._exchange = Exchange(world) if world.size > 1 else None
        self._model = self._wrapped()

    def alone(self, samples: int) -> tuple[Use | None, ...]:
        """A step of each rank on its own, by rank; None: it ran out of memory."""
        mine = self._tried(lambda: self._first_steps(samples))
        if mine is not None:
            self._lines.record(samples, self._held)
        used = self._all(mine)
        if None not in used:
            self._smallest = min(samples, self._smallest or samples)
        return used

    def together(self, samples: int) -> tuple[Use | None, ...]:
        """The same with the exchange of gradients; all ranks have got through it alone."""
        self._settle()
        return self._exchanged(samples, watched=True)

    def seconds(self, samples: int, steps: int) -> list[float]:
        """Of each step with the exchange, on the slowest rank; fewer than asked for where a rank
        ran out of memory."""
        self._settle()
        found: list[float] = []
        for _ in range(steps):
            used = [one for one in self._exchanged(samples, watched=False) if one is not None]
            if len(used) < self._world.size:
                break
            found.append(max(one.seconds for one in used))
        return found

    def _first_steps(self, samples: int) -> Use:
        """From the second step on the optimizer has its states."""
        if not self._has_states:
            self._step(self._work.model, samples, watched=True)
            self._has_states = True
        return self._step(self._work.model, samples, watched=True)

    def _settle(self) -> None:
        """At a size at which no rank has to be helped out."""
        while self._exchange is not None and not self._exchange.settled:
            self._exchanged(self._smallest, watched=False)

    def _exchanged(self, samples: int, *, watched: bool) -> tuple[Use | None, ...]:
        if self._exchange is not None:
            self._exchange.begin()
        mine = self._tried(lambda: self._step(self._model, samples, watched=watched))
        if mine is None and self._exchange is not None:
            self._world.doing("out of memory: the rest of the exchange")
            self._exchange.finish()
        used = self._all(mine)
        if None in used:
            # A reducer that was left in the middle of a backward pass begins no other.
            self._model = self._wrapped()
        return used

    def _step(self, model: nn.Module, samples: int, *, watched: bool) -> Use:
        doing, work = self._world.doing, self._work
        begin = time.perf_counter()
        # What the workload makes lies on the rank's device.
        with self._watched() if watched else nullcontext(Meter()) as meter, self._world.device:
            doing(f"{samples} samples, forward")
            loss = _loss(work, model, samples)
            doing(f"{samples} samples, backward")
            loss.backward()  # type: ignore[no-untyped-call]
            del loss
            if self._exchange is not None:
                self._demand_gradients()
            doing(f"{samples} samples, optimizer")
            work.optimizer.step()
            work.optimizer.zero_grad()
            self._synchronize()
        self._held = meter.held
        seconds = time.perf_counter() - begin
        return Use(max(meter.held, default=0), meter.reserved, meter.retries, seconds)

    def _demand_gradients(self) -> None:
        """Of all that is trained, since DDP waits for each of them."""
        every = self._work.model.named_parameters()
        without = [name for name, one in every if one.requires_grad and one.grad is None]
        if without:
            more = f" and {len(without) - 1} more" if len(without) > 1 else ""
            raise DoctorError(
                f"the loss of --workload does not depend on {without[0]}{more}: have the workload "
                "call requires_grad_(False) on what is not trained"
            )

    def _watched(self) -> AbstractContextManager[Meter]:
        work, exchange = self._work, self._exchange
        if exchange is None:
            return self._device.watch(work.model, work.optimizer, (), 0)
        every = sum(one.nbytes for one in work.model.parameters() if one.requires_grad)
        unseen = every - sum(one.nbytes for one in exchange.buckets)
        return self._device.watch(work.model, work.optimizer, exchange.buckets, unseen)

    def _tried(self, step: Callable[[], Use]) -> Use | None:
        try:
            return step()
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
        # Outside of the handler, where the traceback no longer holds the step's tensors.
        self._work.model.zero_grad()
        if not self._has_states:
            # The step may have made some of them only.
            self._work.optimizer.state.clear()
        gc.collect()
        return None

    def _all(self, mine: Use | None) -> tuple[Use | None, ...]:
        return tuple(
            None if row is None else Use(*row) for row in self._world.gather(mine and list(mine))
        )

    def _wrapped(self) -> nn.Module:
        if self._exchange is None:
            return self._work.model
        from torch.nn.parallel import DistributedDataParallel

        self._model = self._work.model
        gc.collect()  # the hooks of one that was there before go with it
        self._world.doing("wrapping the model")
        model = DistributedDataParallel(self._work.model)
        # A broadcast of buffers before the forward pass would be one more to wait in.
        model.require_forward_param_sync = False
        self._exchange.serve(model)
        return model

    def _synchronize(self) -> None:
        if self._world.on_gpu:
            import torch

            torch.cuda.synchronize(self._world.device)


class Exchange:
    """DDP's all-reduces, in their order, so that a rank can take its part in those that are left.

    Which these are is known from the step before.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen: list[Tensor] = []
        self._known: list[Tensor] = []
        self._steps = 0

    @property
    def settled(self) -> bool:
        """Whether the buckets are known, and stay as they are."""
        return self._steps >= SETTLED

    @property
    def buckets(self) -> Sequence[Tensor]:
        """As they are from then on; empty before."""
        return (self._seen or self._known) if self.settled else ()

    def serve(self, model: Any) -> None:
        """All of the exchange of this model, from its first step on."""
        self._seen, self._known, self._steps = [], [], 0
        # torch looks at the annotations of a function, as which it wants no text.
        model.register_comm_hook(self, lambda exchange, bucket: exchange.reduce(bucket))

    def begin(self) -> None:
        """A step begins."""
        self._known, self._seen = self._seen, []
        self._steps += 1

    def reduce(self, bucket: Any) -> Any:
        """The mean over all ranks, as DDP itself would have it; a future."""
        import torch.distributed as dist
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        self._seen.append(bucket.buffer())
        return allreduce_hook(dist.group.WORLD, bucket)  # type: ignore[arg-type]

    def finish(self) -> None:
        """What the others still wait for in this step."""
        import torch
        import torch.distributed as dist

        for bucket in self._known[len(self._seen) :]:
            dist.all_reduce(torch.zeros_like(bucket))
        self._seen = self._known


def out_of_memory(error: RuntimeError) -> bool:
    """Whether a device had no more; libraries beside the allocator say so in other words."""
    import torch

    if isinstance(error, torch.cuda.OutOfMemoryError):
        return True
    return bool(import_module("accelerate.utils.memory").should_reduce_batch_size(error))


def _loss(work: Work, model: nn.Module, samples: int) -> Tensor:
    from torch import Tensor

    loss = work.loss(model, samples)
    if not isinstance(loss, Tensor):
        raise DoctorError(
            f"loss(model, samples) of --workload returned {type(loss).__name__}: return a tensor"
        )
    return loss
