"""How far a sweep over sizes goes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from ddoctor.evidence.probes import SweepPoint
from ddoctor.probing import size_sweep
from ddoctor.probing.world import ProbeWorld


@pytest.mark.parametrize(("share", "last"), [(1.0, 2**20), (1e-6, 2**10)])
def test_a_sweep_ends_where_its_share_of_the_time_does(share: float, last: int) -> None:
    alone = SimpleNamespace(share_of_time=share, backend="gloo", agree=lambda value: value)
    points: list[SweepPoint] = []
    for size, _ in size_sweep.sizes(
        cast(ProbeWorld, alone), points, first=2**10, top=2**20, seconds=600
    ):
        points.append(
            SweepPoint(bytes=size, rounds=20, p50=1e-3, p99=1e-3, minimum=1e-3, bus_bandwidth=size)
        )
    assert points[-1].bytes == last
