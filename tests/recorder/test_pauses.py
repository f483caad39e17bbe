"""What stops a step for a while has a phase of its own."""

from __future__ import annotations

import pytest

from tests.recorder.conftest import Record, Run

TRAIN = """
import gc, time
import torch
import torch.distributed as dist
from torch import nn
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
class Slow:
    def __reduce__(self):
        time.sleep(0.02)
        return (Slow, ())
class Cyclic:
    def __del__(self):
        time.sleep(0.02)
def evaluate():
    model.eval()
    with torch.no_grad():
        model(torch.ones(1, 4))
    model.train()
class Sleeping(nn.Linear):
    def forward(self, x):
        time.sleep(0.02)
        return super().forward(x)
model = Sleeping(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(24):
    # Row 0 is the first two rounds: the others end with the round of the next number.
    row = step - 1
    if row == 4:
        torch.save({"model": model.state_dict(), "slow": Slow()}, "model.pt")
    if row == 6:
        dcp.save(get_model_state_dict(model), checkpoint_id="sharded")
    if row == 8:
        one = Cyclic()
        one.itself = one
        del one
        gc.collect()
    if row == 10:
        gc.collect(0)
    if row == 12:
        evaluate()
    if row == 14:
        with torch.no_grad():
            model(torch.ones(1, 4))
    if row == 16:
        torch.cuda.empty_cache()
    if row == 18:
        try:
            torch.save(model, "nowhere/model.pt")
        except Exception as error:
            print(type(error).__name__)
    x = torch.randn(8, 4).to("cpu").to(torch.float32)
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print(sorted(torch.load("model.pt", weights_only=False)))
"""


@pytest.mark.ward
def test_each_pause_is_told_apart(bare: Run, record: Record) -> None:
    ran = record(TRAIN)
    assert (ran.exit_code, ran.stdout) == (0, bare(TRAIN).stdout), ran.stderr
    assert ran.done == 23

    def where(phase: str, least: float = 0.0) -> list[int]:
        return [number for number, seconds in enumerate(ran.phase(phase)) if seconds > least]

    # It fails in the eighteenth, which takes its time, too.
    assert where("checkpoint") == [4, 6, 18]
    assert ran.phase("checkpoint")[4] >= 0.02
    # The first one has the imports of torch.
    assert [number for number in where("gc", 0.02) if number] == [8]
    assert set(where("gc")) >= {8, 10}
    assert [number for number, found in enumerate(ran.counted("collected")) if found] == [8, 10]
    assert where("evaluation") == [12, 14]
    assert min(ran.phase("evaluation")[12], ran.phase("evaluation")[14]) >= 0.02
    # What is evaluated is no forward pass of the training.
    assert ran.counted("forwards")[1:] == [1] * 22
    assert [number for number, found in enumerate(ran.counted("empty_cache")) if found] == [16]
    # Without a GPU there is no way to it.
    assert where("to-device") == []
