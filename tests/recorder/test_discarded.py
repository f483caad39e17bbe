"""Gradients that are zeroed before any optimizer takes them."""

from __future__ import annotations

import pytest

from ddoctor.evidence.wrapping import Wrapper
from tests.recorder.conftest import Record

BEGIN = """
import time
SECONDS = 0.02
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        time.sleep(SECONDS)
        return gradient
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
    def forward(self, x):
        return self.last(Slow.apply(self.first(x)))
class Generator(Net):
    pass
class Critic(Net):
    pass
generator, critic = DDP(Generator()), DDP(Critic())
of_generator = torch.optim.SGD(generator.parameters(), lr=0.01)
of_critic = torch.optim.SGD(critic.parameters(), lr=0.01)
"""
GAN = """
def learn_critic():
    of_critic.zero_grad()
    critic(SAMPLE).sum().backward()
    of_critic.step()
def learn_generator():
    of_generator.zero_grad()
    critic(generator(torch.randn(8, 4))).sum().backward()
    of_generator.step()
for step in range(8):
    ORDER
"""
ATTACHED, DETACHED = (
    GAN.replace("SAMPLE", sample)
    for sample in ("generator(torch.randn(8, 4))", "generator(torch.randn(8, 4)).detach()")
)
CRITIC_FIRST = "learn_critic(); learn_generator()"
GENERATOR_FIRST = "learn_generator(); learn_critic()"


def discarded(record: Record, source: str) -> dict[str, float]:
    ran = record(BEGIN + source)
    assert ran.exit_code == 0, ran.stderr
    assert all(isinstance(one, Wrapper) for one in ran.known.wrappers)
    return {one.name: one.discarded for one in ran.known.wrappers}


@pytest.mark.parametrize("order", [CRITIC_FIRST, GENERATOR_FIRST], ids=["first", "last"])
def test_a_critic_that_learns_through_the_generator(record: Record, order: str) -> None:
    found = discarded(record, ATTACHED.replace("ORDER", order))
    # Of four slow layers, one is the generator's in the critic's pass.
    assert 0.15 <= found["Generator"] <= 0.35
    assert found["Critic"] == 0


def test_a_critic_that_learns_twice_as_often(record: Record) -> None:
    """Its gradients of both passes are zeroed at once."""
    order = "learn_critic(); learn_critic(); learn_generator()"
    found = discarded(record, ATTACHED.replace("ORDER", order))
    assert found["Generator"] >= 0.2
    assert found["Critic"] == 0


def test_models_without_a_wrapper(record: Record) -> None:
    plain = ATTACHED.replace("ORDER", CRITIC_FIRST)
    ran = record(BEGIN.replace("DDP(Generator()), DDP(Critic())", "Generator(), Critic()") + plain)
    found = {one.name: one.discarded for one in ran.known.wrappers}
    assert 0.15 <= found["Generator"] <= 0.35
    assert found["Critic"] == 0


SOUND = {
    "detached": DETACHED.replace("ORDER", CRITIC_FIRST),
    "a generator that learns from a critic": DETACHED.replace("ORDER", GENERATOR_FIRST),
    "gradients of several passes": """
for step in range(8):
    for part in range(3):
        critic(generator(torch.randn(8, 4))).sum().backward()
    of_critic.step()
    of_generator.step()
    of_critic.zero_grad()
    of_generator.zero_grad()
""",
    "one after the other": """
for step in range(8):
    critic(generator(torch.randn(8, 4))).sum().backward()
    of_critic.step()
    of_critic.zero_grad()
    of_generator.step()
    of_generator.zero_grad()
""",
    "now and then": """
for step in range(8):
    of_critic.zero_grad()
    made = generator(torch.randn(8, 4))
    critic(made if step == 1 else made.detach()).sum().backward()
    of_critic.step()
    of_generator.zero_grad()
""",
}


@pytest.mark.parametrize("source", SOUND.values(), ids=SOUND)
def test_quiet(record: Record, source: str) -> None:
    assert not any(discarded(record, source).values())


def test_zeroing_is_as_before(record: Record) -> None:
    """The methods are torch's own again when the next step is inspected."""
    again = ATTACHED.replace("ORDER", CRITIC_FIRST).replace("range(8)", "range(80)")
    ran = record(
        f"{BEGIN}methods = lambda: (torch.optim.Optimizer.zero_grad, nn.Module.zero_grad)\n"
        f"before, SECONDS = methods(), 0\n{again}\nprint(before == methods())"
    )
    assert ran.stdout.endswith("True\n"), ran.stderr
