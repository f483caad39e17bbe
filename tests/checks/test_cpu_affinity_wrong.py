from __future__ import annotations

from collections.abc import Iterable

import pytest

from ddoctor.evidence.environment import Environment, Variable
from ddoctor.evidence.gpus import Gpu, Gpus
from ddoctor.evidence.host import Cpus, Kernel, NumaNode
from ddoctor.evidence.probes import ProbeRuns
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings

CAUSE = "cpu-affinity-wrong"
NODES = (
    NumaNode(index=0, cpus=tuple(range(48))),
    NumaNode(index=1, cpus=tuple(range(48, 96))),
)


def cpus(allowed: Iterable[int], cpuset: Iterable[int] | None = range(96)) -> Cpus:
    held = None if cpuset is None else tuple(cpuset)
    return Cpus(host="a", logical=96, allowed=tuple(allowed), cpuset=held, numa=NODES)


def gpus(*nodes: int | None) -> Gpus:
    each = (
        Gpu(index=i, name="H100", memory_total=1, memory_used=0, numa_node=node)
        for i, node in enumerate(nodes)
    )
    return Gpus(host="a", driver="570", gpus=tuple(each))


def environment(**variables: str) -> Environment:
    named = (Variable(name=name, value=value) for name, value in variables.items())
    return Environment(host="a", variables=tuple(named))


EIGHT = gpus(0, 0, 0, 0, 1, 1, 1, 1)
TWO_RANKS = ProbeRuns(host="a", runs=(), world_size=2)


def test_one_core_for_two_ranks(findings: Findings) -> None:
    (finding,) = findings(CAUSE, cpus([0]), TWO_RANKS)
    assert finding.severity is Severity.WARNING
    assert finding.confidence is Confidence.CERTAIN
    assert "2 ranks (as the probes ran) share 1 of the machine's 96" in finding.because
    assert finding.fixes[0].paste == "taskset -cp 0-95 $$"


def test_fewer_cores_than_gpus(findings: Findings) -> None:
    (finding,) = findings(CAUSE, cpus([0, 1, 2, 50]), EIGHT)
    assert finding.confidence is Confidence.LIKELY
    assert "8 ranks (one per GPU)" in finding.because
    assert "0-2,50" in finding.because


def test_the_launcher_knows_best(findings: Findings) -> None:
    told = environment(LOCAL_WORLD_SIZE="4", CUDA_VISIBLE_DEVICES="0")
    (finding,) = findings(CAUSE, cpus([0]), gpus(0, 0), told)
    assert "4 ranks (LOCAL_WORLD_SIZE)" in finding.because


@pytest.mark.parametrize(
    ("container", "variables", "words"),
    [
        ("podman", {}, "podman update --cpuset-cpus 0-95"),
        ("kubernetes", {}, 'cpu: "96"'),
        ("", {"SLURM_JOB_ID": "7"}, "--cpus-per-task=96"),
        ("", {}, "AllowedCPUs=0-95"),
    ],
)
def test_what_a_cpuset_holds_is_widened_where_it_is_set(
    findings: Findings, container: str, variables: dict[str, str], words: str
) -> None:
    kernel = Kernel(host="a", release="6.8", container=container)
    sections = cpus([3], cpuset=[3]), TWO_RANKS, kernel, environment(**variables)
    (finding,) = findings(CAUSE, *sections)
    assert words in finding.fixes[0].paste


def test_a_mask_on_the_other_socket(findings: Findings) -> None:
    (finding,) = findings(CAUSE, cpus(range(48), cpuset=range(48)), EIGHT)
    assert finding.where.devices == ("cuda:4", "cuda:5", "cuda:6", "cuda:7")
    assert "NUMA node 1" in finding.because
    assert finding.confidence is Confidence.LIKELY


def test_a_mask_that_each_rank_may_still_change_is_less_sure(findings: Findings) -> None:
    (finding,) = findings(CAUSE, cpus(range(48)), EIGHT)
    assert finding.confidence is Confidence.POSSIBLE
    assert "taskset -cp PID" in finding.because


@pytest.mark.parametrize("allowed", [[0, 1], range(48), range(96)])
def test_quiet_with_a_core_for_each_rank(findings: Findings, allowed: Iterable[int]) -> None:
    assert findings(CAUSE, cpus(allowed), TWO_RANKS) == ()


def test_quiet_where_the_machine_has_no_more(findings: Findings) -> None:
    small = Cpus(host="a", logical=1, allowed=(0,), cpuset=(0,))
    assert findings(CAUSE, small, TWO_RANKS) == ()


def test_quiet_where_nothing_tells_the_ranks(findings: Findings) -> None:
    assert findings(CAUSE, cpus([0])) == ()


def test_quiet_where_the_probes_spanned_hosts(findings: Findings) -> None:
    assert findings(CAUSE, cpus([0]), ProbeRuns(runs=(), world_size=16)) == ()


def test_quiet_where_only_near_gpus_are_used(findings: Findings) -> None:
    used = environment(CUDA_VISIBLE_DEVICES="0,1,2,3")
    assert findings(CAUSE, cpus(range(48)), EIGHT, used) == ()


def test_quiet_where_the_mask_reaches_both_sockets(findings: Findings) -> None:
    assert findings(CAUSE, cpus([*range(8), *range(48, 56)]), EIGHT) == ()


@pytest.mark.parametrize("node", [None, -1])
def test_quiet_where_the_node_of_a_gpu_is_unknown(findings: Findings, node: int | None) -> None:
    assert findings(CAUSE, cpus(range(48)), gpus(node, node)) == ()


def test_quiet_where_mpirun_gave_each_rank_cores_of_its_own(findings: Findings) -> None:
    bound = environment(OMPI_COMM_WORLD_LOCAL_RANK="0", OMPI_COMM_WORLD_LOCAL_SIZE="2")
    assert findings(CAUSE, cpus([0]), TWO_RANKS, gpus(1, 1), bound) == ()


def test_torchrun_under_mpirun_gives_its_mask_to_all_ranks(findings: Findings) -> None:
    told = environment(OMPI_COMM_WORLD_LOCAL_RANK="0", LOCAL_WORLD_SIZE="2")
    (finding,) = findings(CAUSE, cpus([0]), told)
    assert "2 ranks (LOCAL_WORLD_SIZE) share 1" in finding.because
