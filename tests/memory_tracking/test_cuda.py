"""What CUDA's kernels keep, on tensors of a CPU that has other kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from ddoctor.forecast.model.step import footprint
from ddoctor.memory_tracking.cuda import as_on_cuda, own
from tests.forecast.model_set import SET
from tests.forecast.on_cpu import footprint as on_cpu
from tests.forecast.ways import AdamW

HALF = torch.bfloat16
SAMPLES, HEADS, LENGTH, SIZE = 2, 8, 64, 32


def heads(number: int = HEADS, dtype: torch.dtype = HALF, size: int = SIZE) -> Tensor:
    return torch.empty(SAMPLES, number, LENGTH, size, dtype=dtype, requires_grad=True)


@contextmanager
def on_cuda() -> Iterator[None]:
    with as_on_cuda(), FakeTensorMode():
        yield


def kernel(query: Tensor, key: Tensor, *, masked: bool = False) -> str:
    """Of the node by which the gradients will come."""
    mask = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool) if masked else None
    made = functional.scaled_dot_product_attention(
        query, key, key, mask, enable_gqa=query.shape[1] != key.shape[1]
    )
    assert made.shape == query.shape
    assert made.grad_fn is not None
    return made.grad_fn.name()


FLOATS = torch.float32
FLASH, EFFICIENT = "ScaledDotProductFlash", "ScaledDotProductEfficient"
# Those of halves are computed in floats.
PRODUCTS = ("UnsafeView", "ToCopy")


@pytest.mark.parametrize(
    ("keys", "dtype", "size", "masked", "name"),
    [
        (HEADS, HALF, SIZE, False, FLASH),
        (2, HALF, SIZE, False, FLASH),
        (HEADS, HALF, 30, False, FLASH),
        (HEADS, HALF, SIZE, True, EFFICIENT),
        (HEADS, HALF, 512, False, EFFICIENT),
        (HEADS, FLOATS, SIZE, False, EFFICIENT),
        (HEADS, FLOATS, SIZE, True, EFFICIENT),
        (HEADS, FLOATS, 30, False, PRODUCTS),
        (2, HALF, SIZE, True, PRODUCTS),
        (2, FLOATS, SIZE, False, PRODUCTS),
    ],
)
def test_the_kernel_of_attention(
    keys: int, dtype: torch.dtype, size: int, masked: bool, name: str | tuple[str, ...]
) -> None:
    with on_cuda():
        query, key = heads(HEADS, dtype, size), heads(keys, dtype, size)
        assert kernel(query, key, masked=masked).startswith(name)


def test_a_permuted_bias_has_no_fused_kernel() -> None:
    """Position biases come from an embedding whose last dimension is the head, as T5's do."""
    with on_cuda():
        query = heads()
        bias = torch.empty(LENGTH, LENGTH, HEADS, dtype=HALF).permute(2, 0, 1).unsqueeze(0)
        for mask, name in ((bias, PRODUCTS), (bias.contiguous(), EFFICIENT)):
            made = functional.scaled_dot_product_attention(query, query, query, mask)
            assert made.grad_fn is not None
            assert made.grad_fn.name().startswith(name)


def test_a_cpu_has_an_attention_of_its_own() -> None:
    query = torch.zeros(SAMPLES, HEADS, LENGTH, SIZE, requires_grad=True)
    assert kernel(query, query).endswith("ForCpuBackward0")


def kept(call: Callable[[Tensor], Tensor]) -> int:
    """Bytes that are saved for the backward pass."""
    sizes = {}

    def save(one: Tensor) -> Tensor:
        storage = one.untyped_storage()
        sizes[storage._cdata] = storage.nbytes()
        return one

    with torch.autograd.graph.saved_tensors_hooks(save, lambda one: one):
        call(torch.empty(1024, 1024, requires_grad=True)).sum()
    return sum(sizes.values())


