"""The time of a step by a roofline of each operator, and the time that the CPU takes to start them.

An operator takes as long as its FLOPs at the rate that products of its size reach, or as its bytes
at the bandwidth that copies reach, whichever is longer. All constants are measurements of single
operators; none is fitted to trainings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ceil

from ddoctor.evidence.known_hardware import GpuModel
from ddoctor.memory_tracking.work import Operator, Product, StepWork

# The CPU's time of an operator: 7 µs in pytorch/pytorch issue 41383, and 3 µs for the start of its
# kernel (meta-pytorch/tritonbench pull request 1017); 2 µs without a kernel (ngimel in that issue).
LAUNCH, VIEW = 10e-6, 2e-6
# The GPU's time of a kernel without work. With it, and LOADED, products of 8 sizes on A100s (Azure)
# are right to 4 % in the median, and of 23 sizes on H100s to 15 % (openxla/xla, service/gpu/model,
# matmul_interpolator_data.h).
KERNEL = 3e-6
# Where no product or copy was published: large products reach 66 to 82 % of the peak for long, and
# triads 83 to 89 % of the bandwidth (gpus.toml).
OF_PEAK, OF_BANDWIDTH = 0.7, 0.85
# In fp32: 83 TFLOP/s of tensor cores are seven times as many as in single precision, on a V100 with
# 15.7 (arXiv 1803.04014).
OF_FLOATS = 0.76
# FlashAttention-2 reaches 50 to 73 % of an A100's peak, least backwards (arXiv 2307.08691),
# and 33 to 35 % of an H100's (Azure; arXiv 2407.08608), whose new tensor cores it does not use.
OF_ATTENTION, OF_ATTENTION_SINCE_HOPPER = 0.5, 0.33
HOPPER = 700e12
"""The peak from which a GPU has such tensor cores, in FLOP/s of half precision."""
# torchao/float8: each factor of a linear layer's product is read for its largest number, fused with
# what makes it (torch.compile), read again and written in a byte; products whose sides are no
# multiples of 16 stay.
CAST, ALIGNED = 3, 16
# cuBLAS's tiles of the result, from the most efficient on (NVIDIA, "Matrix Multiplication
# Background User's Guide", 2.3): smaller ones load more numbers for each product. From 128 × 128
# on, loading keeps up.
TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
FULL = 128 * 128 / (128 + 128)
# A tile begins and ends in the time of so many inner products.
LOADED = 128
# cuBLAS divides long inner dimensions between multiprocessors.
MOST_PARTS, LEAST_INNER = 8, 512
USUAL_MULTIPROCESSORS = 108


@dataclass(frozen=True)
class Roofline:
    """What a GPU reaches.

    Raises:
        ValueError: its peaks or its bandwidth are not known.
    """

    gpu: GpuModel
    tf32: bool = False
    """Products of fp32 numbers use TF32."""
    float8: bool = False
    """Linear layers multiply numbers of half precision in float8."""

    def seconds(self, one: Operator) -> float:
        """Return the seconds of one operator on the GPU."""
        if one.kind == "view":
            return 0.0
        moving = one.moved / self._bandwidth
        if not one.flops:
            return moving + one.kernels * KERNEL
        rate = self._rate(one)
        casting = 0.0
        if one.size is not None:
            rate *= self.filled(one.size, tensor_cores=one.half or self.tf32)
            if self.float8 and self.gpu.fp8 is not None and _in_float8(one, one.size):
                rate *= 1e12 * self.gpu.fp8 / self.peak(half=True)
                factors = one.size.inner * (one.size.rows + one.size.columns)
                casting = CAST * factors / self._bandwidth + 2 * KERNEL
        return max(moving, one.flops / rate) + casting + KERNEL

    def filled(self, size: Product, *, tensor_cores: bool = True) -> float:
        """Return the share of the multiprocessors' time that a product of this size uses.

        Tiles go over its edges, and the last wave of tiles leaves multiprocessors idle (NVIDIA's
        guide, chapter 3). Tensor cores are so fast that they wait for small tiles' numbers.
        """
        number = self.gpu.multiprocessors or USUAL_MULTIPROCESSORS
        best = 0.0
        for high, wide in TILES:
            tiles = size.batch * ceil(size.rows / high) * ceil(size.columns / wide)
            # Small tiles share a multiprocessor.
            slots = number * max(1, TILES[0][0] * TILES[0][1] // (2 * high * wide))
            loading = min(1.0, high * wide / (high + wide) / FULL) if tensor_cores else 1.0
            for parts in range(1, MOST_PARTS + 1):
                inner = size.inner / parts
                if parts > 1 and inner < LEAST_INNER:
                    break
                waves = ceil(tiles * parts / slots) * slots
                used = size.batch * size.rows * size.columns * parts / (waves * high * wide)
                if tensor_cores:
                    used *= loading * inner / (inner + LOADED)
                best = max(best, used)
        return best

    @cached_property
    def _bandwidth(self) -> float:
        if self.gpu.copied is not None:
            return 1e9 * self.gpu.copied
        if self.gpu.memory_bandwidth is None:
            raise ValueError("its bandwidth is not known")
        return 1e9 * OF_BANDWIDTH * self.gpu.memory_bandwidth

    def _rate(self, one: Operator) -> float:
        peak = self.peak(half=one.half)
        if not one.half and not self.tf32:
            return OF_FLOATS * peak
        halves = self.peak(half=True)
        if one.kind == "attention":
            return (OF_ATTENTION_SINCE_HOPPER if halves > HOPPER else OF_ATTENTION) * peak
        sustained = self.gpu.sustained
        return peak * (OF_PEAK if sustained is None else 1e12 * sustained / halves)

    def peak(self, *, half: bool) -> float:
        """Return FLOP/s of products in half precision, or in fp32.

        Raises:
            ValueError: it is not known.
        """
        found = (self.gpu.bf16 or self.gpu.fp16) if half else self.gpu.fp32
        if not half and self.tf32:
            found = self.gpu.tf32
        if found is None:
            raise ValueError("its peak is not known")
        return 1e12 * found


def _in_float8(one: Operator, size: Product) -> bool:
    """Whether it may be the product of a linear layer; that of attention has a batch."""
    sides = (size.rows, size.columns, size.inner)
    return one.half and size.batch == 1 and all(side % ALIGNED == 0 for side in sides)


@dataclass(frozen=True, kw_only=True)
class Phases:
    """Seconds of a step's parts."""

    micro_batch: float
    """Of the forward and the backward pass of one micro-batch."""
    summing: float
    """Of adding the gradients of one more micro-batch."""
    optimizer: float
    """Of the optimizer's step on one shard."""


def phases(work: StepWork, roofline: Roofline, shards: int = 1) -> Phases:
    """Return the seconds of a step's parts, with an optimizer step of one of ``shards``.

    Raises:
        ValueError: the GPU's peaks or its bandwidth are not known.
    """
    end, started = 0.0, 0.0
    for phase in ("forward", "backward"):
        # The CPU runs ahead, as far as it is faster; the GPU waits for what is not yet started.
        started += _starting(work.phases[phase])
        end = max(end + _computing(work.phases[phase], roofline), started)
    optimizer = work.phases["optimizer"]
    updating = max(_computing(optimizer, roofline) / shards, _starting(optimizer))
    added = Operator(kind="other", moved=3 * work.gradients)
    summing = max(roofline.seconds(added), work.tensors * LAUNCH)
    return Phases(micro_batch=end, summing=summing, optimizer=updating)


def _computing(operators: Mapping[Operator, int], roofline: Roofline) -> float:
    return sum(count * roofline.seconds(one) for one, count in operators.items())


def _starting(operators: Mapping[Operator, int]) -> float:
    return sum(
        count * (VIEW if one.kind == "view" else LAUNCH * one.kernels)
        for one, count in operators.items()
    )
