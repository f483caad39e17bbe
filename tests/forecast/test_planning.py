"""Which strategy is taken, and how long it all takes."""

from __future__ import annotations

import dataclasses

import pytest

from ddoctor.errors import DoctorError
from ddoctor.evidence.plan import Plan, PlanRow
from ddoctor.forecast.closed_form import Model
from ddoctor.forecast.devices import PlannedGpu, find
from ddoctor.forecast.options import PlanRequest
from ddoctor.forecast.planning import accumulated, plan, schedule

GB = 10**9
H100 = find("h100-80")


def model(trainable: float = 4.4e9, activations: int = 10 * GB) -> Model:
    return Model(
        parameters=4.4e9,
        trainable=trainable,
        precision="bf16",
        optimizer="adamw-fp32",
        activations=activations,
    )


def taken(found: Plan) -> PlanRow:
    assert found.chosen is not None
    return found.rows[found.chosen]


@pytest.mark.parametrize("activations", [8 * GB, 12 * GB])
def test_60_to_65_of_80_gb_are_tight_and_two_gpus_that_share_are_enough(activations: int) -> None:
    found = plan(model(activations=activations), H100, (1, 2, 4, 8), PlanRequest())
    one = found.rows[0]
    counted = one.parts.total - one.parts.context - one.parts.temporaries
    assert 60 * GB <= counted <= 65 * GB
    assert one.fit == "tight"
    best = taken(found)
    assert (best.strategy, best.gpus, best.fit) == ("fsdp", 2, "fits")
    assert "tight" in found.reason


def test_why_it_is_sharded() -> None:
    found = plan(model(), PlannedGpu(name="small", memory=40 * GB), (1, 2, 8), PlanRequest())
    assert taken(found).gpus == 8
    # Sharded over two it would be tight, whole it is too much.
    assert "tight" in [row.fit for row in found.rows]
    assert found.reason.startswith("the whole model is too much for one GPU; sharded over 8")


def test_adapters_need_no_sharding() -> None:
    found = plan(model(trainable=82e6), H100, (1, 2, 4, 8), PlanRequest())
    best = taken(found)
    assert (best.strategy, best.gpus, best.fit) == ("ddp", 8, "fits")
    assert "sharding is unnecessary" in found.reason


def test_nothing_fits() -> None:
    found = plan(model(), PlannedGpu(name="small", memory=8 * GB), (1, 2), PlanRequest())
    assert found.chosen is None
    assert found.schedule is None
    assert "nothing fits" in found.reason


def test_where_all_is_tight_the_roomiest_is_taken() -> None:
    found = plan(model(), H100, (1,), PlanRequest())
    assert taken(found).strategy == "one-gpu"
    assert taken(found).fit == "tight"


@pytest.mark.parametrize(("micro", "gpus", "turns"), [(32, 1, 1), (4, 1, 8), (4, 8, 1)])
def test_the_same_global_batch_in_three_ways(micro: int, gpus: int, turns: int) -> None:
    work = PlanRequest(micro_batch=micro, global_batch=32, samples=3200)
    assert accumulated(work, gpus) == turns
    found = schedule(work, gpus, turns)
    assert found is not None
    assert (found.global_batch, found.steps_per_epoch) == (32, 100)


def test_fifty_episodes_of_thirty_seconds() -> None:
    work = PlanRequest(micro_batch=32, samples=50 * 30 * 30, epochs=5, step=0.167, loading=0.015)
    found = schedule(work, 4, 1)
    assert found is not None
    assert found.samples == 45_000
    assert (found.steps_per_epoch, found.steps) == (352, 1760)
    assert found.seconds == pytest.approx(320.3, abs=0.1)


def test_a_batch_that_does_not_come_out_even_is_left_out() -> None:
    work = PlanRequest(micro_batch=4, global_batch=16)
    assert {row.gpus for row in plan(model(82e6), H100, (1, 3, 4), work).rows} == {1, 4}
    with pytest.raises(DoctorError, match="not a multiple of 4 samples on 3 GPUs"):
        plan(model(82e6), H100, (3,), work)


def test_a_checkpoint_of_fp32_weights_is_twice_that_of_bf16() -> None:
    mixed = Model(parameters=4.4e9, trainable=4.4e9, precision="bf16-mixed", optimizer="adamw")
    found = plan(mixed, H100, (8,), PlanRequest())
    assert found.checkpoint_bf16 is not None
    assert found.checkpoint == 2 * found.checkpoint_bf16
    assert plan(model(), H100, (8,), PlanRequest()).checkpoint_bf16 is None


def test_where_nothing_else_fits_the_host_keeps_what_is_sharded() -> None:
    small = PlannedGpu(name="small", memory=24 * GB)
    found = plan(model(), small, (1, 2), PlanRequest())
    best = taken(found)
    assert (best.strategy, best.gpus, best.fit) == ("fsdp-offload", 1, "fits")
    assert best.host == pytest.approx(52.8 * GB)
    assert "nothing fits without CPU offload" in found.reason
    assert "49.2 GiB of its host's memory" in found.reason
    # Of what fits without, or could with less, the remedies speak.
    assert found.gains["offload"] > 20 * GB


@pytest.mark.parametrize(("memory", "optimizer"), [(40, "adamw-fp32"), (24, "adamw-8bit")])
def test_no_row_on_the_cpu(memory: int, optimizer: str) -> None:
    """Sharded over two it fits, if tightly; the kernels of 8 bits are CUDA's."""
    kind = dataclasses.replace(model(), optimizer=optimizer)
    found = plan(kind, PlannedGpu(name="small", memory=memory * GB), (2,), PlanRequest())
    assert [row.strategy for row in found.rows] == ["ddp", "fsdp-gradients", "fsdp"]
    assert all(row.host == 0 for row in found.rows)


def test_what_fits_tightly_goes_before_what_the_host_keeps() -> None:
    found = plan(model(), PlannedGpu(name="small", memory=40 * GB), (1, 2), PlanRequest())
    assert [row.strategy for row in found.rows if row.gpus == 1] == ["one-gpu", "fsdp-offload"]
    best = taken(found)
    assert (best.strategy, best.gpus, best.fit) == ("fsdp", 2, "tight")
