"""How long a step takes by what the GPUs and their links can do."""

from __future__ import annotations

import pytest

from ddoctor.evidence.plan import StepTime, Strategy
from ddoctor.forecast.closed_form import Model, Precision
from ddoctor.forecast.devices import Device, find
from ddoctor.forecast.planning import Work, plan
from ddoctor.forecast.roofline import USUAL_SHARE, step

LONG, SHORT = 8192, 512
H100 = find("h100-80")
SLOW = find("rtx-4090")
"""Its links are."""
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
        flops=tokens * (6 * 8.03e9 + 12 * 32 * 4096 * tokens),
    )


def found(
    strategy: Strategy,
    device: Device = H100,
    *,
    gpus: int = 8,
    accumulation: int = 1,
    model: Model | None = None,
) -> StepTime:
    told = step(model or llama(), device, strategy, gpus, accumulation)
    assert told is not None
    return told


def test_as_fast_as_it_was_published() -> None:
    """torchtitan on 8 H100: 5,762 tokens/s on each GPU, and 6,667 with torch.compile."""
    assert 0.95 * 5762 < LONG / found("fsdp").seconds < 1.05 * 6667


def test_one_gpu_waits_for_nobody() -> None:
    alone = found("one-gpu", gpus=1)
    assert alone.exposed == 0
    assert alone.efficiency == 1
    assert alone.compute == pytest.approx(llama().flops / (0.415 * 989e12))


def test_long_samples_hide_what_short_ones_show() -> None:
    assert found("fsdp", SLOW).exposed == 0
    assert found("fsdp", SLOW, model=llama(tokens=SHORT)).exposed > 0


def test_fast_links_hide_more() -> None:
    short = llama(tokens=SHORT)
    assert found("fsdp", model=short).exposed < 0.2 * found("fsdp", SLOW, model=short).exposed


def test_a_bridge_that_may_not_be_there_is_not_counted_on() -> None:
    short = llama(tokens=SHORT)
    bridged, direct = (found("fsdp", find(name), model=short) for name in ("h100-pcie", "h100-80"))
    assert bridged.exposed > 5 * direct.exposed


def test_gradients_are_summed_once_in_a_step_and_parameters_gathered_in_each_turn() -> None:
    short = llama(tokens=SHORT)
    for strategy, times in KINDS.items():
        once = found(strategy, SLOW, model=short)
        often = found(strategy, SLOW, model=short, accumulation=4)
        assert often.compute == pytest.approx(4 * once.compute)
        assert often.exposed == pytest.approx(times * once.exposed)
        assert once.exposed > 0


def test_what_stays_gathered_is_not_gathered_again() -> None:
    short = llama(tokens=SHORT)
    kept, again = (found(one, SLOW, model=short) for one in ("fsdp-gradients", "fsdp"))
    assert kept.exposed < again.exposed


def test_adapters_have_few_gradients_to_sum() -> None:
    assert found("ddp", SLOW, model=llama(tokens=SHORT)).exposed > 0
    assert found("ddp", SLOW, model=llama(tokens=SHORT, trainable=80e6)).exposed == 0


def test_a_gpu_of_which_no_training_was_published() -> None:
    assert found("fsdp", SLOW).share_of_peak == USUAL_SHARE
    assert found("fsdp").share_of_peak == pytest.approx(0.415)


@pytest.mark.parametrize(
    ("model", "device", "gpus"),
    [
        (Model(parameters=1e9, trainable=1e9, precision="bf16", optimizer="sgd"), H100, 1),
        (
            Model(parameters=4e6, trainable=4e6, precision="bf16", optimizer="sgd", flops=1e9),
            H100,
            1,
        ),
        (llama("fp32"), H100, 1),
        (llama(), find("t4"), 1),
        (llama(), Device(name="T9", memory=80 * 10**9), 1),
        (llama(), H100, 16),
    ],
    ids=["no FLOPs", "small", "floats", "no bfloat16", "some GPU", "two hosts"],
)
def test_what_cannot_be_known(model: Model, device: Device, gpus: int) -> None:
    assert step(model, device, "one-gpu" if gpus == 1 else "fsdp", gpus, 1) is None


def test_halves_of_another_kind_have_a_peak_of_their_own() -> None:
    assert step(llama("fp16-mixed"), find("t4"), "one-gpu", 1, 1) is not None
    assert found("fsdp", model=llama("fp16-mixed")) == found("fsdp")


def test_a_plan_has_it_in_each_row_unless_a_step_was_measured() -> None:
    forecast = plan(llama(), H100, (8, 16), Work(micro_batch=1))
    assert [row.step is not None for row in forecast.rows] == [
        row.gpus == 8 for row in forecast.rows
    ]
    measured = plan(llama(), H100, (8,), Work(micro_batch=1, step_seconds=2.0))
    assert not any(row.step for row in measured.rows)
    assert forecast.samples_per_second(forecast.rows[-1]) is None
