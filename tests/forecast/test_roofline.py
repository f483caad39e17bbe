"""How long a step takes by what the GPUs and their links can do."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from ddoctor.evidence.plan import StepTime, Strategy
from ddoctor.forecast.closed_form import ForecastRow, Model
from ddoctor.forecast.devices import PlannedGpu, find
from ddoctor.forecast.options import Lora, PlanRequest, Precision
from ddoctor.forecast.planning import plan
from ddoctor.forecast.roofline import OF_FLOATS, OF_PEAK, Roofline
from ddoctor.forecast.timing import by_roofline as step
from ddoctor.forecast.timing import with_float8
from ddoctor.memory_tracking.work import Operator, Product, StepWork

LONG, SHORT = 8192, 512
H100 = find("h100-80")
SLOW = find("rtx-4090")
"""Its links are."""
SHARDED: tuple[Strategy, ...] = ("fsdp-gradients", "fsdp")
ALONE = ForecastRow(strategy="one-gpu", gpus=1)
KINDS: dict[Strategy, int] = {"ddp": 1, "fsdp": 4}


def llama(
    precision: Precision = "bf16-mixed", *, trainable: float = 8.03e9, tokens: int = LONG
) -> Model:
    """Llama 3.1 8B: 6 N + 12 L d s for each token."""
    return Model(
        parameters=8.03e9,
        trainable=trainable,
        precision=precision,
        optimizer="adamw",
        work=work(round(tokens * (6 * 8.03e9 + 12 * 32 * 4096 * tokens)), precision),
    )


def work(flops: int, precision: Precision = "bf16-mixed") -> StepWork:
    """Two products, and an optimizer that does nothing."""
    half = precision != "fp32"
    forward, backward = (
        Counter([Operator(kind="product", half=half, flops=part)])
        for part in (flops // 3, flops - flops // 3)
    )
    phases = {"forward": forward, "backward": backward, "optimizer": Counter[Operator]()}
    return StepWork(phases=phases, gradients=0, tensors=0)


def found(
    strategy: Strategy,
    device: PlannedGpu = H100,
    *,
    gpus: int = 8,
    accumulation: int = 1,
    model: Model | None = None,
) -> StepTime:
    told = step(
        model or llama(),
        device,
        ForecastRow(strategy=strategy, gpus=gpus, accumulation=accumulation),
    )
    assert told is not None
    return told


def exposed(
    strategy: Strategy,
    device: PlannedGpu = H100,
    *,
    gpus: int = 8,
    accumulation: int = 1,
    model: Model | None = None,
) -> float:
    told = found(strategy, device, gpus=gpus, accumulation=accumulation, model=model).exposed
    assert told is not None
    return told


def test_one_gpu_waits_for_nobody() -> None:
    alone, model = found("one-gpu", gpus=1), llama()
    assert alone.exposed == 0
    assert alone.efficiency == 1
    assert model.work is not None
    assert alone.compute == pytest.approx(model.work.flops / 688e12, rel=1e-3)
    assert alone.share_of_peak == pytest.approx(688 / 989, rel=1e-3)


def test_communication_that_is_hidden_slows_computing() -> None:
    """16 GB three times at 267 GB/s, of which computing loses 18.9 %."""
    alone, among = found("one-gpu", gpus=1), found("fsdp")
    moved = 3 * 7 / 8 * 2 * 8.03e9 / (0.77 * 450e9 / 1.3)
    assert among.compute - alone.compute == pytest.approx(0.189 * moved, rel=1e-3)


def test_long_samples_hide_what_short_ones_show() -> None:
    assert exposed("fsdp", SLOW) == 0
    assert exposed("fsdp", SLOW, model=llama(tokens=SHORT)) > 0


def test_fast_links_hide_more() -> None:
    short = llama(tokens=SHORT)
    assert exposed("fsdp", model=short) < 0.2 * exposed("fsdp", SLOW, model=short)


def test_a_bridge_that_may_not_be_there_is_not_counted_on() -> None:
    short = llama(tokens=SHORT)
    bridged, direct = (
        exposed("fsdp", find(name), model=short) for name in ("h100-pcie", "h100-80")
    )
    assert bridged > 5 * direct


def test_gradients_are_summed_once_in_a_step_and_parameters_gathered_in_each_turn() -> None:
    short = llama(tokens=SHORT)
    for strategy, times in KINDS.items():
        once = found(strategy, SLOW, model=short)
        often = found(strategy, SLOW, model=short, accumulation=4)
        assert often.compute == pytest.approx(4 * once.compute, rel=0.25)
        assert once.exposed
        assert often.exposed == pytest.approx(times * once.exposed)


def test_what_stays_gathered_is_not_gathered_again() -> None:
    short = llama(tokens=SHORT)
    kept, again = (exposed(one, SLOW, model=short) for one in SHARDED)
    assert kept < again


def test_adapters_have_few_gradients_to_sum() -> None:
    assert exposed("ddp", SLOW, model=llama(tokens=SHORT)) > 0
    assert exposed("ddp", SLOW, model=llama(tokens=SHORT, trainable=80e6)) == 0


def test_a_gpu_of_which_no_product_was_published() -> None:
    assert found("one-gpu", SLOW, gpus=1).share_of_peak == pytest.approx(OF_PEAK, rel=1e-3)


@pytest.mark.parametrize(
    ("model", "device", "gpus"),
    [
        (Model(parameters=1e9, trainable=1e9, precision="bf16", optimizer="sgd"), H100, 1),
        (llama(), find("t4"), 1),
        (llama(), PlannedGpu(name="T9", memory=80 * 10**9), 1),
        (llama(), find("h200"), 16),
    ],
    ids=["no operators", "no bfloat16", "some GPU", "two hosts"],
)
def test_what_cannot_be_known(model: Model, device: PlannedGpu, gpus: int) -> None:
    row = ForecastRow(strategy="one-gpu" if gpus == 1 else "fsdp", gpus=gpus)
    assert step(model, device, row) is None


def test_halves_of_another_kind_have_a_peak_of_their_own() -> None:
    assert step(llama("fp16-mixed"), find("t4"), ALONE) is not None
    assert found("fsdp", model=llama("fp16-mixed")) == found("fsdp")


def test_a_plan_has_it_in_each_row_unless_a_step_was_measured() -> None:
    forecast = plan(llama(), find("h200"), (8, 16), PlanRequest(micro_batch=1))
    assert "not known between hosts" in forecast.links
    assert [row.step is not None for row in forecast.rows] == [
        row.gpus == 8 for row in forecast.rows
    ]
    measured = plan(llama(), H100, (8,), PlanRequest(micro_batch=1, step=2.0))
    assert not any(row.step for row in measured.rows)
    assert forecast.samples_per_second(forecast.rows[-1]) is None


def test_two_hosts_sum_over_their_network() -> None:
    """By 8 adapters of 400 Gb/s what all GPUs exchange takes somewhat longer than in one host."""
    short = llama(tokens=SHORT)
    for strategy in KINDS:
        within, between = (exposed(strategy, model=short, gpus=gpus) for gpus in (8, 16))
        assert within < between < 1.5 * within
    forecast = plan(short, H100, (16,), PlanRequest(micro_batch=1, samples=16_000))
    assert "8 adapters of 400 Gb/s" in forecast.links
    assert forecast.schedule is not None
    assert forecast.chosen is not None
    row = forecast.rows[forecast.chosen]
    assert row.step is not None
    assert forecast.schedule.source == "by roofline"
    assert forecast.schedule.seconds == pytest.approx(1000 * row.step.seconds)


def test_shards_within_hosts_leave_the_sum_of_gradients_to_the_network() -> None:
    a100, short = find("a100-80"), llama(tokens=SHORT)
    within = exposed("fsdp", a100, model=short)
    hybrid = exposed("fsdp-hybrid", a100, model=short, gpus=16)
    # Half of the bytes of the gradients, twice, at 192 GB/s less what computing takes.
    assert hybrid - within == pytest.approx(2 * 8.03e9 / (192e9 / 1.3))


def test_floats_take_many_times_as_long_and_tf32_twice() -> None:
    """Of an A100's 312 TFLOP/s, TF32 has 156, and floats 19.5."""
    a100 = find("a100-80")
    halves, floats = (
        found("one-gpu", a100, gpus=1, model=llama(kind)) for kind in ("bf16-mixed", "fp32")
    )
    tf32 = step(llama("fp32"), a100, ALONE, tf32=True)
    assert tf32 is not None
    assert tf32.compute == pytest.approx(2 * halves.compute, rel=0.01)
    times = (256 / 312) * (312 / 19.5) / OF_FLOATS
    assert floats.compute == pytest.approx(times * halves.compute, rel=0.01)
    forecast = plan(llama("fp32"), a100, (8,), PlanRequest(micro_batch=1))
    assert forecast.with_tf32 == step(
        llama("fp32"), a100, ForecastRow(strategy="fsdp", gpus=8), tf32=True
    )
    assert plan(llama(), a100, (8,), PlanRequest(micro_batch=1)).with_tf32 is None


