"""Forward and backward passes, and where the rank waits for the others in them."""

from __future__ import annotations

import pytest

from ddoctor.recorder.tape import DDP_REDUCE
from tests.recorder.conftest import Record, Run

BEGIN = """
import threading, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)
class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        time.sleep(0.01)
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        time.sleep(0.02)
        return gradient
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 1)
    def block(self, x):
        return Slow.apply(self.first(x))
    def forward(self, x):
        return self.last(self.block(x))
def train(model, steps=8, backward=torch.Tensor.backward, before=lambda: None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        loss = model(torch.randn(8, 4)).square().mean()
        before()
        backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    print(float(loss))
"""

ACCUMULATED = """
model = DDP(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    for part in range(3):
        with model.no_sync():
            model(torch.randn(8, 4)).sum().backward()
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_only_the_last_part_of_a_batch_is_synced(record: Record) -> None:
    ran = record(BEGIN + ACCUMULATED)
    assert ran.exit_code == 0, ran.stderr
    assert ran.counted("forwards")[1:] == ran.counted("backwards")[1:] == [4] * 4
    assert ran.counted("samples")[1:] == [32] * 4
    assert ran.counted("elements")[1:] == [32 * 4] * 4
    assert ran.counted("synced_backwards")[1:] == [1] * 4
    for row in ran.rows[1:]:
        ((arrival, seconds, _, operation),) = row.meetings
        assert operation == DDP_REDUCE
        # The pass itself is none of the wait at its end.
        assert row.begin + 4 * (0.01 + 0.02) <= arrival <= arrival + seconds <= row.end
    assert min(ran.phase("forward")[1:]) >= 4 * 0.01
    assert min(ran.phase("backward")[1:]) >= 4 * 0.02


HELD_TOO_LATE = """
model = DDP(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    for part in range(4):
        loss = model(torch.randn(8, 4)).sum()
        with model.no_sync() if part < 3 else torch.enable_grad():
            loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_no_sync_around_the_backward_pass_holds_nothing_back(record: Record) -> None:
    """DDP decides in the forward pass."""
    ran = record(BEGIN + HELD_TOO_LATE)
    assert ran.exit_code == 0, ran.stderr
    assert ran.counted("backwards")[1:] == ran.counted("synced_backwards")[1:] == [4] * 4
    for row in ran.rows[1:]:
        assert [operation for _, _, _, operation in row.meetings] == [DDP_REDUCE] * 4


CHECKPOINTED = """
class Checkpointed(Net):
    def block(self, x):
        return checkpoint(super().block, x, use_reentrant=REENTRANT)
class Inputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Checkpointed()
    def forward(self, x):
        return self.net(x.requires_grad_())
train(Inputs())
"""
IN_A_THREAD = """
def backward(loss):
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
train(DDP(Net()), backward=backward)
"""
TWICE = """
def backward(loss):
    (gradient,) = torch.autograd.grad(loss, list(model.parameters())[:1], create_graph=True)
    (loss + gradient.square().sum()).backward()
class Smooth(Net):
    def block(self, x):
        return self.first(x).tanh()
model = Smooth()
train(model, backward=backward)
"""
BY_HAND = """
model = Net()
def backward(loss):
    parameters = list(model.parameters())
    for one, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
        one.grad = gradient
train(model, backward=backward)
"""
COMPILED = """
model = DDP(torch.compile(Net(), backend="eager"))
train(model)
"""
FAILING = """
class Failing(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.calls = Net(), 0
    def forward(self, x):
        self.calls += 1
        if self.calls % 2:
            raise ValueError("odd")
        return self.net(x)
failing = Failing()
def twice(x):
    try:
        failing(x)
    except ValueError:
        return failing(x)
twice.parameters = failing.parameters
def backward(loss):
    loss.backward(retain_graph=True)
    loss.register_hook(lambda gradient: 1 / 0)
    try:
        loss.backward()
    except ZeroDivisionError:
        pass
train(twice, backward=backward)
"""


@pytest.mark.parametrize(
    ("body", "forward", "backward", "forwards", "backwards"),
    [
        # What is computed anew is a part of the backward pass.
        pytest.param(
            CHECKPOINTED.replace("REENTRANT", "True"),
            0.01,
            0.03,
            1,
            1,
            id="reentrant checkpoint",
            marks=pytest.mark.ward,
        ),
        # This one stops where it has all that was not kept: before the slow part.
        pytest.param(CHECKPOINTED.replace("REENTRANT", "False"), 0.01, 0.02, 1, 1, id="checkpoint"),
        pytest.param(IN_A_THREAD, 0.01, 0.0, 1, 0, id="in a thread", marks=pytest.mark.ward),
        pytest.param(TWICE, 1e-6, 1e-6, 1, 1, id="twice", marks=pytest.mark.ward),
        pytest.param(BY_HAND, 0.01, 0.02, 1, 0, id="by hand", marks=pytest.mark.ward),
        pytest.param(COMPILED, 0.01, 0.02, 1, 1, id="compiled", marks=pytest.mark.ward),
        pytest.param(FAILING, 0.01, 0.02, 2, 2, id="failing", marks=pytest.mark.ward),
    ],
)
def test_the_passes_of_a_step(
    bare: Run,
    record: Record,
    body: str,
    forward: float,
    backward: float,
    forwards: int,
    backwards: int,
) -> None:
    source = BEGIN + body
    ran = record(source)
    assert (ran.exit_code, ran.stdout) == (0, bare(source).stdout), ran.stderr
    assert ran.done == 7
    assert min(ran.phase("forward")[1:]) >= forward
    assert min(ran.phase("backward")[1:]) >= backward
    assert ran.counted("forwards")[1:] == [forwards] * 6
    assert ran.counted("backwards")[1:] == [backwards] * 6
    for row in ran.rows:
        assert sum(row.phases) == pytest.approx(row.end - row.begin, abs=1e-6)
