"""What a convolution on a CPU has for itself, beside what it returns.

oneDNN works on copies in an order of its own: blocks of channels. They come from torch's allocator,
and no tensor shows them. The rules here are read off the allocations that torch 2.13's profiler
(``profile_memory``) shows within single convolutions: kernels of 1 to 16, with and without strides
and groups, depthwise, transposed, of one to three dimensions, contiguous and channels_last, in
float32 and bfloat16, with one thread and with two, on a CPU with AVX-512 and without AMX, and on it
with no more than AVX2 (``ONEDNN_MAX_CPU_ISA``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, prod
from typing import Any

import torch
from torch import Tensor

FORWARD, BACKWARD = (
    torch.ops.aten.convolution.default,
    torch.ops.aten.convolution_backward.default,
)
# Channels of a block: as many floats as a register holds.
BLOCK = 16 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 8

# Of a kernel that oneDNN makes code for (jit_avx512_common_conv_kernel.cpp, bwd_weights).
WIDEST = 14


def own(func: Any, args: Sequence[Any]) -> int:
    """Bytes that a call has beside what it returns, at its peak; 0 for what is no convolution."""
    if func is FORWARD:
        inputs, weights, _, *how = args
        return _Convolution(inputs, weights, *how).forward(func(*args).nbytes)
    if func is BACKWARD:
        gradient, inputs, weights, _, *how, (of_inputs, of_weights, _) = args
        return _Convolution(inputs, weights, *how).backward(gradient, of_inputs, of_weights)
    return 0


@dataclass(frozen=True)
class _Convolution:
    inputs: Tensor
    weights: Tensor
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    transposed: bool
    output_padding: Sequence[int]
    groups: int

    @cached_property
    def form(self) -> torch.memory_format | None:
        """The order in which it takes tensors; None: torch itself computes it, without copies."""
        how = (self.stride, self.padding, self.dilation, self.transposed, self.output_padding)
        backend = torch._C._select_conv_backend(self.inputs, self.weights, None, *how, self.groups)
        if backend.name.startswith("Slow"):
            return None
        if self.inputs.dim() == 3:
            return torch.contiguous_format
        return torch._C._conv_determine_backend_memory_format(self.inputs, self.weights, backend)

    def forward(self, outputs: int) -> int:
        if self.form is None:
            return 0
        most = self._through(self.inputs.nbytes, outputs, spreads=self.transposed)
        return self._reordered(self.inputs, self.weights) + most - outputs

    def backward(self, gradient: Tensor, of_inputs: bool, of_weights: bool) -> int:
        if self.form is None:
            return 0
        inputs = self.inputs.nbytes if of_inputs else 0
        most = returned = inputs + (self.weights.nbytes if of_weights else 0)
        if of_inputs:
            most = max(most, self._through(gradient.nbytes, inputs, spreads=not self.transposed))
        if of_weights:
            most = max(most, inputs + self._of_weights(gradient))
        return self._reordered(self.inputs, self.weights, gradient) + most - returned

    def _reordered(self, *tensors: Tensor) -> int:
        """torch's own copies, before any of oneDNN's."""
        form = self.form or torch.contiguous_format
        return sum(one.nbytes for one in tensors if not one.is_contiguous(memory_format=form))

    def _through(self, source: int, target: int, *, spreads: bool) -> int:
        """All that the pass from ``source`` to ``target`` has; ``spreads``: by its strides the
        target is the larger."""
        if self.form is not torch.contiguous_format:
            return target + self.weights.nbytes
        direct = self.channels == (1, 1) and not self._in_half()
        copies = 3 if spreads and max(self.stride) > 1 and not direct else 2
        sums = 0
        if self._in_half() and max(self.weights.shape[2:]) == 1:
            # Of the image at which a thread is.
            sums = self._threads() * 2 * target // self.inputs.shape[0]
        return max(source + self.weights.nbytes + target + sums, copies * target)

    def _of_weights(self, gradient: Tensor) -> int:
        """All that the pass has which makes the gradient of the weights."""
        weights, inputs, samples = self.weights.nbytes, self.inputs.nbytes, self.inputs.shape[0]
        kernel, contiguous = self.weights.shape[2:], self.form is torch.contiguous_format
        depthwise_3x3 = self.channels == (1, 1) and kernel == (3, 3)
        sparse = self.groups > 1 and min(self.channels) < BLOCK and not depthwise_3x3
        if contiguous and sparse:
            return 2 * weights
        if contiguous and kernel[-1] > WIDEST and not self._in_half():
            # By products of matrices: each thread has the columns of an image, and sums.
            numbers = prod(self.weights.shape[1:]) * prod(gradient.shape[2:])
            columns = torch.float32.itemsize * numbers
            return weights + torch.get_num_threads() * (columns + 4 * weights)
        # What of a block is no channel is zeros.
        wide = [ceil(one / BLOCK) * BLOCK / one if sparse else 1 for one in self.channels]
        sums = 0.0
        if self._in_half() and not depthwise_3x3:
            floats = torch.float32.itemsize * self.weights.numel() * wide[0] * wide[1]
            image = (inputs * wide[0] + gradient.nbytes * wide[1]) / samples
            # Threads divide the groups, the rows, the channels of the wider side or those of
            # weights larger than what they are computed from, or else the batch: then each has
            # sums of its own.
            several = (
                self.groups == 1
                and max(self.stride) == 1
                and max(self.channels) <= 2 * min(self.channels)
                and floats <= inputs + gradient.nbytes
            )
            threads = self._threads() if several else 1
            turned = 0 if contiguous and max(kernel) == 1 else image
            sums = threads * (turned + floats)
        elif contiguous and self.groups == 1 and BLOCK == 16 and max(kernel) > 1:
            sums = (self._batches(gradient) - 1) * weights
        if contiguous:
            return int(max(inputs + gradient.nbytes + weights + sums, 2 * weights))
        return int(weights * wide[0] * wide[1] + max(sums, 2 * weights))

    def _batches(self, gradient: Tensor) -> int:
        """Among how many threads the batch is divided for the gradient of the weights in float32.

        As in oneDNN's jit_avx512_common_conv_kernel.cpp, balance(): the way that costs least to
        read and write, with its weights for what is read, its gradient, and the sums.
        """
        threads, samples = torch.get_num_threads(), self.inputs.shape[0]
        blocks = [ceil(one / BLOCK) for one in self.channels]
        sizes = self.inputs.numel() / prod(self.stride), gradient.numel(), self.weights.numel()

        def cost(way: tuple[int, int, int]) -> float:
            batch = ceil(samples / way[0]) / samples
            read, made = (ceil(all / n) / all for all, n in zip(blocks, way[1:], strict=True))
            return (4 * sizes[0] * read + sizes[1] * made) * batch + 8 * sizes[2] * read * made

        ways = (
            (batches, min(blocks[0], threads // batches // made), made)
            for batches in range(1, min(threads, samples) + 1)
            for made in range(1, min(threads // batches, blocks[1]) + 1)
        )
        return min(ways, key=cost)[0]

    @property
    def channels(self) -> tuple[int, int]:
        """Of each group, as the weights have them."""
        return self.weights.shape[1], self.weights.shape[0] // self.groups

    def _threads(self) -> int:
        return min(torch.get_num_threads(), self.inputs.shape[0])

    def _in_half(self) -> bool:
        return self.weights.dtype.itemsize < torch.float32.itemsize
