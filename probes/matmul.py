"""TFLOP/s of each rank in matrix multiplication, all ranks at the same time."""

from __future__ import annotations

from functools import partial

import torch

from ddoctor.evidence.probes import Matmul
from ddoctor.probing.world import ProbeWorld, first_difference

SECONDS = 2.0

# Sums of this many products of -1, 0 and 1 stay below 256 (eight standard deviations), up to where
# bfloat16 holds every whole number: the product is exact, in whatever order it is summed.
EXACT = 2048
CHUNK = 1024


def measure(world: ProbeWorld) -> Matmul | None:
    """Random factors for the timing, because zeros draw less power; integers to verify."""
    dtype = world.dtype
    size = world.square(4)
    generator = torch.Generator(world.device).manual_seed(world.rank)
    left, right = (
        torch.randn(size, size, device=world.device, generator=generator).to(dtype)
        for _ in range(2)
    )
    product = torch.empty(size, size, device=world.device, dtype=dtype)
    work = partial(torch.mm, left, right, out=product)
    seconds = world.rounds(f"matmul of {size}×{size}", work, seconds=SECONDS * world.share_of_time)
    rates = world.rates(2 * size**3 / 1e12, seconds)
    world.doing("matmul, to verify its values")
    mine = _first_wrong(left, right, product, generator)
    wrong = world.wrong_values(product.nbytes, mine)
    if world.rank > 0:
        return None
    return Matmul(dtype=str(dtype).removeprefix("torch."), size=size, rates=rates, wrong=wrong)


def _first_wrong(
    left: torch.Tensor, right: torch.Tensor, product: torch.Tensor, generator: torch.Generator
) -> tuple[float, float] | None:
    """Freivalds' check: (A B) x = A (B x), here exact. Returns the first row sum that differs."""
    depth = min(EXACT, left.shape[1])
    for factor in (left, right):
        factor.random_(-1, 2, generator=generator)
    torch.mm(left[:, :depth], right[:depth], out=product)
    signs = torch.empty(product.shape[1], device=product.device)
    signs.random_(0, 2, generator=generator).mul_(2).sub_(1)
    inner = right[:depth].float() @ signs
    for start in range(0, product.shape[0], CHUNK):
        rows = slice(start, start + CHUNK)
        expected = left[rows, :depth].float() @ inner
        got = product[rows].float() @ signs
        if (found := first_difference(expected, got)) is not None:
            return found
    return None
