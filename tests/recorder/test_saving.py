"""All that libraries do while they save a checkpoint is time of the checkpoint."""

from __future__ import annotations

import pytest

from tests.recorder.conftest import Record, Run

TRAIN = """
import time
import numpy
import torch
from torch import nn
{imports}

class Net(nn.Linear):
    def state_dict(self, *args, **kwargs):
        # Gathering the state is a part of saving it.
        time.sleep(0.05)
        return super().state_dict(*args, **kwargs)

model = Net(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
{prepares}
for step in range(16):
    if step == 10:
        {saves}
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("imports", "prepares", "saves", "least"),
    [
        (
            "from accelerate import Accelerator",
            "accelerator = Accelerator(cpu=True); model = accelerator.prepare(model)",
            "accelerator.save_state('state')",
            0.05,
        ),
        ("", "", "numpy.savez('state.npz', **model.state_dict())", 0.0),
    ],
)
def test_a_library_that_saves(
    bare: Run, record: Record, imports: str, prepares: str, saves: str, least: float
) -> None:
    source = TRAIN.format(imports=imports, prepares=prepares, saves=saves)
    ran = record(source)
    assert ran.exit_code == 0, ran.stderr
    seconds = ran.phase("checkpoint")
    assert [step for step, one in enumerate(seconds) if one] == [9]
    assert seconds[9] >= least


@pytest.mark.ward
@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_a_trainer_of_lightning(record: Record, package: str) -> None:
    ran = record(LIGHTNING.replace("PACKAGE", package))
    assert ran.exit_code == 0, ran.stderr
    assert [step for step, one in enumerate(ran.phase("checkpoint")) if one >= 0.05] == [9]


LIGHTNING = """
import time
import torch
from torch import nn
import PACKAGE as lightning

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 1)
    def training_step(self, batch, index):
        return self.linear(batch).sum()
    def on_save_checkpoint(self, checkpoint):
        time.sleep(0.1)
    def on_train_batch_start(self, batch, index):
        if index == 10:
            self.trainer.save_checkpoint("state.ckpt")
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

trainer = lightning.Trainer(
    accelerator="cpu", max_epochs=1, limit_train_batches=16, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Net(), torch.utils.data.DataLoader(torch.ones(64, 4), batch_size=2))
"""

TRANSFORMERS = """
import time
import torch
from torch import nn
from transformers import BertConfig, BertModel

class Net(BertModel):
    def state_dict(self, *args, **kwargs):
        time.sleep(0.1)
        return super().state_dict(*args, **kwargs)

model = Net(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
                       intermediate_size=8, vocab_size=16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(16):
    if step == 10:
        model.save_pretrained("state")
    model(torch.ones(2, 4, dtype=torch.long)).last_hidden_state.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.ward
def test_a_model_of_transformers(record: Record) -> None:
    ran = record(TRANSFORMERS)
    assert ran.exit_code == 0, ran.stderr
    assert [step for step, one in enumerate(ran.phase("checkpoint")) if one >= 0.05] == [9]
