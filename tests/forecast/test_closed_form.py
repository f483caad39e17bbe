"""Rows that public guides work out by hand."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ddoctor.evidence.plan import MemoryParts, Strategy
from ddoctor.forecast.closed_form import ClosedForm, ForecastRow, Model
from ddoctor.forecast.options import Precision

GB = 10**9
WHOLE = Model(parameters=4.4e9, trainable=4.4e9, precision="bf16", optimizer="adamw-fp32")
ADAPTERS = Model(parameters=4.4e9, trainable=82e6, precision="bf16", optimizer="adamw-fp32")


def parts(model: Model, strategy: Strategy, gpus: int) -> MemoryParts:
    return ClosedForm(model).parts(ForecastRow(strategy=strategy, gpus=gpus))


def gigabytes(found: MemoryParts) -> Mapping[str, float]:
    return {name: size / GB for name, size in found.named()}


def test_a_model_of_4_4_billion_parameters_on_one_gpu() -> None:
    one = gigabytes(parts(WHOLE, "one-gpu", 1))
    assert one["parameters"] == pytest.approx(8.8)
    assert one["gradients"] == pytest.approx(8.8)
    assert one["optimizer"] == pytest.approx(35.2)
    assert one["communication"] == 0


def test_sharded_over_two() -> None:
    one = gigabytes(parts(WHOLE, "fsdp", 2))
    assert one["parameters"] == pytest.approx(4.4)
    assert one["gradients"] == pytest.approx(4.4)
    assert one["optimizer"] == pytest.approx(17.6)


def test_where_only_adapters_are_trained() -> None:
    one = gigabytes(parts(ADAPTERS, "one-gpu", 1))
    assert one["parameters"] == pytest.approx(8.8)
    assert one["gradients"] == pytest.approx(0.16, abs=0.005)
    assert one["optimizer"] == pytest.approx(0.64, abs=0.02)


@pytest.mark.parametrize(
    ("precision", "optimizer", "weights", "gradients", "states"),
    [
        ("fp32", "adamw", 4, 4, 8),
        ("bf16-mixed", "adamw", 4, 4, 8),
        ("fp16-mixed", "adamw-8bit", 4, 4, 2),
        # torch's own optimizers keep their states in the dtype of the parameters.
        ("bf16", "adamw", 2, 2, 4),
        ("bf16", "adamw-fp32", 2, 2, 8),
        ("fp32", "sgd", 4, 4, 4),
        ("fp32", "adafactor", 4, 4, 0),
    ],
)
def test_bytes_of_each_parameter(
    precision: Precision, optimizer: str, weights: int, gradients: int, states: int
) -> None:
    model = Model(parameters=1e9, trainable=1e9, precision=precision, optimizer=optimizer)
    found = gigabytes(parts(model, "one-gpu", 1))
    told = (found["parameters"], found["gradients"], found["optimizer"])
    # A row and a column of a matrix are next to nothing, and so are the scales of 8 bits.
    assert told == pytest.approx((weights, gradients, states), rel=0.02, abs=0.01)


def test_what_the_optimizer_makes_in_its_step_counts_where_it_is_more_than_activations() -> None:
    model = Model(parameters=1e9, trainable=1e9, precision="fp32", optimizer="adamw")
    assert parts(model, "one-gpu", 1).temporaries == 4 * GB
    busy = Model(
        parameters=1e9, trainable=1e9, precision="fp32", optimizer="adamw", activations=3 * GB
    )
    assert parts(busy, "one-gpu", 1).temporaries == GB


def test_ddp_has_buckets_beside_the_gradients() -> None:
    assert parts(WHOLE, "ddp", 8).communication == parts(WHOLE, "one-gpu", 1).gradients


def test_hosts_that_shard_within_themselves_gain_nothing_by_being_more() -> None:
    assert parts(WHOLE, "fsdp-hybrid", 64) == parts(WHOLE, "fsdp", 8)
    assert parts(WHOLE, "fsdp", 64).total < parts(WHOLE, "fsdp-hybrid", 64).total


@pytest.mark.parametrize("strategy", ["fsdp-gradients", "fsdp"])
def test_the_more_gpus_the_less_lies_on_each(strategy: Strategy) -> None:
    sizes = [parts(WHOLE, strategy, gpus).total for gpus in (2, 4, 8, 64)]
    assert sizes == sorted(sizes, reverse=True)
    # The parameters are gathered whole by one of them.
    assert (sizes[-1] > 8.8 * GB) == (strategy == "fsdp-gradients")


def test_what_is_kept_on_the_cpu_is_not_on_the_gpu() -> None:
    on_gpu, on_cpu = parts(WHOLE, "fsdp", 2), parts(WHOLE, "fsdp-offload", 2)
    assert (on_cpu.parameters, on_cpu.gradients, on_cpu.optimizer) == (0, 0, 0)
    kept = ClosedForm(WHOLE).host(ForecastRow(strategy="fsdp-offload", gpus=2))
    assert kept == on_gpu.parameters + on_gpu.gradients + on_gpu.optimizer
    # Each unit's share on its way from the host, and that of its gradients back.
    unit = 8.8 * GB / WHOLE.layers
    moved = on_cpu.communication - on_gpu.communication
    assert moved == pytest.approx(2 * unit / 2)
    assert on_cpu.activations == on_gpu.activations
