"""Collectives: how often and how long, at which line, and how many bytes."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ddoctor.recorder.recorded import CallFacts
from ddoctor.recorder.tape import COLLECTIVE, OPERATIONS
from tests.recorder.conftest import Record, Recorded, Run

ALONE = """
import torch
import torch.distributed as dist
from torch import nn
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
part = dist.new_group([0])
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.ones(10)
def mean(value):
    dist.all_reduce(value)
    return value
for step in range(6):
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    mean(x)
    mean(x)
    work = dist.broadcast(x, 0, async_op=True)
    work.wait()
    dist.all_gather([torch.empty(10)], x, group=part)
    names = [None]
    dist.all_gather_object(names, {"rank": 0})
    dist.broadcast_object_list(names, src=0)
    dist.barrier()
    if step == 3:
        try:
            dist.all_reduce("no tensor")
        except Exception as error:
            print(type(error).__name__)
"""


def by_operation(ran: Recorded) -> Mapping[str, CallFacts]:
    found = {(one.operation, one.place): one for one in ran.known.calls}
    assert len(found) == len(ran.known.calls)
    return {operation: one for (operation, _), one in found.items()}


def line(source: str, text: str) -> str:
    number = next(n for n, one in enumerate(source.splitlines(), 1) if text in one)
    return f"train.py:{number}"


@pytest.mark.ward
def test_each_line_that_calls_one(bare: Run, record: Record) -> None:
    ran = record(ALONE)
    assert (ran.exit_code, ran.stdout) == (0, bare(ALONE).stdout), ran.stderr
    calls = by_operation(ran)
    # Objects are gathered by other collectives, which nobody called: they are a part of it.
    assert set(calls) == {
        "all_reduce",
        "broadcast",
        "all_gather",
        "all_gather_object",
        "broadcast_object_list",
        "barrier",
    }
    reduced = calls["all_reduce"]
    assert reduced.place == line(ALONE, "dist.all_reduce(value)")
    assert reduced.of_user
    # Step, calls and bytes: two in each round.
    assert [one[:3] for one in reduced.steps] == [(number, 2, 80) for number in range(6)]
    assert all(seconds > 0 for *_, seconds in reduced.steps)
    assert sum(one[1] for one in calls["barrier"].steps) == 6


def test_each_is_a_meeting_of_those_who_take_part(record: Record) -> None:
    ran = record(ALONE)
    for row in ran.rows:
        met = [OPERATIONS[int(operation)] for *_, operation in row.meetings]
        assert met == [
            "all_reduce",
            "all_reduce",
            "broadcast",
            # The wait for it is a meeting as well.
            "broadcast",
            "all_gather",
            "all_gather_object",
            "broadcast_object_list",
            "barrier",
            *["all_reduce"] * (row.number == 3),
        ]
        assert {group for _, _, group, _ in row.meetings} == {0.0}
        whole = sum(seconds for _, seconds, _, _ in row.meetings)
        inside = row.phases[COLLECTIVE]
        assert 0 < inside <= whole + 1e-6
        assert all(row.begin <= arrival <= row.end for arrival, *_ in row.meetings)


TOGETHER = """
import os, sys, time
import torch
import torch.distributed as dist
rank, file = int(sys.argv[1]), "store"
if rank == 0:
    import subprocess
    other = subprocess.Popen([sys.executable, "train.py", "1"])
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store", rank=rank, world_size=2)
alone = dist.new_group([0])
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    time.sleep(0.03 * rank)
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    x = torch.ones(10)
    if rank == 0:
        dist.all_reduce(x, group=alone)
    else:
        time.sleep(0.03)
    dist.all_reduce(x)
    assert float(x[0]) == 2
    time.sleep(0.02 * rank)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
dist.destroy_process_group()
if rank == 0:
    assert other.wait() == 0
"""


def test_who_comes_early_waits(record: Record) -> None:
    ran = record(TOGETHER, "train.py", "0")
    assert ran.exit_code == 0, ran.stderr
    for row in ran.rows[2:]:
        meetings = [
            (OPERATIONS[int(operation)], bool(group), seconds)
            for _, seconds, group, operation in row.meetings
        ]
        names = [one[:2] for one in meetings]
        assert names == [
            ("all_reduce", True),
            ("all_reduce", False),
            ("all_reduce", False),
            ("all_reduce", False),
            ("DDP's gradient reduction", False),
        ]
        alone, reduced, begun, waited, gradients = (one[2] for one in meetings)
        # The other one sleeps before each of these.
        assert gradients >= 0.02
        assert waited >= 0.01
        assert reduced >= 0.02
        assert begun < 0.02
        assert alone < 0.02


FUNCTIONAL = """
import os, sys, time
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
rank = int(sys.argv[1])
if rank == 0:
    import subprocess
    other = subprocess.Popen([sys.executable, "train.py", "1"])
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/store", rank=rank, world_size=2)
alone = dist.new_group([0])
class Net(torch.nn.Linear):
    def forward(self, x):
        time.sleep(0.03 * rank)
        x = functional.all_reduce(super().forward(x), "sum", dist.group.WORLD)
        # Waited for at its first use, through a view of it.
        x = x.view(-1).sum()
        if rank == 0:
            functional.all_reduce(torch.ones(1), "sum", alone).wait()
        return x
model = Net(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    total = model(torch.ones(8, 4))
    total.backward()
    optimizer.step()
dist.destroy_process_group()
if rank == 1:
    os._exit(0)  # gloo's threads sometimes abort while Python ends
assert other.wait() == 0
"""


@pytest.mark.ward
def test_functional_ones_are_met_where_their_tensor_is_used(bare: Run, record: Record) -> None:
    ran = record(FUNCTIONAL, "train.py", "0")
    assert ran.exit_code == 0, ran.stderr
    for row in ran.rows[2:]:
        meetings = [
            (OPERATIONS[int(operation)], bool(group), seconds)
            for _, seconds, group, operation in row.meetings
        ]
        assert [one[:2] for one in meetings] == [
            ("all_reduce", False),
            ("all_reduce", False),
            ("all_reduce", True),
            ("all_reduce", True),
        ]
        begun, waited, *_ = (one[2] for one in meetings)
        assert waited >= 0.02
        assert begun < 0.02
    assert {one.within for one in ran.known.calls} == {"forward"}


COMPILED = """
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
@torch.compile(backend="aot_eager", fullgraph=True)
def loss(x):
    return functional.all_reduce(model(x).square().mean(), "sum", dist.group.WORLD)
for step in range(6):
    optimizer.zero_grad()
    value = loss(torch.randn(8, 4))
    value.backward()
    optimizer.step()
print(value.item())
"""


@pytest.mark.ward
def test_compiled_ones_are_left_alone(bare: Run, record: Record) -> None:
    ran = record(COMPILED)
    assert (ran.exit_code, ran.stdout) == (0, bare(COMPILED).stdout), ran.stderr
