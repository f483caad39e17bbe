"""What is found out about the model itself: unused parameters, graphs that are kept, memory."""

from __future__ import annotations

import json

import pytest

from ddoctor.evidence.wrapping import Wrapper
from ddoctor.recorder.tape import COUNTS, FORWARD
from tests.recorder.conftest import Record

TRAIN = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.now_and_then = nn.Linear(4, 4), nn.Linear(4, 4)
        self.frozen, self.never = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.frozen.requires_grad_(False)
    def forward(self, x, more):
        x = self.norm(self.frozen(self.body(x)))
        return self.now_and_then(x) if more else x
model = DDP(Net(), find_unused_parameters=True, bucket_cap_mb=1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
kept, blocks, total = [], [], 0.0
hooks = []
for step in range(70):
    loss = model(torch.randn(8, 4), step % 2).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    kept.append(loss)
    total = total + loss
    blocks.append(bytearray(2**20))
    hooks.append(sum(bool(one._post_accumulate_grad_hooks) for one in model.parameters()))
    if step in (5, 60):
        import time
        time.sleep(0.3)
print(hooks)
"""


def test_a_model_in_ddp(record: Record) -> None:
    ran = record(TRAIN, stop_at=60)
    assert ran.exit_code == 0, ran.stderr
    (wrapper,) = ran.known.wrappers
    assert isinstance(wrapper, Wrapper)
    assert (wrapper.kind, wrapper.name) == ("ddp", "Net")
    assert wrapper.unused == ("never.weight", "never.bias")
    assert wrapper.sometimes_unused == ("now_and_then.weight", "now_and_then.bias")
    # In a row at first, and later the less often the more it costs.
    inspected = ran.counted("inspected")
    assert wrapper.inspected_steps == sum(inspected) >= 3
    assert sum(inspected) <= len(inspected) / 4
    assert (wrapper.parameters, wrapper.trainable_bytes) == (4 * 20 + 8, 4 * (3 * 20 + 8))
    assert (wrapper.buffers, wrapper.batch_norms, wrapper.sync_batch_norms) == (3, 1, 0)
    assert (wrapper.find_unused_parameters, wrapper.static_graph) == (True, False)
    assert (wrapper.broadcast_buffers, wrapper.bucket_cap_mb) == (True, 1.0)
    assert sum(wrapper.bucket_bytes) == wrapper.trainable_bytes
    assert any(wrapper.checksum)
    # Looking for unused parameters is a part of the forward pass.
    for row in ran.rows[2:]:
        assert 0 < row.counts[COUNTS.index("find_unused")] < row.phases[FORWARD]


def test_graphs_that_are_kept(record: Record) -> None:
    known = record(TRAIN, stop_at=60).known
    assert known.growth.graph_tensors_before is not None
    assert known.growth.graph_depth_before is not None
    assert (known.growth.graph_tensors or 0) - known.growth.graph_tensors_before >= 55
    assert (known.growth.graph_depth or 0) - known.growth.graph_depth_before >= 55


def test_the_memory_of_the_process(record: Record) -> None:
    ran = record(TRAIN)
    assert ran.exit_code == 0, ran.stderr
    memory = ran.known.memory
    first = min(step for _, step, *_ in memory)
    held = {step: process for _, step, process, *_ in memory}
    last = max(held)
    assert last - first >= 40
    # Of each MiB that the script takes in a step.
    assert held[last] - held[first] >= 0.7 * (last - first)
    assert {device for _, _, _, device, *_ in memory} == {0.0}
    # Some versions of gloo print a line before.
    hooks = json.loads(ran.stdout.splitlines()[-1])
    # On the eight parameters that are trained, and on none of them once it has looked.
    recorded = [hooks[row.number] // 8 for row in ran.rows]
    assert recorded == ran.counted("inspected")
    assert set(hooks) == {0, 8}


TWO_MODELS = """
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    one, other = (DistributedDataParallel(nn.Linear(4, 4)) for _ in range(2))
    for_one = torch.optim.SGD(one.parameters(), lr=0.01)
    for_other = torch.optim.SGD(other.parameters(), lr=0.01)
    for step in range(20):
        one(torch.randn(8, 4)).sum().backward()
        for_one.step()
        other(torch.randn(8, 4)).sum().backward()
        for_other.step()
"""


def test_a_model_that_comes_later_is_not_unused(record: Record) -> None:
    ran = record(TWO_MODELS)
    assert ran.exit_code == 0, ran.stderr
    assert len(ran.known.wrappers) == 2
    for wrapper in ran.known.wrappers:
        assert wrapper.inspected_steps >= 3
        assert (wrapper.unused, wrapper.sometimes_unused) == ((), ())


FROZEN_AT_TIMES = """
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    makes = DistributedDataParallel(nn.Linear(4, 4))
    judges = DistributedDataParallel(nn.Linear(4, 1))
    for_makes = torch.optim.SGD(makes.parameters(), lr=0.01)
    for_judges = torch.optim.SGD(judges.parameters(), lr=0.01)
    for step in range(20):
        CALLED(torch.randn(8, 4)).sum().backward()
        for_judges.step()
        judges.requires_grad_(False)
        CALLED(makes(torch.randn(8, 4))).sum().backward()
        for_makes.step()
        judges.requires_grad_(True)
"""


@pytest.mark.parametrize("called", ["judges", "judges.module"])
def test_what_is_frozen_between_two_steps_is_not_unused(record: Record, called: str) -> None:
    ran = record(FROZEN_AT_TIMES.replace("CALLED", called))
    assert ran.exit_code == 0, ran.stderr
    assert [wrapper.kind for wrapper in ran.known.wrappers] == ["ddp", "ddp"]
    assert [(one.unused, one.sometimes_unused) for one in ran.known.wrappers] == [((), ())] * 2
    bypassed = {one.parameters: one.bypassed for one in ran.known.wrappers}
    assert bypassed == {20: False, 5: called == "judges.module"}


ROUTED = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
class Routed(nn.Module):
    def __init__(self):
        super().__init__()
        self.usual, self.rare, self.never = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
    def forward(self, x, rare):
        return (self.rare if rare else self.usual)(x)
model = DDP(Routed(), find_unused_parameters=True)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(50):
    model(torch.randn(8, 4), 20 <= step < 25).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_what_was_updated_has_had_a_gradient_in_another_step(record: Record) -> None:
    (wrapper,) = record(ROUTED, stop_at=45).known.wrappers
    assert wrapper.unused == ("never.weight", "never.bias")
    assert set(wrapper.sometimes_unused) >= {"rare.weight", "rare.bias"}


CACHED = """
    import functools
    import torch
    from torch import nn

    class Store:
        @functools.lru_cache(maxsize=None)
        def cut(self, start):
            return torch.ones(100) * start

        @functools.lru_cache(maxsize=64)
        def limited(self, start):
            return start

    @functools.cache
    def usual(number):
        return number

    store, model = Store(), nn.Linear(100, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(40):
        store.limited(step), usual(step % 4)
        model(store.cut(step)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_caches_without_a_limit(record: Record) -> None:
    ran = record(CACHED, stop_at=35)
    assert ran.exit_code == 0, ran.stderr
    grown = {one.function: one for one in ran.known.growth.caches}
    assert list(grown) == ["Store.cut", "usual"][: len(grown)]
    assert grown["Store.cut"].added >= 30
    assert grown["Store.cut"].hits == 0
    assert grown["Store.cut"].line == 7
    assert "usual" not in grown or grown["usual"].hits >= 30


SUMMED = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(STEPS):
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step in (99, 100, 101):
        print(sum(float(one.detach().double().sum()) for one in model.parameters()))
with torch.no_grad():
    model.weight.zero_()
"""


def test_parameters_of_a_run_that_goes_to_its_end(record: Record) -> None:
    """What the script does with them after its steps does not count."""
    ran = record(SUMMED.replace("STEPS", "130"))
    (wrapper,) = ran.known.wrappers
    assert sum(wrapper.checksum) in [pytest.approx(float(line)) for line in ran.stdout.split()]


def test_no_sums_of_a_short_run(record: Record) -> None:
    (wrapper,) = record(SUMMED.replace("STEPS", "60")).known.wrappers
    assert wrapper.checksum == ()


SPOILED = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.mask = nn.Parameter(torch.full((4,), float("nan")), requires_grad=False)
    def forward(self, x):
        return self.layer(x)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(110):
    optimizer.zero_grad()
    (model(torch.randn(8, 4)).square().mean() * FACTOR).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("factor", "spoiled"), [("1.0", False), ('(float("inf") if step == 50 else 1.0)', True)]
)
def test_weights_that_became_nan(record: Record, factor: str, spoiled: bool) -> None:
    """What is not trained may be NaN by intention."""
    (wrapper,) = record(SPOILED.replace("FACTOR", factor)).known.wrappers
    assert wrapper.spoiled is spoiled


TABLES = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(1000, 8), nn.Embedding(100, 8)
        self.out = nn.Linear(8, 100, bias=False)
        if TIED:
            self.out.weight = self.items.weight
    def forward(self, user, item):
        return self.out(self.users(user) * self.items(item))
model = DDP(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    model(torch.arange(10), torch.arange(10)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("tied", "size", "rows"), [("False", 1100, 20 / 1100), ("True", 1000, 10 / 1000)]
)
def test_the_rows_that_embedding_tables_use(
    record: Record, tied: str, size: int, rows: float
) -> None:
    ran = record(TABLES.replace("TIED", tied))
    assert ran.exit_code == 0, ran.stderr
    (wrapper,) = ran.known.wrappers
    assert wrapper.table_bytes == size * 8 * 4
    assert wrapper.table_rows == pytest.approx(rows, abs=1e-3)


BUFFERS = """
import torch
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm
class Book(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("codes", torch.ones(3))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("cache", torch.ones(5), persistent=False)
    def forward(self, x):
        return x + self.codes.sum()
model = nn.Sequential(
    Book(), nn.BatchNorm1d(4), parametrizations.spectral_norm(nn.Linear(4, 4)),
    spectral_norm(nn.Linear(4, 4)),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(130):
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_buffers_that_ranks_should_share(record: Record) -> None:
    """Without those of norms, and what no checkpoint holds."""
    ran = record(BUFFERS)
    assert ran.exit_code == 0, ran.stderr
    (wrapper,) = ran.known.wrappers
    (found,) = wrapper.buffer_sums
    assert (found.name, found.elements, found.sum, found.magnitude) == ("0.codes", 3, 3.0, 3.0)
