"""DataLoader workers that a line of the script confines to few CPUs."""

from __future__ import annotations

import os

import pytest

from ddoctor.analysis.cpu_contention import waiting_for_workers
from ddoctor.evidence.loading import Loading
from ddoctor.evidence.steps import Steps
from ddoctor.evidence.training import RankUse
from tests.training.conftest import MakeTraining

pytestmark = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="to confine a worker takes two CPUs"
)

# Less of it does not show that the workers need more.
MOST_OF_A_CPU = 0.8

TRAIN = """
    import os, sys
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, Dataset

    where = sys.argv[1]
    cpus = sorted(os.sched_getaffinity(0))
    dist.init_process_group("gloo")

    class Items(Dataset):
        def __len__(self):
            return 100_000

        def __getitem__(self, number):
            return torch.full((4,), float(sum(range(20_000)) % 7))

    def confine(worker):
        if where != "everywhere":
            os.sched_setaffinity(0, cpus[:1] if where == "one" else cpus[worker % 2 :][:1])

    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x in DataLoader(Items(), batch_size=64, num_workers=2, worker_init_fn=confine):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.ward
def test_all_workers_on_one_cpu(training: MakeTraining) -> None:
    trained = training(TRAIN, "one").recorded("--no-prove", "--steps=60")
    (use,) = trained.evidence.all(RankUse)
    first = min(os.sched_getaffinity(0))
    assert [one.worker_affinity for one in use.hosts] == [(first,), (first,)]
    (loading,), (steps,) = trained.evidence.all(Loading), trained.evidence.all(Steps)
    busy = [held.busy or 0.0 for held in waiting_for_workers(use.hosts, loading, steps)]
    if not busy or busy[0] < MOST_OF_A_CPU:
        pytest.skip(f"other processes had CPU {first} as well: its workers used {busy} of it")
    found = [one for one in trained.told["findings"] if one["cause"] == "cpu-affinity-wrong"]
    (finding,) = found
    assert f"the 4 workers of ranks 0-1 may only use CPU {first}" in finding["because"]
    assert "worker_init_fn" in finding["fixes"][0]["paste"]


@pytest.mark.ward
@pytest.mark.parametrize("where", ["everywhere", "one each"])
def test_workers_that_may_use_several(training: MakeTraining, where: str) -> None:
    trained = training(TRAIN, where).recorded("--no-prove", "--steps=60")
    (use,) = trained.evidence.all(RankUse)
    if where == "everywhere":
        assert [one.worker_affinity for one in use.hosts] == [(), ()]
    assert "cpu-affinity-wrong" not in trained.alarms
