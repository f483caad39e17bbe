"""What the main thread does to a batch before the model, told from a batch that it hands on."""

from __future__ import annotations

import pytest

from tests.recorder.conftest import Record

TRAIN = """
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.ones(48, 4))
def prepare(x):
    {prepare}
for (x,) in DataLoader(data, batch_size=4):
    time.sleep(0.002)
    model(prepare(x)).sum().backward()
    optimizer.step()
    time.sleep(0.01)
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("prepare", ["return x * 2", "return torch.tensor(x.tolist())"])
def test_other_tensors_than_the_loader_gave(record: Record, prepare: str) -> None:
    ran = record(TRAIN.format(prepare=prepare))
    assert ran.exit_code == 0, ran.stderr
    (known,) = ran.known.loaders
    steps = [step for step, _ in known.preparing]
    assert len(steps) > 5
    assert steps == sorted(set(steps))
    rest = dict(enumerate(ran.phase("rest")))
    for step, seconds in known.preparing:
        assert seconds >= 0.002
        # Not what comes after the model.
        assert step not in rest or seconds <= rest[step] - 0.01


@pytest.mark.parametrize(
    "prepare",
    ["return x", "return x.view(2, 2, 4)", "return x.to('cpu')", "return x[:2].unsqueeze(0)"],
)
def test_the_tensors_that_the_loader_gave(record: Record, prepare: str) -> None:
    (known,) = record(TRAIN.format(prepare=prepare)).known.loaders
    assert known.preparing == ()


def test_a_batch_without_tensors(record: Record) -> None:
    source = TRAIN.format(prepare="return torch.tensor(x)").replace(
        "batch_size=4",
        "batch_size=4, collate_fn=lambda items: (torch.stack([x for x, in items]).tolist(),)",
    )
    ran = record(source)
    assert ran.exit_code == 0, ran.stderr
    (known,) = ran.known.loaders
    assert known.preparing


@pytest.mark.parametrize(("prepare", "changes"), [("return x", False), ("return x * 2", True)])
def test_a_loop_that_is_a_batch_ahead(record: Record, prepare: str, changes: bool) -> None:
    ahead = """
def ahead(loader):
    batches = iter(loader)
    now = next(batches)
    for after in batches:
        yield now
        now = after
    yield now
"""
    script = TRAIN.format(prepare=prepare).replace("in DataLoader(data, batch_size=4)", "in rows")
    made = ahead + "rows = ahead(DataLoader(data, batch_size=4))\nfor (x,)"
    ran = record(script.replace("for (x,)", made))
    assert ran.exit_code == 0, ran.stderr
    (known,) = ran.known.loaders
    assert bool(known.preparing) is changes


@pytest.mark.parametrize("before", ["model.eval()", "torch.set_grad_enabled(False)"])
def test_what_needs_an_answer_of_the_model_is_no_preparation(record: Record, before: str) -> None:
    """As rewards of answers that it has generated."""
    prepare = f"{before}; y = model(x); torch.set_grad_enabled(True); model.train(); " + (
        "time.sleep(0.03); return x * float(y.mean())"
    )
    ran = record(TRAIN.format(prepare=prepare))
    assert ran.exit_code == 0, ran.stderr
    (known,) = ran.known.loaders
    assert all(seconds < 0.03 for _, seconds in known.preparing)
    assert all(seconds >= 0.03 for seconds in ran.phase("rest")[2:])


def test_an_evaluation_now_and_then_leaves_the_batch_its_way(record: Record) -> None:
    source = TRAIN.format(prepare="return x").replace(
        "    time.sleep(0.002)", "    with torch.no_grad(): model(torch.ones(2, 4))"
    )
    (known,) = record(source).known.loaders
    assert known.preparing == ()


BESIDE = """
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(64, 8))
other = DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=4)
for step, (inputs,) in enumerate(DataLoader(data, batch_size=4)):
    (looked_at,) = next(iter(other))
    TRAINED
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("trained", "reach"),
    [
        ("loss = model(inputs).sum()", [True, False]),
        ("loss = model(inputs).sum() + model(looked_at).sum()", [True, True]),
        ("loss = model(looked_at[:2]).sum()", [False, True]),
        # Of new tensors, nobody knows.
        ("loss = model(torch.cat([inputs, looked_at])).sum()", [False, False]),
    ],
)
def test_loaders_whose_batches_come_to_the_model(
    record: Record, trained: str, reach: list[bool]
) -> None:
    ran = record(BESIDE.replace("TRAINED", trained))
    assert ran.exit_code == 0, ran.stderr
    by_line = sorted(ran.known.loaders, key=lambda one: one.loader.name, reverse=True)
    assert [one.loader.reaches for one in by_line] == reach
