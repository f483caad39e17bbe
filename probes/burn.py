"""TFLOP/s that each rank sustains under constant load, and whether equal products stay equal."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import torch

from ddoctor.collect import CannotSee
from ddoctor.collect.gpus import clocks_limited_by
from ddoctor.collect.nvml import NvmlDevice, session
from ddoctor.evidence.probes import Burn, Burning
from ddoctor.probing.world import ProbeWorld

ONLY_IF_NAMED = True

# A line is written so often that nobody takes a long burn for a hang.
STEP_SECONDS = 1.0
# Between two looks at the clock: long enough that a GPU does not run dry meanwhile.
BATCH_SECONDS = 0.1

# A curve that a page can show; of very many ranks fewer points, so that all of them travel.
POINTS = 60
FEWEST_POINTS = 12
POINTS_OF_ALL = 2**16

# The same number of bits, to compare them: NaN is not equal to itself, and -0.0 is to 0.0.
BITS = {2: torch.int16, 4: torch.int32}

# Sums of 1024 products of whole numbers up to this are exact in float32, in whatever order a CPU's
# library adds them with the threads that it has at the moment.
WHOLE = 64


def measure(world: ProbeWorld) -> Burn | None:
    """Every rank multiplies the same factors with the same kernel, independently."""
    # Two products and two factors, which are float32 at first: twice as wide.
    size = world.square(8)
    product = _Product(world, size)
    steps = max(1, round(world.burn / STEP_SECONDS))
    points = min(steps, POINTS, max(FEWEST_POINTS, POINTS_OF_ALL // world.size))
    places = world.places()
    world.meet()
    mine = _burn(world, product, steps, points)
    told = world.collect(mine)
    if world.rank > 0:
        return None
    return Burn(
        dtype=str(world.dtype).removeprefix("torch."),
        size=size,
        seconds=world.burn,
        ranks=tuple(Burning(place=place, **row) for place, row in zip(places, told, strict=True)),
    )


class _Product:
    """One product, repeated and compared with the first."""

    def __init__(self, world: ProbeWorld, size: int) -> None:
        device = world.device
        generator = torch.Generator(device).manual_seed(world.rank)
        factors = torch.empty(2, size, size, device=device)
        if world.on_gpu:
            factors.normal_(generator=generator)  # whole numbers draw less power
        else:
            factors.random_(-WHOLE, WHOLE, generator=generator)
        left, right = factors.to(world.dtype)
        self._out = torch.empty(size, size, device=device, dtype=world.dtype)
        self._work = partial(torch.mm, left, right, out=self._out)
        self._wrong = torch.zeros((), dtype=torch.int64, device=device)
        self._finish: Callable[[], None] = (
            partial(torch.cuda.synchronize, device) if world.on_gpu else lambda: None
        )
        # The first ones set up the library, and may take another way.
        for _ in range(2):
            self._work()
        self._first = self._out.clone()
        self._bits = BITS[self._out.element_size()]
        self._found: tuple[float | None, float | None] = (None, None)
        begin = time.perf_counter()
        self.make(1)
        one = time.perf_counter() - begin
        self.batch = max(1, int(BATCH_SECONDS / one))
        self.work = 2 * size**3 / 1e12

    def make(self, times: int) -> int:
        """Compute it ``times`` times; returns how many differed."""
        first, out = self._first.view(self._bits), self._out.view(self._bits)
        self._wrong.zero_()
        for _ in range(times):
            self._work()
            self._wrong += (first != out).any()
        self._finish()
        return int(self._wrong)

    def difference(self) -> tuple[float | None, float | None]:
        """The first differing number of the last product: its first value and its current one."""
        at = (self._first.view(self._bits) != self._out.view(self._bits)).nonzero()
        if not len(at):
            return None, None
        row, column = at[0].tolist()
        numbers = (float(self._first[row, column]), float(self._out[row, column]))
        was, now = (number if math.isfinite(number) else None for number in numbers)
        return was, now


def _burn(world: ProbeWorld, product: _Product, steps: int, points: int) -> dict[str, object]:
    """The fields of this rank's ``Burning``."""
    made, spent = [0] * points, [0.0] * points
    temperatures: dict[int, int] = {}
    limited_by: dict[str, None] = {}
    wrong, wrong_after = 0, None
    numbers: tuple[float | None, float | None] = (None, None)
    with ExitStack() as stack:
        gpu = _gpu(world, stack)
        begin = before = time.perf_counter()
        for step in range(steps):
            world.doing(f"burning, second {step + 1} of {steps}")
            point = step * points // steps
            until = begin + world.burn * (step + 1) / steps
            while True:
                differed = product.make(product.batch)
                now = time.perf_counter()
                made[point] += product.batch
                spent[point] += now - before
                before = now
                if differed and not wrong:
                    wrong_after, numbers = now - begin, product.difference()
                wrong += differed
                if now >= until:
                    break
            if gpu is not None:
                import pynvml

                limited_by |= dict.fromkeys(clocks_limited_by(gpu) or ())
                degrees = gpu.ask("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU)
                if degrees is not None:
                    temperatures[point] = degrees
    return {
        "rates": [
            float(f"{product.work * number / seconds:.4g}")
            for number, seconds in zip(made, spent, strict=True)
        ],
        "products": sum(made),
        "wrong": wrong,
        "wrong_after": wrong_after,
        "expected": numbers[0],
        "got": numbers[1],
        "temperatures": list(temperatures.values()),
        "limited_by": list(limited_by),
    }


def _gpu(world: ProbeWorld, stack: ExitStack) -> NvmlDevice | None:
    """This rank's GPU in NVML; None: not available."""
    if not world.on_gpu:
        return None
    import pynvml

    bus_id = world.bus_id
    try:
        stack.enter_context(session())
        return NvmlDevice(world.device.index, pynvml.nvmlDeviceGetHandleByPciBusId(bus_id.encode()))
    except (CannotSee, pynvml.NVMLError):
        return None