def test_no_tf32_before_ampere() -> None:
    v100 = find("v100")
    assert step(llama("fp32"), v100, ALONE) is not None
    assert step(llama("fp32"), v100, ALONE, tf32=True) is None


def test_float8_halves_the_time_of_products_and_no_more() -> None:
    h100 = find("h100")
    side = Product(1, 16384, 4096, 4096)
    flops = 2 * side.rows * side.columns * side.inner
    one = Operator(kind="product", half=True, flops=flops, moved=3 * 10**8, size=side)
    phases = {"forward": Counter({one: 200}), "backward": Counter({one: 400})}
    linear = replace(
        llama(),
        work=StepWork(phases={**phases, "optimizer": Counter[Operator]()}, gradients=0, tensors=0),
    )
    halves, float8 = (step(linear, h100, ALONE, float8=one) for one in (False, True))
    assert halves is not None
    assert float8 is not None
    assert 0.5 < float8.compute / halves.compute < 0.85
    forecast = plan(linear, h100, (8,), PlanRequest(micro_batch=1))
    assert forecast.with_float8 == step(
        linear, h100, ForecastRow(strategy="fsdp", gpus=8), float8=True
    )
    adapted = PlanRequest(micro_batch=1, lora=Lora("r=16"))
    assert plan(linear, h100, (8,), adapted).with_float8 is None


@pytest.mark.parametrize(("gpu", "precision"), [("a100-80", "bf16-mixed"), ("h100", "fp32")])
def test_without_float8(gpu: str, precision: Precision) -> None:
    """No tensor cores for it, or no half precision."""
    device = find(gpu)
    row = ForecastRow(strategy="fsdp", gpus=8)
    model = llama(precision)
    assert with_float8(model, device, row, step(model, device, row)) is None


@pytest.mark.parametrize(
    ("size", "faster"),
    [
        (Product(1, 8192, 8192, 8192), True),
        # Attention; sides that are no multiples of 16; numbers that are read for longer.
        (Product(32, 1024, 1024, 128), False),
        (Product(1, 8192, 8190, 8192), False),
        (Product(1, 16, 8192, 8192), False),
    ],
)
def test_products_in_float8(size: Product, faster: bool) -> None:
    gpu = find("h100").model
    assert gpu is not None
    flops = 2 * size.batch * size.rows * size.columns * size.inner
    one = Operator(kind="product", half=True, flops=flops, moved=10**6, size=size)
    usual, found = (Roofline(gpu, float8=float8).seconds(one) for float8 in (False, True))
    assert (found < 0.75 * usual) is faster
    assert found >= usual or faster
