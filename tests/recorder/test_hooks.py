"""Hooks of tensors and modules: work of the script's own in the midst of a pass."""

from __future__ import annotations

import pytest

from ddoctor.recorder.tape import REST
from tests.conftest import sampled
from tests.recorder.conftest import Record, Run

BEGIN = """
import copy, functools, io, time
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def busy(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass
def watch(gradient):
    busy(0.02)
def clip(gradient):
    return gradient.clamp(-0.1, 0.1)
def train(steps=8):
    for step in range(steps):
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(float(loss))
"""

REGISTER = {
    "of a gradient": "model[0].weight.register_hook(watch)",
    "partial": "model[0].weight.register_hook(functools.partial(watch))",
    "a method": """
class Watch:
    def see(self, gradient):
        busy(0.02)
model[0].weight.register_hook(Watch().see)
""",
    "an object": """
class Watch:
    def __call__(self, gradient):
        busy(0.02)
model[0].weight.register_hook(Watch())
""",
    "a lambda": "model[0].weight.register_hook(lambda gradient, name='a': watch(gradient))",
    "after it is stored": "model[0].weight.register_post_accumulate_grad_hook(watch)",
}


@pytest.mark.parametrize("kind", sampled(REGISTER))
def test_a_hook_is_no_part_of_the_backward_pass(record: Record, kind: str) -> None:
    found = record(f"{BEGIN}\n{REGISTER[kind]}\ntrain(30)")
    assert min(found.phase("rest")[1:]) > 0.018
    assert sorted(found.phase("backward"))[len(found.rows) // 2] < 0.01
    met = {place for _, phase, _, place in found.known.samples if phase == REST}
    hooks = [one for one in (found.known.places[number] for number in met) if one.hook]
    assert {one.function.rpartition(".")[2] for one in hooks} <= {
        *("busy", "watch", "see", "__call__", "<lambda>")
    }
    assert hooks


OF_MODULES = {
    "forward": "model[1].register_forward_hook(see)",
    "before": "model[1].register_forward_pre_hook(see)",
    "backward": "model[1].register_full_backward_hook(see)",
    "by a lambda": "model[1].register_forward_hook(lambda *of_it: see(*of_it))",
    "of all modules": "nn.modules.module.register_module_forward_hook(see)",
}


@pytest.mark.parametrize("kind", sampled(OF_MODULES))
def test_samples_of_a_hook_of_a_module(record: Record, kind: str) -> None:
    head = "def see(module, *of_it):\n    busy(0.02)\n"
    found = record(f"{BEGIN}\n{head}{OF_MODULES[kind]}\ntrain(100)").known
    hooks = {number for number, one in enumerate(found.places) if one.hook}
    assert {found.places[one].function for one in hooks} <= {"busy", "see", "<lambda>"}
    assert sum(place in hooks for *_, place in found.samples) >= 10


PASSES = {
    "a function of autograd": """
class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        busy(0.02)
        return gradient
model[1].register_forward_hook(lambda module, args, output: Slow.apply(output))
""",
    "an optimizer": """
each = torch.optim.SGD([model[0].weight], lr=0.01)
model[0].weight.register_post_accumulate_grad_hook(
    lambda one: each.step(lambda: busy(0.02)))
""",
    "a hook that changes the gradient": """
def slow(gradient):
    busy(0.02)
    return gradient.clamp(-0.1, 0.1)
model[0].weight.register_hook(slow)
""",
    "a hook that changes the output": """
def slow(module, args, output):
    busy(0.02)
    return 2 * output
model[1].register_forward_hook(slow)
""",
    "a lambda that changes the output": """
def slow(output):
    busy(0.02)
    return 2 * output
model[1].register_forward_hook(lambda module, args, output: slow(output))
""",
    "a forward of the script's own": """
class Slow(nn.Tanh):
    def forward(self, x):
        busy(0.02)
        return super().forward(x)
model[1] = Slow()
""",
    "nothing": "",
}


@pytest.mark.parametrize("kind", sampled(PASSES))
def test_what_trains_is_none(record: Record, kind: str) -> None:
    found = record(f"{BEGIN}\n{PASSES[kind]}\ntrain(30)")
    # What a hook returns, and what the optimizer is, the first step shows.
    known = found.known
    assert sum(known.places[place].hook for *_, place in known.samples) <= 3
    assert sorted(found.phase("rest"))[len(found.rows) // 2] < 0.01


SAME = """
handle = model[0].weight.register_hook(clip)
model[2].weight.register_hook(functools.partial(torch.mul, other=0.5))
train()
(hook,) = model[0].weight._backward_hooks.values()
print(hook.__name__, hook.__qualname__, hook.__module__)
torch.save(model, io.BytesIO())
other = copy.deepcopy(model)
handle.remove()
print(model[0].weight._backward_hooks, other[0].weight._backward_hooks)
train()
try:
    torch.ones(1).register_hook(watch)
except RuntimeError as error:
    print(error)
"""


def test_the_script_is_as_without_it(record: Record, bare: Run) -> None:
    script = f"{BEGIN}\n{SAME}"
    without, found = bare(script), record(script)
    assert without.exit_code == found.exit_code == 0
    assert found.stdout == without.stdout
