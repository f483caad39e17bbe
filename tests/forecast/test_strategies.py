"""The forecast for each way to train against what the allocator really gave."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ddoctor.evidence.plan import Checkpointing
from ddoctor.forecast.allocator import replay
from ddoctor.forecast.model.recomputing import recompute
from ddoctor.forecast.model.sharding import Sharding, units
from ddoctor.memory_tracking.log import Entry, held
from tests.forecast import truth
from tests.forecast.model_set import SET
from tests.forecast.on_cpu import footprint
from tests.forecast.ways import FAILS, SPREAD, WAYS, AdamW

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")

WORST = 0.03
SAMPLED = ("fsdp, recomputed",)


def off(name: str, settings: Mapping[str, Any]) -> float:
    case = SET[name]
    told = footprint(case.build, case.batch, AdamW, **settings)
    return told.total / truth.peak(case.build, case.batch, AdamW, **settings) - 1


@pytest.mark.parametrize(
    "way", [way if way in SAMPLED else pytest.param(way, marks=pytest.mark.ward) for way in WAYS]
)
def test_each_way(way: str) -> None:
    assert abs(off("dense", WAYS[way])) <= WORST


@pytest.mark.ward
@pytest.mark.parametrize(
    ("way", "name"),
    [
        # oneDNN's kernels for it differ from CPU to CPU.
        pytest.param(way, name, marks=truth.needs_known_bfloat16 if "in halves" in way else ())
        for way in WAYS
        for name in SET
        if name != "dense" and (way, name) not in FAILS
    ],
)
def test_each_way_of_other_models(way: str, name: str) -> None:
    assert abs(off(name, WAYS[way])) <= WORST


@pytest.mark.ward
def test_a_decoder_that_has_its_own_config() -> None:
    """A cache of keys that its config asks for would fill twice."""
    case = SET["encoder and decoder"]
    model = case.build()
    recompute(model, "selective:2")
    model(**case.batch()).loss.backward()


@pytest.mark.parametrize("checkpointing", ["every", "selective:2"])
def test_each_block_is_gathered_by_itself(checkpointing: Checkpointing) -> None:
    model = SET["dense"].build()
    sizes = [size for _, size in units(model)]
    recompute(model, checkpointing)
    assert [size for _, size in units(model)] == sizes


def test_no_step_keeps_what_another_made() -> None:
    """What comes out of frozen embeddings is a leaf, at which the backward pass ends."""
    case = SET["adapters"]
    told = footprint(case.build, case.batch, AdamW, checkpointing="every")
    after = next(one for one in told.peaks if one.phase == "optimizer")
    assert after.parts["Activation"] == 0
    assert after.parts["Temp"] == 0


@pytest.mark.ward
def test_the_buckets_of_ddp_are_beside_the_gradients() -> None:
    case = SET["dense"]
    told = footprint(case.build, case.batch, AdamW)
    real = truth.peak(case.build, case.batch, AdamW, replicated=True)
    assert told.total + told.gradients == pytest.approx(real, rel=0.005)


@pytest.mark.ward
def test_twice_as_many_have_half_as_much_each() -> None:
    case = SET["dense"]
    two, four = (
        footprint(case.build, case.batch, AdamW, sharding=Sharding(ranks=ranks)) for ranks in (2, 4)
    )
    assert four.states == pytest.approx(two.states / 2, rel=0.01)
    told, real = two.spread(2).peak, four.peak
    assert told.total == pytest.approx(real.total, rel=0.01)
    assert (told.phase, told.module) == (real.phase, real.module)
    assert told.parts["Activation"] == real.parts["Activation"]
    assert two.spread(2).reserved == pytest.approx(four.reserved, rel=0.05)


@pytest.mark.ward
def test_with_many_ranks_the_peak_is_at_another_moment() -> None:
    """Few ranks hold most with all gradients, many at the logits, where there is none yet."""
    case = SET["dense"]
    two, many = (
        footprint(
            *(case.build, case.batch, AdamW),
            sharding=Sharding(ranks=ranks),
            checkpointing="every",
        )
        for ranks in (2, 32)
    )
    told, real = (
        next(peak for peak in one.peaks if peak.phase == "backward")
        for one in (two.spread(16), many)
    )
    assert told.total == pytest.approx(real.total, rel=0.01)


def test_the_moment_of_a_peak_follows_from_the_number_of_ranks() -> None:
    log = [
        Entry("step"),
        Entry("new", 0, 30, "Activation"),
        Entry("operator", -1, 0, "backward", "head"),
        Entry("free", 0),
        Entry("new", 1, 40, "Sharded Grad"),
        Entry("operator", -1, 0, "backward", "first"),
    ]
    for factor, module, size in ((1, "first", 40), (4, "head", 30)):
        (peak,) = held(log, ["Activation", "Sharded Grad"], factor).peaks.values()
        assert (peak.module, peak.total) == (module, size)


def test_a_rank_of_a_run_makes_no_plan() -> None:
    case = SET["dense"]
    with truth.alone(), pytest.raises(Exception, match="is a rank of a run"):
        footprint(case.build, case.batch, AdamW, sharding=SPREAD)


def test_what_the_allocator_would_take() -> None:
    case = SET["dense"]
    told = footprint(case.build, case.batch, AdamW)
    taken = replay(told.sizes)
    assert told.total <= taken.peak <= 1.01 * told.total
    assert taken.peak < taken.reserved < 1.5 * taken.peak
