"""What runs the loop is told by the stack: a package that was only imported is no framework."""

from __future__ import annotations

import pytest

from tests.recorder.conftest import Record

BEGIN = """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.randn(96, 4)
loader = DataLoader(data, batch_size=8)
def train(loader, backward=torch.Tensor.backward):
    for batch in loader:
        backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()
"""
TRAINER = """
import tempfile
from transformers import Trainer, TrainingArguments
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = model
    def forward(self, x):
        return {"loss": self.inner(x).square().mean()}
arguments = TrainingArguments(
    tempfile.mkdtemp(), max_steps=6, use_cpu=True, report_to="none", save_strategy="no"
)
Trainer(Net(), arguments, train_dataset=[{"x": one} for one in data]).train()
"""


def used(record: Record, body: str) -> str:
    ran = record(BEGIN + body)
    assert ran.exit_code == 0, ran.stderr
    return ran.known.framework


@pytest.mark.parametrize(
    "body",
    [
        "import accelerate\ntrain(loader)",
        "from accelerate import Accelerator\nfound = Accelerator(cpu=True).device\ntrain(loader)",
        "from transformers import Trainer, set_seed\nset_seed(1)\ntrain(loader)",
        pytest.param(
            "import lightning\nfrom lightning.pytorch import Trainer\ntrain(loader)",
            marks=pytest.mark.ward,
        ),
    ],
)
def test_quiet_where_it_is_imported_alone(record: Record, body: str) -> None:
    assert used(record, body) == ""


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("from accelerate import Accelerator\nmine = Accelerator(cpu=True)\n"
         "train(loader, mine.backward)", "accelerate"),
        ("from accelerate import Accelerator\n"
         "train(Accelerator(cpu=True).prepare(loader))", "accelerate"),
        pytest.param(
            "from lightning import Fabric\nmine = Fabric(accelerator='cpu', devices=1)\n"
            "train(loader, mine.backward)", "fabric", marks=pytest.mark.ward),
        (TRAINER, "transformers"),
    ],
)  # fmt: skip
def test_the_framework_that_runs_the_loop(record: Record, body: str, name: str) -> None:
    assert used(record, body) == name


def test_it_is_told_of_a_script_that_fails_in_its_first_step(record: Record) -> None:
    body = """
from accelerate import Accelerator
mine = Accelerator(cpu=True)
mine.backward(model(data).square().mean())
raise ValueError("no more")
"""
    ran = record(BEGIN + body)
    assert ran.known.framework == "accelerate"
