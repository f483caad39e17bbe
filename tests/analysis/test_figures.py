from __future__ import annotations

import pytest

from ddoctor.analysis.figures import Figure, MeasuredFigure, figures
from ddoctor.evidence.cluster_probes import Collectives, End, Flow, Pairs, Sweep
from ddoctor.evidence.probes import RankPlace
from ddoctor.evidence.section import Evidence
from tests.healthy.probes import sweep
from tests.training_steps import USUAL, steps, with_more

PLACES = tuple(RankPlace(rank=rank, host=f"node-{rank}", device="cpu") for rank in range(2))


def test_each_collective_in_each_scope() -> None:
    told = figures(
        Evidence(
            [
                Collectives(
                    backend="nccl",
                    ranks=PLACES,
                    sweeps=(
                        Sweep(
                            collective="broadcast",
                            scope="within",
                            host="node-0",
                            ranks=(0, 1),
                            points=sweep({2**20: 3.0}, ranks=2),
                        ),
                        Sweep(collective="all-to-all", scope="all", ranks=(0, 1), skipped="no"),
                    ),
                )
            ]
        )
    )
    (figure,) = told
    assert figure == Figure(
        name="broadcast of 2 ranks over nccl (within)",
        unit="GB/s busbw",
        host="node-0",
        bytes=2**20,
    )


def test_each_direction_between_hosts() -> None:
    flows = (
        Flow(sender=0, receiver=1, bytes=2**26, rates=(1.0, 2.0, 3.0)),
        Flow(sender=1, receiver=0, bytes=2**26, rates=(5.0,)),
    )
    ends = tuple(End(place=place) for place in PLACES)
    told = figures(Evidence([Pairs(backend="gloo", ends=ends, flows=flows)]))
    assert {(figure.host, figure.name): measured for figure, measured in told.items()} == {
        ("node-0", "sending to node-1 over gloo"): MeasuredFigure(rate=2.0, spread=2.0),
        ("node-1", "sending to node-0 over gloo"): MeasuredFigure(rate=5.0),
    }


def test_the_steps_of_a_training() -> None:
    quick, slow = (steps(with_more("forward", delay), USUAL) for delay in (0.0, 0.1))
    ((figure, was),) = figures(Evidence([quick])).items()
    ((same, now),) = figures(Evidence([slow])).items()
    assert figure == same == Figure(name="training on 2 ranks", unit="steps/s")
    assert was.rate == pytest.approx(1 / 0.105)
    assert now.rate == pytest.approx(1 / 0.205)
