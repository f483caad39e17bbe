"""Which of ZeRO's strategies a plan recommends, and why."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ddoctor.evidence.plan import Plan, PlanRow, Strategy
from ddoctor.forecast import exchange, offloading, request
from ddoctor.forecast.closed_form import Model
from ddoctor.forecast.devices import PlannedGpu, find
from ddoctor.forecast.exchange import PlannedLink, PlannedLinks
from ddoctor.forecast.options import PlanRequest
from ddoctor.forecast.planning import plan
from ddoctor.forecast.zero import Zero
from ddoctor.report.plan import table

GB = 10**9
MODEL = Model(parameters=7e9, trainable=7e9, precision="bf16-mixed", optimizer="adamw")


def planned(
    gigabytes: float, *gpus: int, strategy: Strategy | None = None, host: float | None = None
) -> Plan:
    device = PlannedGpu(name="T9", memory=round(gigabytes * GB))
    work = PlanRequest(host_memory=None if host is None else round(host * GB))
    return plan(MODEL, device, gpus, work, zero=Zero(strategy=strategy))


def taken(found: Plan) -> PlanRow:
    assert found.recommended is not None
    return found.recommended


def names(found: Plan) -> list[Strategy]:
    return [row.strategy for row in found.rows]


def test_the_stages() -> None:
    found = planned(200, 1, 8)
    assert names(found) == ["zero-1", "zero-1", "zero-2", "zero-3"]
    best = taken(found)
    # All GPUs, if each can hold all weights and gradients.
    assert (best.strategy, best.gpus) == ("zero-1", 8)
    assert "each GPU holds all weights and gradients" in found.reason
    assert found.zero is not None


def test_stage_3_where_no_gpu_holds_the_weights() -> None:
    found = planned(40, 8)
    assert taken(found).strategy == "zero-3"
    assert found.reason.startswith("ZeRO-1 is tight; sharded over 8")


def test_where_nothing_fits_the_host_helps_and_least_is_moved() -> None:
    found = planned(40, 1, 2)
    added = ["zero-2-offload", "zero-3-offload", "zero-3-cpu"]
    assert names(found) == ["zero-1", *added, "zero-1", "zero-2", "zero-3", *added]
    best = taken(found)
    assert (best.strategy, best.gpus) == ("zero-2-offload", 1)
    # Master weights, gradients and two states in fp32, and weights in 16 bits.
    assert best.host == pytest.approx(18 * 7e9, rel=0.01)
    assert "nothing fits without CPU offload" in found.reason
    assert "of its host's memory" in found.reason


def test_nvme_where_the_host_is_too_small() -> None:
    found = planned(40, 1, host=64)
    assert names(found)[-1] == "zero-3-nvme"
    assert [row.fit for row in found.rows[1:-1]] == ["host-too-small"] * 3
    best = taken(found)
    assert best.strategy == "zero-3-nvme"
    assert best.nvme == pytest.approx(18 * 7e9)
    assert "on NVMe" in found.reason
    assert {"host", "NVMe"} <= set(table(found).head)


def test_a_stage_that_a_file_sets() -> None:
    best = taken(found := planned(200, 8, strategy="zero-2"))
    assert best.strategy == "zero-2"
    assert found.reason.startswith("as configured: ")
    offloaded = planned(200, 8, strategy="zero-3-cpu")
    assert taken(offloaded).strategy == "zero-3-cpu"
    assert "of its host's memory" in offloaded.reason


def test_a_stage_that_a_file_sets_and_that_does_not_fit() -> None:
    found = planned(28, 8, strategy="zero-1")
    assert taken(found).strategy == "zero-3"
    assert found.reason.startswith("ZeRO-1, as configured, does not fit; ")


def test_weights_in_bf16_have_master_weights() -> None:
    wanted = PlanRequest(
        params="7B", precision="bf16", engine="deepspeed", device_memory="80GB", gpus="8"
    )
    found = request.plan(wanted)
    assert found.precision == "bf16-mixed"
    assert found.rows[0].parts.optimizer == pytest.approx(12 * 7e9 / 8)


def test_another_engine_has_other_rows() -> None:
    wanted = PlanRequest(params="7B", device_memory="80GB", gpus="8", engine="fsdp")
    found = request.plan(wanted)
    assert found.zero is None
    assert not any(row.strategy.startswith("zero") for row in found.rows)


LINKS = PlannedLinks(within=PlannedLink(rate=1e9))
PSI = 2 * 7e9
"""Bytes of all weights, or all gradients."""


@pytest.mark.parametrize(
    ("strategy", "passes", "after"),
    # Of ZeRO's volumes (arXiv 1910.02054, section 7), psi is that of a reduce-scatter or an
    # all-gather. Stages 1 and 2 all-reduce, as DeepSpeed does: 2 psi, and gather the weights.
    [("zero-1", 2, 1), ("zero-2", 2, 1), ("zero-3", 3, 0), ("zero-3-offload", 3, 0)],
)
def test_what_is_exchanged(strategy: Strategy, passes: int, after: int) -> None:
    each = 7 / 8 * PSI / 1e9
    exposed = LINKS.exposed(MODEL, strategy, 8, 0.0)
    assert exposed == pytest.approx(passes * each)
    assert LINKS.updating(MODEL, strategy, 8) == pytest.approx(after * each)
    assert LINKS.updating(MODEL, strategy, 1) == 0


@pytest.mark.parametrize(
    ("strategy", "times"), [("zero-1", 1), ("zero-2", 4), ("zero-3", 4), ("ddp", 1)]
)
def test_how_often(strategy: Strategy, times: int) -> None:
    assert exchange.times(strategy, 4) == times


def offloaded(strategy: Strategy, turns: int = 1) -> float:
    """In bytes of each parameter of a rank."""
    rows = planned(200, 8, strategy=strategy).rows
    row = next(one for one in rows if one.strategy == strategy)
    return offloading.moved(MODEL, replace(row, accumulation=turns)) / (7e9 / 8)


def test_what_goes_over_pcie() -> None:
    assert offloaded("zero-3") == 0
    # Gradients in fp32 there, weights in 16 bits back.
    assert offloaded("zero-2-offload") == 6
    # Stage 3 also sends gradients in 16 bits there and back.
    assert offloaded("zero-3-offload") == 10
    # Each pass takes the weights.
    assert offloaded("zero-3-cpu") == 4 + 4 + 4
    assert offloaded("zero-3-cpu", 3) == 4 + 3 * (4 + 4)
    assert offloaded("zero-2-offload", 2) == 4 + 2 + 6


def test_the_report_tells_it() -> None:
    device = find("a100-40")
    found = planned(200, 8, strategy="zero-2-offload")
    (line,) = offloading.told(MODEL, device, found.rows)
    assert line.startswith("to the host 24 GB/s (PCIe 4): ZeRO-2, optimizer on the CPU on 8 GPUs")
    assert "moves 5.2 GB per step in about 0.22 s" in line
    assert not [*offloading.told(MODEL, device, planned(200, 8).rows)]
