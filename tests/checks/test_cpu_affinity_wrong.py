from __future__ import annotations

from collections.abc import Iterable

import pytest

from ddoctor.evidence.gpus import Gpu, Gpus
from ddoctor.evidence.host import Cpus, Kernel, NumaNode
from ddoctor.evidence.loading import Loading
from ddoctor.evidence.probes import ProbeRuns, RankPlace
from ddoctor.evidence.software import Environment, Variable
from ddoctor.evidence.steps import Phase, RankSteps, Steps
from ddoctor.evidence.training import RankHost, RankUse
from ddoctor.models import Confidence, Severity
from tests.conftest import Findings
from tests.training_loaders import loader_with

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


def rank(
    number: int,
    affinity: Iterable[int],
    *,
    waited: float | None = 0.5,
    workers: int = 0,
    worker_affinity: Iterable[int] = (),
    host_cpus: int = 96,
) -> RankHost:
    return RankHost(
        rank=number,
        host="a",
        local_ranks=2,
        threads=1,
        affinity=tuple(affinity),
        host_cpus=host_cpus,
        workers=workers,
        worker_affinity=tuple(worker_affinity),
        waited=waited,
    )


def use(*ranks: RankHost) -> RankUse:
    return RankUse(hosts=ranks, flags=())


def test_quiet_where_a_rank_ended_before_its_mask_was_read(findings: Findings) -> None:
    assert findings(CAUSE, use(rank(0, range(96)), rank(1, (), waited=None))) == ()


def steps(loader: float, ranks: int = 2) -> Steps:
    """60 of 0.1 s, so much of each in the loader."""
    return Steps(
        warm_up=5,
        ranks=tuple(
            RankSteps(
                place=RankPlace(rank=number, host="a", device="cpu"),
                phases=(
                    Phase(name="loader", seconds=(loader,) * 60),
                    Phase(name="forward", seconds=(0.1 - loader,) * 60),
                ),
            )
            for number in range(ranks)
        ),
    )


def loading(cpu: float, ranks: int = 2) -> Loading:
    """Each batch takes so many seconds of a worker's CPU."""
    return Loading(
        loaders=tuple(
            loader_with(
                rank=number,
                host="a",
                name="train.py:9",
                dataset="Images",
                items=4000,
                batch_size=8,
                batches=500,
                num_workers=4,
                pin_memory=True,
                persistent_workers=True,
                fetched=480,
                fetch_seconds=24.0,
                fetch_cpu_seconds=60 * cpu,
                collated=60,
                taken=60,
            )
            for number in range(ranks)
        )
    )


def test_two_ranks_pinned_to_one_core(findings: Findings) -> None:
    (finding,) = findings(CAUSE, use(rank(0, [0]), rank(1, [0])))
    assert finding.confidence is Confidence.LIKELY
    assert finding.where.ranks == (0, 1)
    assert finding.because == (
        "ranks 0-1 may only use CPU 0 of the 96 of a, and waited for it for 50% of the time"
    )
    assert finding.cost is not None
    assert finding.cost.value == 0.5
    assert finding.fixes[0].settings == ("torch.affinity=all",)


def test_what_was_recorded_is_told_once(findings: Findings) -> None:
    inherited = use(rank(0, [0]), rank(1, [0]))
    assert len(findings(CAUSE, inherited, cpus([0]), TWO_RANKS)) == 1


def test_the_pinned_ranks_among_free_ones(findings: Findings) -> None:
    free = (rank(number, range(96), waited=0.0) for number in (2, 3))
    (finding,) = findings(CAUSE, use(rank(0, [4]), rank(1, [4]), *free))
    assert finding.where.ranks == (0, 1)


def test_a_rank_confined_to_fewer_cores_than_its_peer(findings: Findings) -> None:
    (finding,) = findings(CAUSE, use(rank(0, range(96), waited=0.01), rank(1, [7], waited=0.4)))
    assert finding.where.ranks == (1,)
    assert "rank 1 may only use CPU 7 of the 96" in finding.because


def test_how_long_they_waited_was_not_seen(findings: Findings) -> None:
    (finding,) = findings(CAUSE, use(rank(0, [0], waited=None), rank(1, [0], waited=None)))
    assert finding.confidence is Confidence.POSSIBLE
    assert "schedstat" in finding.because


def test_workers_inherit_the_one_core_of_their_rank(findings: Findings) -> None:
    bound = use(rank(0, [0], waited=0.02, workers=4), rank(1, [1], waited=0.02, workers=4))
    found = findings(CAUSE, bound, loading(0.095), steps(loader=0.06))
    assert [finding.where.ranks for finding in found] == [(0,), (1,)]
    assert found[0].because == (
        "the 4 workers of rank 0 may only use CPU 0 of the 96 of a, and used 0.95 of 1 CPUs while "
        "the training waited for 60% of the time"
    )
    assert found[0].fixes[0].settings == ("torch.affinity=all",)


def test_all_workers_were_sent_to_one_core(findings: Findings) -> None:
    ranks = (
        rank(number, range(96), waited=0.0, workers=4, worker_affinity=[0]) for number in (0, 1)
    )
    (finding,) = findings(CAUSE, use(*ranks), loading(0.048), steps(loader=0.06))
    assert "the 8 workers of ranks 0-1 may only use CPU 0" in finding.because
    assert "worker_init_fn" in finding.fixes[0].paste


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param((rank(0, range(96)), rank(1, range(96))), id="all of them"),
        pytest.param((rank(0, [0]), rank(1, [1])), id="one each"),
        pytest.param((rank(0, [0, 1]), rank(1, [0, 1])), id="as many as ranks"),
        pytest.param((rank(0, [0], waited=0.03), rank(1, [0], waited=0.03)), id="hardly waiting"),
        pytest.param((rank(0, [0], host_cpus=1), rank(1, [0], host_cpus=1)), id="no others"),
        pytest.param((rank(0, range(96)), rank(1, [7])), id="confined, and waits no longer"),
        pytest.param((rank(0, range(96), waited=0.0), rank(1, range(64))), id="a little fewer"),
    ],
)
def test_quiet_while_they_trained(findings: Findings, ranks: tuple[RankHost, ...]) -> None:
    assert findings(CAUSE, use(*ranks), steps(loader=0.0), loading(0.0)) == ()


@pytest.mark.parametrize(
    ("mask", "cpu", "wait"),
    [
        pytest.param([0], 0.02, 0.06, id="they sleep, and need no CPU"),
        pytest.param([0], 0.095, 0.002, id="nobody waits for them"),
        pytest.param(range(4), 0.095, 0.06, id="a core for each"),
        pytest.param(range(96), 0.095, 0.06, id="the whole host"),
    ],
)
def test_quiet_about_workers(
    findings: Findings, mask: Iterable[int], cpu: float, wait: float
) -> None:
    alone = use(rank(0, mask, waited=0.02, workers=4))
    assert findings(CAUSE, alone, loading(cpu, ranks=1), steps(wait, ranks=1)) == ()
