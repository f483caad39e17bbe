"""The lines and the CPU time of a script's other threads."""

from __future__ import annotations

import pytest

from tests.recorder.conftest import Record

SCRIPT = """
import threading, time
import torch
from torch import nn

def count():
    number = 0
    while True:
        number += 1

def sleep():
    while True:
        time.sleep(0.01)

for target in (count, sleep):
    threading.Thread(target=target, daemon=True).start()
model = nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(100):
    model(torch.ones(8, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
"""


@pytest.mark.ward
def test_a_busy_thread_and_a_sleeping_one(record: Record) -> None:
    found = {one.place.function: one for one in record(SCRIPT).known.script_threads}
    assert {*found} == {"count", "sleep"}
    assert found["count"].cpus > 2 * found["sleep"].cpus
    assert found["sleep"].place.text == "time.sleep(0.01)"
    assert found["count"].place.of_user


def test_no_other_thread(record: Record) -> None:
    alone = SCRIPT.replace("for target in (count, sleep)", "for target in ()")
    assert record(alone).known.script_threads == ()


KEPT = """
import gc, time, weakref
import torch
from torch import nn

class Held:
    pass

gc.disable()
model = nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
held = []

def train():
    one = Held()
    held.append(weakref.ref(one))
    model(torch.ones(8, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.03)

for step in range(60):
    train()
print(sum(one() is not None for one in held[:-1]))
"""


def test_a_sample_keeps_nothing_alive(record: Record) -> None:
    assert record(KEPT).stdout == "0\n"
