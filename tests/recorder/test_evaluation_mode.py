"""Models that learn in evaluation mode."""

from __future__ import annotations

import pytest

from ddoctor.evidence.training import EvaluationMode
from tests.recorder.conftest import Record, Recorded

SCRIPT = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), LAYER, nn.Linear(16, 2))
    def forward(self, x):
        return {"out": self.body(x)}
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
BEFORE
for step in range(40):
    IN_STEP
    loss = model(torch.randn(4, 8))["out"].sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
DROPOUT = "nn.Dropout(0.1)"
EVALUATES = """if step % 10 == 9:
        model.eval()
        with torch.no_grad():
            model(torch.randn(4, 8))"""


def recorded(record: Record, in_step: str, before: str = "", layer: str = DROPOUT) -> Recorded:
    source = SCRIPT.replace("LAYER", layer).replace("BEFORE", before)
    ran = record(source.replace("IN_STEP", in_step))
    assert ran.exit_code == 0, ran.stderr
    return ran


def mode(ran: Recorded) -> EvaluationMode | None:
    assert ran.known.flags is not None
    return ran.known.flags.evaluation_mode


def test_left_by_the_first_evaluation(record: Record) -> None:
    ran = recorded(record, EVALUATES)
    found = mode(ran)
    assert found is not None
    assert (found.name, found.trained_before, found.layers) == ("Net", True, ("Dropout",))
    assert 28 <= found.steps <= 31
    # Its passes are those of the training all the same, but for the first of them.
    assert ran.counted("forwards").count(0) <= 2
    assert sum(seconds == 0 for seconds in ran.phase("forward")) <= 2


@pytest.mark.parametrize("layer", [DROPOUT, "nn.BatchNorm1d(16)"])
def test_from_the_beginning(record: Record, layer: str) -> None:
    found = mode(recorded(record, "pass", before="model.eval()", layer=layer))
    assert found is not None
    assert not found.trained_before
    assert found.steps >= 35


@pytest.mark.parametrize(
    ("in_step", "before", "layer"),
    [
        pytest.param(f"{EVALUATES}\n        model.train()", "", DROPOUT, id="train() after it"),
        pytest.param("pass", "", DROPOUT, id="no evaluation"),
        pytest.param("pass", "model.eval()", "nn.Dropout(0.0)", id="no layer minds"),
        pytest.param("pass", "model.eval()", "nn.LayerNorm(16)", id="norm without statistics"),
        pytest.param(
            "if step % 5 == 0:\n"
            "        model.eval()\n"
            "        model(torch.randn(4, 8))\n"
            "        model.train()",
            "",
            DROPOUT,
            id="evaluates with a graph",
        ),
        pytest.param(
            "if step % 5 == 0:\n"
            "        model.eval()\n"
            "        model(torch.randn(4, 8, requires_grad=True))['out'].sum().backward()\n"
            "        model.train()",
            "",
            DROPOUT,
            id="asks for the gradient of its input now and then",
        ),
        pytest.param("model.body[1].eval()", "", "nn.BatchNorm1d(16)", id="frozen statistics"),
    ],
)
def test_quiet(record: Record, in_step: str, before: str, layer: str) -> None:
    found = mode(recorded(record, in_step, before, layer))
    assert found is None or found.steps < 10


ADVERSARIAL = """
import torch
from torch import nn
from torch.distributed import HashStore, init_process_group
from torch.nn.parallel import DistributedDataParallel
init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 2))
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(40):
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    net.eval()
    net(torch.randn(4, 8, requires_grad=True)).sum().backward()
    net.train()
    optimizer.zero_grad()
"""


def test_gradients_of_inputs_past_the_wrapper(record: Record) -> None:
    """They are no pass of the training: DDP does not know of them."""
    ran = record(ADVERSARIAL)
    assert ran.exit_code == 0, ran.stderr
    found = mode(ran)
    assert found is None or found.steps < 10
    assert max(ran.counted("forwards")) == 1
