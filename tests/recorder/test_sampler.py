"""How often the thread looks that sees memory grow."""

from __future__ import annotations

import pytest

from ddoctor.analysis.trend import FEWEST_LOOKS
from ddoctor.evidence.steps import COLLECT
from ddoctor.recorder.tape import FORWARD, GC, OPTIMIZER, REST
from tests.recorder.conftest import Record

SLOW_TO_BEGIN = """
import time
import torch
from torch import nn
time.sleep(3.5)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(40):
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.05)
"""


@pytest.mark.ward
def test_a_short_training_is_weighed_often_after_a_long_start(record: Record) -> None:
    found = record(SLOW_TO_BEGIN)
    steps = {done for _, done, _, *_ in found.known.memory if done}
    assert len(steps) >= FEWEST_LOOKS


IN_A_LOOP = """
import time
import torch
from torch import nn

def busy(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass

class Net(nn.Linear):
    def forward(self, batch):
        busy(0.06)
        return super().forward(batch)

model = Net(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def train(steps):
    for step in range(steps):
        batch = torch.ones(1, 4)
        busy(0.06)
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

train(40)
"""


def test_a_sample_shows_the_way_to_what_is_timed(record: Record) -> None:
    known = record(IN_A_LOOP).known
    rows = {(phase, came, place) for _, phase, came, place in known.samples}
    busy = [(phase, came, known.places[place]) for phase, came, place in rows]
    busy = [one for one in busy if one[-1].function == "busy"]
    models = [place for phase, _, place in busy if phase == FORWARD]
    # The model's own frames are no part of the way.
    assert {call.function for place in models for call in place.calls} == {"<module>", "train"}
    loops = [place for phase, came, place in busy if (phase, came) == (REST, OPTIMIZER)]
    assert {place.calls[-2].text for place in loops} == {"busy(0.06)"}
    assert {place.calls[-1].function for place in loops} == {"busy"}
    assert {block.text for place in models for block in place.within} == {
        "for step in range(steps):"
    }


COLLECTED = """
import gc
import torch
from torch import nn

heap = [[number] for number in range(600_000)]

def release():
    gc.collect()

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(40):
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 2:
        release()
"""


def test_collections_get_the_samples_that_they_prevent(record: Record) -> None:
    known = record(COLLECTED).known
    asked = [
        place for _, phase, _, place in known.samples if phase == GC and known.places[place].inner
    ]
    assert {known.places[place].inner for place in asked} == {COLLECT}
    assert {known.places[place].calls[0].text for place in asked} == {"release()"}
    assert len(asked) >= 10


WAITS_FOR_GRADIENTS = """
import threading
import torch
import torch.distributed as dist
from torch import nn
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
seconds = 0.0

def later(state, bucket):
    future = torch.futures.Future()
    threading.Timer(seconds, lambda: future.set_result(bucket.buffer())).start()
    return future

model.register_comm_hook(None, later)
for step in range(20):
    seconds = 8.0 if step == 10 else 0.0
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
"""


@pytest.mark.ward
def test_it_samples_while_ddp_waits_for_gradients(record: Record) -> None:
    """It also writes meanwhile, and DDP keeps a lock for as long as it waits."""
    found = record(WAITS_FOR_GRADIENTS)
    assert found.exit_code == 0, found.stderr
    # Twenty a second; those before the first write are 40.
    assert len(found.known.samples) > 80, found.known.samples
    assert found.known.wrappers[0].comm_hook
