"""How many ranks a host is to run."""

from __future__ import annotations

import pytest

from ddoctor.analysis.local_ranks import LocalRanks, visible_gpus
from ddoctor.evidence.gpus import Gpu, Gpus
from ddoctor.evidence.probes import ProbeRuns
from ddoctor.evidence.software import Environment, Variable

GPUS = Gpus(
    driver="570",
    gpus=tuple(
        Gpu(index=index, uuid=f"GPU-{index}aaa", name="H100", memory_total=1, memory_used=0)
        for index in range(4)
    ),
)
PROBES = ProbeRuns(host="a", runs=(), world_size=2)


def environment(**variables: str) -> Environment:
    named = (Variable(name=name, value=value) for name, value in variables.items())
    return Environment(variables=tuple(named))


@pytest.mark.parametrize(
    ("chosen", "indices"),
    [
        ("0,2", [0, 2]),
        ("3,1", [3, 1]),
        ("GPU-2a", [2]),
        (" 1 , 2 ", [1, 2]),
        ("0,9,1", [0]),
        ("-1", []),
        ("", []),
    ],
)
def test_visible_gpus_are_those_that_cuda_would_offer(chosen: str, indices: list[int]) -> None:
    visible = visible_gpus(GPUS, environment(CUDA_VISIBLE_DEVICES=chosen))
    assert [gpu.index for gpu in visible] == indices


def test_without_the_variable_all_gpus_are_visible() -> None:
    assert visible_gpus(GPUS, environment()) == GPUS.gpus
    assert visible_gpus(GPUS, None) == GPUS.gpus
    assert visible_gpus(None, None) == ()


@pytest.mark.parametrize(
    ("gpus", "variables", "runs", "expected"),
    [
        (GPUS, {"LOCAL_WORLD_SIZE": "8"}, PROBES, (8, True)),
        (GPUS, {"LOCAL_WORLD_SIZE": "many"}, PROBES, (4, False)),
        (GPUS, {"CUDA_VISIBLE_DEVICES": "1"}, PROBES, (1, False)),
        (GPUS, {"CUDA_VISIBLE_DEVICES": ""}, PROBES, (2, True)),
        (None, {}, PROBES, (2, True)),
    ],
)
def test_the_launcher_then_the_gpus_then_the_probes(
    gpus: Gpus | None, variables: dict[str, str], runs: ProbeRuns, expected: tuple[int, bool]
) -> None:
    ranks = LocalRanks.derive(gpus, environment(**variables), runs)
    assert (ranks.number, ranks.certain) == expected


@pytest.mark.parametrize(
    "runs",
    [
        None,
        pytest.param(ProbeRuns(host="a", runs=(), world_size=0), id="nothing ran"),
        pytest.param(ProbeRuns(runs=(), world_size=16), id="they spanned hosts"),
    ],
)
def test_otherwise_nobody_knows(runs: ProbeRuns | None) -> None:
    assert LocalRanks.derive(None, None, runs).number is None
