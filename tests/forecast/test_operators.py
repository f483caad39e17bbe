"""What each operator of a step asks of a GPU, and how long it takes there."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from ddoctor.forecast.devices import find
from ddoctor.forecast.model.step import footprint
from ddoctor.forecast.roofline import KERNEL, LAUNCH, VIEW, Roofline, phases
from ddoctor.memory_tracking.counting import describe
from ddoctor.memory_tracking.work import Operator, Product, StepWork

aten = torch.ops.aten
MANY = torch.zeros(1024, 512)
HALF = torch.zeros(64, 32, dtype=torch.bfloat16)
A100_MODEL = find("a100-80").model
assert A100_MODEL is not None
A100 = Roofline(A100_MODEL)
# Azure's AI-benchmarking-guide, ND_A100_v4: random numbers in fp16, after 10,000 products.
AZURE = (
    (Product(1, 1024, 1024, 1024), 119.4),
    (Product(1, 2048, 2048, 2048), 221.8),
    (Product(1, 4096, 4096, 4096), 228.0),
    (Product(1, 8192, 8192, 8192), 253.7),
    (Product(1, 1024, 2145, 1024), 132.8),
    (Product(1, 6144, 12288, 12288), 250.8),
    (Product(1, 802816, 192, 768), 157.8),
)


def test_a_sum_reads_two_and_writes_one() -> None:
    made = describe(aten.add.Tensor, (MANY, MANY), {}, MANY + MANY)
    assert made == Operator(kind="other", moved=3 * 1024 * 512 * 4)


def test_in_place_is_read_and_written_and_an_overwritten_tensor_only_written() -> None:
    size = MANY.nbytes
    assert describe(aten.mul_.Tensor, (MANY, 2.0), {}, MANY).moved == 2 * size
    assert describe(aten.zero_.default, (MANY,), {}, MANY).moved == size
    assert describe(aten.copy_.default, (MANY, MANY), {}, MANY).moved == 2 * size


def test_an_expanded_tensor_is_in_memory_once() -> None:
    row = torch.zeros(512).expand(1024, 512)
    made = describe(aten.add.Tensor, (MANY, row), {}, MANY + row)
    assert made.moved == 2 * MANY.nbytes + 512 * 4


def test_a_table_is_read_where_words_are() -> None:
    words = torch.zeros(8, dtype=torch.long)
    made = describe(aten.embedding.default, (MANY, words), {}, MANY[words])
    assert made.moved == 2 * 8 * 512 * 4 + words.nbytes


@pytest.mark.parametrize(
    ("func", "args"),
    [
        (aten.view.default, (MANY, [512, 1024])),
        (aten.t.default, (MANY,)),
        (aten._unsafe_view.default, (MANY, [512, 1024])),
        (aten.empty_like.default, (MANY,)),
    ],
)
def test_views_start_no_kernel(func: object, args: tuple[object, ...]) -> None:
    assert describe(func, args, {}, MANY).kind == "view"


def test_a_product_has_its_size() -> None:
    right = torch.zeros(32, 16, dtype=torch.bfloat16)
    made = describe(aten.mm.default, (HALF, right), {}, HALF @ right, 2 * 64 * 32 * 16)
    assert made.size == Product(1, 64, 16, 32)
    assert made.half
    assert made.moved == 2 * (64 * 32 + 32 * 16 + 64 * 16)


@pytest.mark.parametrize(("causal", "share"), [(True, 0.5), (False, 1.0)])
def test_causal_attention_leaves_out_the_masked_half(causal: bool, share: float) -> None:
    heads = torch.zeros(1, 2, 64, 16, dtype=torch.bfloat16)
    func = aten._scaled_dot_product_flash_attention.default
    made = describe(func, (heads, heads, heads, 0.0, causal), {}, heads, 1000)
    assert (made.kind, made.flops) == ("attention", 1000 * share)


def test_an_optimizer_updates_many_tensors_with_few_kernels() -> None:
    tensors = [torch.zeros(1000) for _ in range(100)]
    made = describe(aten._foreach_mul_.Scalar, (tensors, 2.0), {}, None)
    assert made == Operator(kind="other", moved=2 * 100 * 4000)
    large = [torch.empty(65_536 * 320, device="meta") for _ in range(3)]
    assert describe(aten._foreach_mul_.Scalar, (large, 2.0), {}, None).kernels == 3


@pytest.mark.parametrize(("size", "published"), AZURE)
def test_products_are_as_fast_as_they_were_measured(size: Product, published: float) -> None:
    flops = 2 * size.batch * size.rows * size.columns * size.inner
    numbers = size.rows * size.inner + size.inner * size.columns + size.rows * size.columns
    seconds = A100.seconds(
        Operator(kind="product", half=True, flops=flops, moved=2 * numbers, size=size)
    )
    assert flops / seconds / 1e12 == pytest.approx(published, rel=0.16)


def test_what_only_moves_takes_the_time_of_its_bytes() -> None:
    one = Operator(kind="other", moved=17 * 10**9)
    assert A100.seconds(one) == pytest.approx(17 / 1700 + KERNEL)


def test_one_more_tile_than_multiprocessors_takes_a_second_wave() -> None:
    assert A100.filled(Product(1, 128 * 108, 128, 256)) > 1.8 * A100.filled(
        Product(1, 128 * 109, 128, 256), tensor_cores=True
    ) * (108 / 128) * (128 / 109)


def test_a_gpu_waits_for_the_cpu_in_small_steps_only() -> None:
    def of(operators: int, moved: int) -> StepWork:
        half = Counter({Operator(kind="other", moved=moved): operators, Operator(kind="view"): 1})
        names = ("forward", "backward", "optimizer")
        return StepWork(phases=dict.fromkeys(names, half), gradients=1000, tensors=5)

    small = phases(of(100, 1000), A100)
    assert small.micro_batch == pytest.approx(2 * (100 * LAUNCH + VIEW))
    assert small.summing == pytest.approx(5 * LAUNCH)
    large = phases(of(100, 17 * 10**8), A100)
    assert large.micro_batch == pytest.approx(2 * 100 * (0.001 + KERNEL))
    assert phases(of(100, 17 * 10**8), A100, 8).optimizer == pytest.approx(large.optimizer / 8)


def test_what_the_cpu_was_ahead_in_one_pass_it_has_left_for_the_next() -> None:
    names = ("forward", "backward", "optimizer")
    slow = Counter({Operator(kind="other", moved=17 * 10**9): 1})  # 10 ms
    many = Counter({Operator(kind="other", moved=0): 500})  # 5 ms to start
    nothing = Counter[Operator]()
    work = StepWork(
        phases=dict(zip(names, (slow, many, nothing), strict=True)), gradients=0, tensors=0
    )
    assert phases(work, A100).micro_batch == pytest.approx(0.010 + 501 * KERNEL)


class Net(nn.Module):
    """One layer that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 32)

    def forward(self, rows: Tensor) -> Net.Result:
        """Return the loss."""
        return Net.Result(self.layer(rows).sum())

    class Result(tuple[Tensor]):
        """Its loss."""

        def __new__(cls, loss: Tensor) -> Net.Result:
            return super().__new__(cls, (loss,))

        @property
        def loss(self) -> Tensor:
            return self[0]


def test_a_step_counts_its_operators_by_phase() -> None:
    optimizer = partial(torch.optim.AdamW, foreach=True)
    made = footprint(Net, lambda: {"rows": torch.zeros(16, 64)}, optimizer)
    assert made.work is not None
    forward = made.work.phases["forward"]
    (product,) = (one for one in forward if one.kind == "product")
    assert product.size == Product(1, 16, 32, 64)
    assert made.work.flops == made.flops == 2 * 2 * 16 * 32 * 64
    assert (made.work.gradients, made.work.tensors) == ((64 + 1) * 32 * 4, 2)
    # At least parameters, gradients and both states are read, and all but gradients written.
    moved = sum(one.moved * count for one, count in made.work.phases["optimizer"].items())
    assert moved > 7 * made.work.gradients
    assert (
        footprint(Net, lambda: {"rows": torch.zeros(16, 64)}, optimizer, accumulation=2).work
        is None
    )
    assert replace(product, half=True) != product
