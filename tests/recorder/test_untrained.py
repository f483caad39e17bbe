"""Parameters that get gradients, and that no optimizer has."""

from __future__ import annotations

import pytest

from tests.recorder.conftest import Record

SCRIPT = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.head = nn.Linear(4, 4), nn.Linear(4, 1)
    def forward(self, x):
        return self.head(self.encoder(x))
model = Net()
FREEZE
optimizer = torch.optim.SGD(PARAMETERS, lr=0.01)
OTHER
for step in range(20):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    UPDATE
"""
ALL, HEAD = "model.parameters()", "model.head.parameters()"


def untrained(record: Record, parameters: str, **parts: str) -> tuple[str, ...]:
    source = SCRIPT.replace("PARAMETERS", parameters)
    for name in ("FREEZE", "OTHER", "UPDATE"):
        source = source.replace(name, parts.get(name.lower(), "pass"))
    ran = record(source)
    assert ran.exit_code == 0, ran.stderr
    (wrapper,) = ran.known.wrappers
    return wrapper.untrained


def test_an_encoder_that_no_optimizer_has(record: Record) -> None:
    assert untrained(record, HEAD) == ("encoder.weight", "encoder.bias")


@pytest.mark.parametrize(
    ("parameters", "parts"),
    [
        (ALL, {}),
        (HEAD, {"freeze": "model.encoder.requires_grad_(False)"}),
        # An optimizer that steps later, and one by hand.
        (HEAD, {"other": "later = torch.optim.SGD(model.encoder.parameters(), lr=0.01)"}),
        (
            HEAD,
            {
                "update": "model.encoder.weight.data -= 0.01 * model.encoder.weight.grad; "
                "model.encoder.bias.data -= 0.01 * model.encoder.bias.grad"
            },
        ),
    ],
)
def test_quiet(record: Record, parameters: str, parts: dict[str, str]) -> None:
    assert untrained(record, parameters, **parts) == ()


def test_weights_that_the_optimizer_keeps_itself(record: Record) -> None:
    """As in mixed precision: it has copies of all of them."""
    copies = "copies = [nn.Parameter(one.detach().clone()) for one in model.parameters()]"
    source = SCRIPT.replace("PARAMETERS", "copies").replace("FREEZE", copies)
    ran = record(source.replace("OTHER", "pass").replace("UPDATE", "pass"))
    assert all(one.untrained == () for one in ran.known.wrappers)
