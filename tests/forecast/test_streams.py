"""FSDP gathers and reduces on other streams, whose memory the computing never uses again."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from ddoctor.forecast.allocator import replay
from ddoctor.forecast.model.step import STEPS, Footprint
from tests.forecast.model_set import SET
from tests.forecast.on_cpu import footprint
from tests.forecast.ways import SPREAD, AdamW

MIB = 2**20
SIZES = [(0, 50 * MIB), (0, 0), (1, 50 * MIB)]
"""What is freed, and what comes then."""


@pytest.fixture(scope="module")
def sharded() -> Footprint:
    return footprint(SET["dense"].build, SET["dense"].batch, AdamW, sharding=SPREAD)


def test_each_share_of_a_gradient_is_where_it_is_reduced(sharded: Footprint) -> None:
    reduced = sum(
        size for number, size in sharded.sizes if sharded.streams.get(number) == "Sharded Grad"
    )
    assert reduced == pytest.approx(STEPS * sharded.gradients / SPREAD.ranks, rel=0.02)


def test_what_is_gathered_is_not_with_the_activations(sharded: Footprint) -> None:
    assert Counter(sharded.streams.values())["All Gather"] > 1


def test_what_one_stream_has_freed_another_does_not_use(sharded: Footprint) -> None:
    apart = replace(sharded, sizes=SIZES, shared=frozenset(), streams={1: "Sharded Grad"})
    assert apart.reserved == 100 * MIB
    assert replace(apart, streams={}).reserved == replay(SIZES).reserved == 50 * MIB


def test_a_model_that_is_not_sharded_has_one_stream() -> None:
    assert footprint(SET["dense"].build, SET["dense"].batch, AdamW).streams == {}
