"""Ranks that all wait in calls which do not belong together: what the report of the hang names."""

from __future__ import annotations

import os
import signal
import time

import pytest

from ddoctor.evidence.training import TrainingRun
from tests.training.conftest import MakeTraining

CALLS = """
    import sys
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    how = sys.argv[1]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    model = DistributedDataParallel(nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def exchange(mine):
        if how == "groups":
            groups = (second, first) if rank else (first, second)
            for group in groups:
                dist.all_reduce(mine, group=group)
        elif how == "messages":
            dist.send(mine, 1 - rank)
            dist.recv(mine, 1 - rank)
        else:
            for work in dist.batch_isend_irecv([
                dist.P2POp(dist.isend, mine, 1 - rank),
                dist.P2POp(dist.irecv, torch.empty_like(mine), 1 - rank),
            ]):
                work.wait()
            for group in (first, second):
                dist.all_reduce(mine, group=group)

    for step in range(40):
        loss = model(torch.randn(8, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 20:
            exchange(torch.ones(100_000))
"""


@pytest.mark.ward
def test_process_groups_in_another_order(training: MakeTraining) -> None:
    trained = training(CALLS, "groups").recorded("--no-prove", "--steps=10000")
    assert trained.first["cause"] == "rank-dependent-control-flow"
    assert trained.first["confidence"] == "certain"
    assert "in 2 process groups: rank 0 and rank 1" in trained.first["because"]
    assert "train.py:19 in exchange" in trained.first["because"]


@pytest.mark.ward
def test_messages_that_each_sends_first(training: MakeTraining) -> None:
    trained = training(CALLS, "messages").recorded("--no-prove", "--steps=10000")
    assert (trained.first["cause"], trained.first["confidence"]) == (
        "unmatched-send-recv",
        "certain",
    )
    assert "each sends first" in trained.first["because"]


def test_calls_that_belong_together(training: MakeTraining) -> None:
    trained = training(CALLS, "matched").recorded("--no-prove", "--steps=30")
    # Of steps as short as these, communication may be the most on a busy machine.
    assert not {*trained.alarms} - {"communication-bound-step"}
    (run,) = trained.evidence.all(TrainingRun)
    assert {one.outcome for one in run.ranks} == {"finished"}


SEARCHES = """
    import sys
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def root(value, tolerance):
        while True:
            better = (value + 2 / value) / 2
            if abs(better - value) < tolerance:
                return better
            value = better

    for step in range(40):
        loss = model(torch.randn(8, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 20 and rank == 1:
            print("searches", flush=True)
            root(3.0, 0.0)
"""


@pytest.mark.ward
def test_work_without_end_that_somebody_interrupts(training: MakeTraining) -> None:
    script = training(SEARCHES)
    with script.started(*script.under("--no-prove", "--steps=10000")) as process:
        assert process.stdout is not None
        assert "searches\n" in process.stdout
        # It has stood for longer than what counts, when somebody has had enough of it.
        time.sleep(45)
        os.kill(process.pid, signal.SIGINT)
        trained = script.outcome(process)
    assert trained.first["cause"] == "late-rank-timeout"
    assert trained.first["where"]["ranks"] == [1]
    assert "in root" in trained.first["because"]
    assert "while True:" in trained.first["fixes"][0]["paste"]
