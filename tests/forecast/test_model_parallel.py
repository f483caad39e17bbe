"""Rows of copies on several GPUs: their division, their communication and their bubble."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ddoctor.errors import DoctorError
from ddoctor.evidence.plan import ModelParallel, Plan
from ddoctor.forecast import exchange, request
from ddoctor.forecast.closed_form import ForecastRow, Traffic
from ddoctor.forecast.devices import find
from ddoctor.forecast.model_parallel import Dimensions, in_numbers, seconds
from ddoctor.forecast.options import PlanRequest
from ddoctor.forecast.planning import strategies
from ddoctor.forecast.timing import by_roofline
from tests.forecast.test_planning import model
from tests.forecast.test_roofline import llama

GB = 10**9
H100, A100 = find("h100-80"), find("a100-80")
LLAMA = Dimensions(hidden=4096, heads=32, key_heads=8, head=128, blocks=32)
WIDE = Dimensions(hidden=4096, heads=32, key_heads=8, head=128, blocks=32, experts=8, chosen=2)
TOKENS = 8192


def numbers(**more: object) -> Plan:
    wanted = {"params": "70B", "precision": "bf16-mixed", "gpu": "h100-80", **more}
    return request.plan(PlanRequest(**wanted))  # type: ignore[arg-type]


def test_each_gpu_has_its_part() -> None:
    whole = model(activations=16 * GB)
    part = in_numbers(whole, ModelParallel(tensor=4, pipeline=2, context=2), layers=None)
    assert part.parameters == whole.parameters / 8
    assert part.activations == GB
    assert part.layers == 16


def test_rows_of_whole_copies() -> None:
    found = numbers(tp=8, pp=2, gpus="8,16,24,64", micro_batch=1, global_batch=64)
    assert {row.gpus for row in found.rows} == {16, 64}
    alone, *_ = found.rows
    assert alone.strategy == "one-copy"
    assert alone.title == "one copy on 16 GPUs: 1 × tensor 8 × pipeline 2"
    assert (alone.copies, alone.accumulation) == (1, 64)
    assert {row.copies for row in found.rows if row.gpus == 64} == {4}
    assert alone.parts.parameters == pytest.approx(4 * 70e9 / 16)


@pytest.mark.parametrize(
    ("sizes", "hybrid"),
    [({"tensor": 2}, True), ({"tensor": 8}, False), ({"tensor": 2, "expert": 8}, False)],
)
def test_hybrid_sharding_needs_several_copies_within_a_host(
    sizes: dict[str, int], *, hybrid: bool
) -> None:
    assert ("fsdp-hybrid" in strategies(64, ModelParallel(**sizes))) == hybrid


def test_without_numbers_of_gpus_there_are_1_to_8_copies() -> None:
    assert {row.gpus for row in numbers(tp=8).rows} == {8, 16, 32, 64}


def test_the_first_stage_keeps_the_micro_batches_in_flight() -> None:
    few, many = (
        numbers(pp=4, activations=40 * GB, gpus="4", micro_batch=1, global_batch=turns)
        .rows[0]
        .parts.activations
        for turns in (2, 16)
    )
    assert (few, many) == (20 * GB, 40 * GB)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tp": 8, "gpus": "4"}, "tensor 8 needs a multiple of 8 GPUs, and --gpus is 4"),
        ({"pp": 2}, "--pp needs --global-batch and --micro-batch"),
        ({"ep": 2}, "--ep goes with --model"),
        ({"expert_load": 1.5}, "--expert-load 1.5: it goes with --ep"),
        ({"ep": 2, "expert_load": 3.0}, "--expert-load 3: .* at most that number"),
        (
            {"tp": 8, "gpus": "24", "micro_batch": 1, "global_batch": 8},
            "8 is not a multiple of 1 samples on 3 copies of the model",
        ),
        (
            {"pp": 3, "layers": 32, "micro_batch": 1, "global_batch": 8},
            "--pp 3: it must divide the model's 32 layers",
        ),
        ({"tp": 2, "write": Path("launch")}, "--write does not go with --tp"),
        ({"tp": 2, "engine": "deepspeed"}, "--engine deepspeed does not go with --tp"),
    ],
)
def test_what_does_not_go_together(options: dict[str, object], said: str) -> None:
    with pytest.raises(DoctorError, match=said):
        numbers(**options)


def test_two_all_reduces_a_block_in_each_pass() -> None:
    """As many bytes as those of Megatron-LM without sequence parallelism, each in two halves."""
    found = LLAMA.traffic(ModelParallel(tensor=8), TOKENS, "bf16-mixed", "none")
    each = 7 / 8 * TOKENS * 4096 * 2
    assert found == Traffic(tensor=(32 * 8 + 2) * each)
    again = LLAMA.traffic(ModelParallel(tensor=8), TOKENS, "bf16-mixed", "every")
    assert again.tensor == (32 * 12 + 2) * each


def test_keys_and_values_of_the_whole_sequence() -> None:
    found = LLAMA.traffic(ModelParallel(context=4), TOKENS, "bf16-mixed", "none")
    assert found == Traffic(context=3 / 4 * 32 * 3 * 2 * TOKENS * 8 * 128 * 2)


def test_tokens_to_their_experts_and_back() -> None:
    found = WIDE.traffic(ModelParallel(expert=8), TOKENS, "bf16-mixed", "none")
    assert found == Traffic(expert=7 / 8 * 32 * 4 * 2 * TOKENS * 4096 * 2)
    busier = WIDE.traffic(ModelParallel(expert=8, expert_load=2), TOKENS, "bf16-mixed", "none")
    assert busier.expert == 2 * found.expert


def test_only_neighbours_use_the_links_within_a_host() -> None:
    links = exchange.known(H100.model) if H100.model else exchange.PlannedLinks()
    assert links.within is not None
    assert links.between is not None
    moved = Traffic(tensor=1e9)
    assert seconds(moved, ModelParallel(tensor=8), links) == 1e9 / links.within.rate
    assert seconds(moved, ModelParallel(tensor=16), links) == 1e9 / links.between.rate
    far = ModelParallel(tensor=8, pipeline=2)
    assert seconds(Traffic(pipeline=1e9), far, links) == 1e9 / links.between.rate
    alone = exchange.PlannedLinks(within=links.within)
    assert seconds(Traffic(pipeline=1e9), far, alone) is None


def test_the_bubble_is_a_share_of_the_steps() -> None:
    """(p - 1) / (m + p - 1) of the step without its optimizer, with p stages and m turns."""
    for turns in (4, 16):
        way = ForecastRow(
            strategy="one-copy",
            gpus=4,
            accumulation=turns,
            parallel=ModelParallel(pipeline=4),
        )
        found = by_roofline(llama(), H100, way)
        assert found is not None
        assert found.bubble / found.seconds == pytest.approx(3 / (turns + 3), rel=0.02)


def test_data_parallel_ranks_lie_apart() -> None:
    """8 copies of 8 GPUs exchange over the network, 8 copies of one GPU within their host."""
    short = llama(tokens=512)
    near, far = (
        by_roofline(
            short,
            A100,
            ForecastRow(strategy="ddp", gpus=8 * size, parallel=ModelParallel(tensor=size)),
        )
        for size in (1, 8)
    )
    assert near is not None
    assert far is not None
    assert near.exposed is not None
    assert far.exposed is not None
    assert far.exposed > near.exposed
    moving = replace(short, traffic=Traffic(tensor=1e9))
    more = by_roofline(
        moving, A100, ForecastRow(strategy="ddp", gpus=64, parallel=ModelParallel(tensor=8))
    )
    assert more is not None
    assert more.exposed is not None
    assert more.exposed - far.exposed == pytest.approx(1e9 / (0.77 * 300e9 / 1.3), rel=1e-3)