def test_the_mask_of_dropout_has_a_byte_a_number() -> None:
    numbers = 1024 * 1024
    with FakeTensorMode():
        assert kept(lambda x: functional.dropout(x, 0.1)) == 4 * numbers
    with on_cuda():
        assert kept(lambda x: functional.dropout(x, 0.1)) == numbers
        assert kept(lambda x: functional.dropout(x, 0.1, training=False)) == 0
        assert kept(lambda x: functional.dropout(x, 0.0)) == 0


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda x: functional.layer_norm(x, (8,)), "layer_norm"),
        (lambda x: functional.softmax(x, -1), "softmax"),
        (lambda x: functional.group_norm(x, 2), "group_norm"),
        (lambda x: torch.pow(x, 3.0), "pow"),
    ],
)
def test_autocast_computes_in_floats(call: Callable[[Tensor], Tensor], name: str) -> None:
    with FakeTensorMode(), torch.autocast("cpu", HALF):
        assert call(torch.empty(4, 8, dtype=HALF)).dtype is HALF
    with on_cuda():
        with torch.autocast("cpu", HALF):
            assert call(torch.empty(4, 8, dtype=HALF)).dtype is torch.float32
            assert functional.gelu(torch.empty(4, 8, dtype=HALF)).dtype is HALF
        assert call(torch.empty(4, 8, dtype=HALF)).dtype is HALF


class Called(TorchDispatchMode):
    """The names of all operators."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("call", "kernels"),
    [
        (lambda x, y: functional.softmax(x, -1, dtype=FLOATS).sum(), {"_softmax"}),
        (lambda x, y: functional.log_softmax(x, -1, dtype=FLOATS).sum(), {"_log_softmax"}),
        (functional.cross_entropy, {"_log_softmax"}),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_softmax_of_halves_in_floats_copies_nothing(
    call: Callable[[Tensor, Tensor], Tensor], kernels: set[str], dtype: torch.dtype
) -> None:
    with on_cuda(), torch.autocast("cpu", dtype), Called() as called:
        logits = torch.empty(16, 1024, dtype=dtype, requires_grad=True)
        loss = call(logits, torch.zeros(16, dtype=torch.long))
        loss.backward()  # type: ignore[no-untyped-call]
        assert loss.dtype is FLOATS
        assert logits.grad is not None
        assert logits.grad.dtype is dtype
    assert kernels < set(called.names)
    assert "_to_copy" not in called.names


def test_softmax_otherwise_computes_in_the_dtype_of_its_input() -> None:
    with on_cuda():
        for dtype in (HALF, FLOATS):
            assert functional.softmax(torch.empty(4, 8, dtype=dtype), -1).dtype is dtype


def test_afterwards_a_cpu_is_a_cpu() -> None:
    with as_on_cuda():
        pass
    layer = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).train()
    out = layer(torch.ones(2, 4))
    assert out.grad_fn.name() == "MulBackward0"
    with torch.autocast("cpu", HALF):
        assert functional.layer_norm(torch.ones(4, 8, dtype=HALF), (8,)).dtype is HALF


def test_what_flash_attention_sums_in_floats() -> None:
    operator = torch.ops.aten._scaled_dot_product_flash_attention_backward.default
    query = heads()
    assert own(operator, (query, query, query)) == 2 * query.nbytes
    assert own(operator, (query, query, heads(2))) == 4 * query.nbytes
    assert own(torch.ops.aten.mm.default, (query, query)) == 0


@pytest.mark.parametrize("name", ["dense", pytest.param("adapters", marks=pytest.mark.ward)])
def test_a_decoder_without_dropout_is_the_same(name: str) -> None:
    case = SET[name]
    here, there = (made(case.build, case.batch, AdamW).peak for made in (on_cpu, footprint))
    # A number that the generator of random numbers has, of each layer.
    assert there.total == pytest.approx(here.total, abs=100)
    assert there.phase == here.phase


@pytest.mark.parametrize("name", ["gpt2", pytest.param("encoder", marks=pytest.mark.ward)])
def test_dropout_in_attention_keeps_no_pairs_of_tokens(name: str) -> None:
    case = SET[name]
    here, there = (made(case.build, case.batch, AdamW).peak for made in (on_cpu, footprint))
    # Of each of 4 layers: what softmax returns, a mask, and what is left of it, in floats.
    pairs = 4 * 3 * 4 * 4 * 8 * 256 * 256
    assert here.total - there.total > 0.9 * pairs


def test_what_oneDNN_has_is_not_on_a_gpu() -> None:
    case = SET["u-net"]
    told = footprint(case.build, case.batch, AdamW)
    assert told.peak.operators == 0
