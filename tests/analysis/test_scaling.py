from __future__ import annotations

import pytest

from ddoctor.analysis.scaling import ACROSS_NODES, interpolated, predict
from ddoctor.evidence.probes import AllReduce, RankPlace, SweepPoint
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.wrapping import Wrapper, Wrapping
from tests.healthy.steps import SECTIONS
from tests.training_steps import USUAL, Work, steps, with_more

OWN = 0.1
"""Seconds of the usual rank's own work; 60 ms of it are the backward."""
MIB = 2**20


def sweep(latency: float, bandwidth: float, ranks: int = 2) -> AllReduce:
    """Of a network with this latency (s) and bandwidth (bytes/s)."""
    return AllReduce(
        backend="nccl",
        ranks=tuple(RankPlace(rank=rank, host="node-0", device="cpu") for rank in range(ranks)),
        points=tuple(
            SweepPoint(
                bytes=size,
                rounds=20,
                p50=latency + size * 2 * (ranks - 1) / ranks / bandwidth,
                p99=0.0,
                minimum=0.0,
                bus_bandwidth=bandwidth / 1e9,
            )
            for size in (2**8, 2**14, 2**20, 2**22, 2**24, 2**26, 2**28)
        ),
    )


def wrapping(size: int, kind: str = "ddp") -> Wrapping:
    wrapper = Wrapper(
        rank=0,
        kind="ddp" if kind == "ddp" else "fsdp2",
        name="Model",
        parameters=size // 4,
        parameter_bytes=size,
        trainable_bytes=size,
    )
    return Wrapping(wrappers=(wrapper,))


def test_from_the_transfer_that_was_seen() -> None:
    rows = {row.ranks: row for row in predict(steps(USUAL, USUAL, transfer=0.02))}
    assert list(rows) == [1, 2, 4, 8]
    assert rows[1].best == rows[1].worst == pytest.approx(OWN)
    assert rows[2].measured == pytest.approx(OWN + 0.02)
    assert rows[2].lowest_efficiency == rows[2].highest_efficiency == pytest.approx(OWN / 0.12)
    # All bytes: (n-1)/n to 1/2. All latency: log2 n to 1.
    assert rows[8].best == pytest.approx(OWN + 0.02 * (7 / 8) / (1 / 2))
    assert rows[8].worst == pytest.approx((OWN + 0.02 * 3) * (1 + ACROSS_NODES))


def test_further_hosts_widen_it() -> None:
    rows = {row.ranks: row for row in predict(steps(*[USUAL] * 4, ranks_per_host=2))}
    assert rows[4].worst == pytest.approx((OWN + 0.005) * (1 + ACROSS_NODES))
    assert rows[2].worst == pytest.approx(OWN + 0.005 * (1 / 2) / (3 / 4))


def test_one_rank_and_a_sweep() -> None:
    size = 101 * MIB
    rows = predict(steps(USUAL), wrapping(size), sweep(1e-5, 10e9))
    one, two, *_ = rows
    assert one.measured == pytest.approx(OWN + 0.005)
    # The last bucket has nothing to hide behind.
    assert two.best == pytest.approx(OWN + 25 * MIB / 10e9, rel=0.02)
    worst = (OWN + 1.3 * 25 * MIB / 10e9) * (1 + ACROSS_NODES)
    assert two.worst == pytest.approx(worst, rel=0.02)


def test_a_slow_network_hides_nothing() -> None:
    size = 1000 * MIB
    _, two, *_ = predict(steps(USUAL), wrapping(size), sweep(1e-5, 1e9))
    assert two.best == pytest.approx(OWN - 0.06 + size / 1e9, rel=0.02)
    assert two.lowest_efficiency < two.highest_efficiency < 0.15


def test_efficiency_falls_with_more_ranks() -> None:
    rows = predict(steps(USUAL), wrapping(400 * MIB), sweep(2e-4, 5e9))
    efficiencies = [row.lowest_efficiency for row in rows]
    assert efficiencies[1:] == sorted(efficiencies[1:], reverse=True)


def test_ranks_that_differ_by_chance_wait_longer_where_there_are_more() -> None:
    rows = {row.ranks: row for row in predict(steps(*[USUAL] * 4, noise=0.1, transfer=0.0))}
    assert rows[16].worst > rows[4].worst > rows[2].worst > OWN * 1.01


@pytest.mark.parametrize(
    "ranks",
    [(USUAL, USUAL), (USUAL, with_more("forward", 0.06)), (USUAL,) * 8],
)
def test_what_was_measured_lies_within(ranks: tuple[Work, ...]) -> None:
    rows = predict(steps(*ranks, noise=0.05), wrapping(100 * MIB), sweep(1e-4, 5e9))
    (here,) = (row for row in rows if row.measured is not None and row.ranks == len(ranks))
    assert here.measured is not None
    assert here.best <= here.measured + 1e-9
    assert here.worst >= here.measured - 1e-9


def test_a_sound_node_scales() -> None:
    assert isinstance(SECTIONS[0], Steps)
    rows = {row.ranks: row for row in predict(SECTIONS[0])}
    assert list(rows) == [1, 2, 4, 8, 16, 32]
    assert rows[8].lowest_efficiency > 0.95
    assert rows[32].lowest_efficiency > 0.75


def test_a_sharded_model_is_predicted_by_what_was_seen() -> None:
    section = steps(USUAL, USUAL, transfer=0.02)
    assert predict(section, wrapping(100 * MIB, "fsdp2"), sweep(1, 1)) == predict(section)


def test_nothing_where_nothing_tells() -> None:
    assert predict(steps(USUAL)) == ()
    assert predict(steps(USUAL), wrapping(MIB)) == ()
    assert predict(steps(USUAL), wrapping(MIB), sweep(1e-5, 1e9, ranks=1)) == ()


def test_between_the_sizes_of_a_sweep() -> None:
    points = [(100.0, 1.0), (1000.0, 1.0), (10000.0, 10.0)]
    assert interpolated(points, 10) == 1.0
    assert interpolated(points, 500) == 1.0
    assert interpolated(points, 5000) == pytest.approx(5.0)
    assert interpolated(points, 20000) == 20.0
