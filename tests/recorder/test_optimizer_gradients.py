"""What optimizers find in the gradients of their parameters."""

from __future__ import annotations

import pytest

from ddoctor.evidence.training import RankFlags
from tests.recorder.conftest import Record

BEGIN = """
import copy
import torch
from torch import nn
model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def loss():
    return model(torch.randn(8, 4)).square().mean()
"""
SOUND = {
    "zeroed before": """
for step in range(20):
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()
""",
    "zeroed after, not to None": """
for step in range(20):
    loss().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
""",
    "by hand": """
for step in range(20):
    loss().backward()
    optimizer.step()
    for one in model.parameters():
        one.grad = None
""",
    "accumulated": """
for step in range(60):
    loss().backward()
    if step % 3 == 2:
        optimizer.step()
        optimizer.zero_grad()
""",
    "in a closure": """
def closure():
    optimizer.zero_grad()
    found = loss()
    found.backward()
    return found
for step in range(20):
    optimizer.step(closure)
""",
    "a critic also gets those of the generator's pass": """
generator = nn.Linear(4, 4)
of_generator = torch.optim.SGD(generator.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    model(generator(torch.randn(8, 4)).detach()).sum().backward()
    optimizer.step()
    of_generator.zero_grad()
    model(generator(torch.randn(8, 4))).sum().backward()
    of_generator.step()
""",
    "one that dampens its gradients": """
for step in range(20):
    loss().backward()
    optimizer.step()
    for one in model.parameters():
        one.grad.mul_(0.9)
""",
    "a second one has nothing yet": """
later = torch.optim.SGD(nn.Linear(4, 4).parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()
    later.step()
""",
    "within the backward pass, and a dummy": """
of_each = {one: torch.optim.SGD([one], lr=0.01) for one in model.parameters()}
dummy = torch.optim.SGD([torch.randn(1, 1)], lr=0.01)
def steps(parameter):
    of_each[parameter].step()
    of_each[parameter].zero_grad()
for one in model.parameters():
    one.register_post_accumulate_grad_hook(steps)
for step in range(20):
    loss().backward()
    dummy.step()
    dummy.zero_grad()
""",
}


def flags(record: Record, source: str) -> RankFlags:
    ran = record(BEGIN + source)
    assert ran.exit_code == 0, ran.stderr
    assert ran.known.flags is not None
    return ran.known.flags


@pytest.mark.parametrize("source", SOUND.values(), ids=SOUND)
def test_sound(record: Record, source: str) -> None:
    found = flags(record, source)
    assert (found.without_gradients, found.never_zeroed) == (False, False)
    assert not found.zero_gradients


@pytest.mark.parametrize("often", [1, 2])
def test_gradients_that_nothing_zeroes(record: Record, often: int) -> None:
    source = f"""
for step in range(20):
    for part in range({often}):
        loss().backward()
    optimizer.step()
"""
    assert flags(record, source).never_zeroed


def test_an_optimizer_of_a_copy(record: Record) -> None:
    found = flags(
        record,
        """
model = copy.deepcopy(model)
for step in range(20):
    model.zero_grad()
    loss().backward()
    optimizer.step()
""",
    )
    assert (found.without_gradients, found.never_zeroed) == (True, False)


def test_gradients_that_are_zeroed_before_the_step(record: Record) -> None:
    found = flags(
        record,
        """
for step in range(20):
    loss().backward()
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()
""",
    )
    assert found.zero_gradients


def test_one_of_two_optimizers_has_zeros_at_first(record: Record) -> None:
    found = flags(
        record,
        """
critic = torch.nn.Linear(4, 1)
second = torch.optim.Adam(critic.parameters())
for step in range(20):
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()
    second.zero_grad()
    (0.0 * critic(torch.randn(3, 4)).sum()).backward()
    second.step()
""",
    )
    assert not found.zero_gradients


def test_gradients_that_come_later(record: Record) -> None:
    """Such as those of a part that is trained from some step on."""
    found = flags(
        record,
        """
trained, model = model, copy.deepcopy(model)
for step in range(40):
    if step == 12:
        model = trained
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()
""",
    )
    assert not found.never_zeroed


def test_the_script_computes_the_same(record: Record) -> None:
    """Hooks change no gradient, and none stays."""
    source = """
torch.manual_seed(0)
for step in range(20):
    loss().backward()
    optimizer.step()
print([round(one.sum().item(), 6) for one in model.parameters()])
print(sum(len(one._backward_hooks or ()) for one in model.parameters()))
print(len(optimizer._optimizer_step_post_hooks))
"""
    begin = BEGIN.replace("from torch import nn", "from torch import nn\ntorch.manual_seed(1)")
    ran = record(begin + source)
    names: dict[str, object] = {}
    told: list[str] = []
    exec(begin + source.replace("print(", "told.append("), names | {"told": told})
    assert ran.stdout.splitlines() == [*[*map(str, told)][:1], "0", "0"]
