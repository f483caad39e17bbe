"""What a DataLoader costs and delivers, told where the work is done."""

from __future__ import annotations

import pytest

from ddoctor.recorder import recorded
from tests.recorder.conftest import Record, Run

BEGIN = """
import random, time
import numpy, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def step(x):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
class Items(Dataset):
    def __init__(self, length=32, seconds=0.0):
        self.length, self.seconds = length, seconds
        self.generator = numpy.random.default_rng(3)
    def __len__(self):
        return self.length
    def __getitem__(self, number):
        time.sleep(self.seconds)
        return torch.full((4,), float(number)), number
"""


def line(source: str, text: str) -> str:
    """Where the script says it, as a place is written."""
    number = next(n for n, one in enumerate(source.splitlines(), 1) if text in one)
    return f"train.py:{number}"


IN_MAIN = (
    BEGIN
    + """
def collate(items):
    time.sleep(0.003)
    x, y = zip(*items)
    return torch.stack(x), torch.tensor(y)
loader = DataLoader(Items(32, seconds=0.002), batch_size=4, collate_fn=collate, drop_last=True)
for epoch in range(2):
    for x, y in loader:
        step(x)
for x, y in loader:
    step(x)
    if y[0] == 8:
        break
"""
)


def test_a_loader_without_workers(record: Record) -> None:
    ran = record(IN_MAIN)
    assert ran.exit_code == 0, ran.stderr
    (known,) = ran.known.loaders
    loader = known.loader
    assert loader.name == line(IN_MAIN, "loader = DataLoader(")
    assert (loader.dataset, loader.kind, loader.sampler) == ("Items", "map", "SequentialSampler")
    assert (loader.items, loader.batch_size, loader.batches) == (32, 4, 8)
    assert (loader.num_workers, loader.prefetch_factor) == (0, None)
    assert (loader.pin_memory, loader.persistent_workers) == (False, False)
    # Two whole epochs, and three batches of the third one.
    batches = 8 + 8 + 3
    assert (loader.fetched, loader.collated, len(known.waits)) == (4 * batches, batches, batches)
    assert loader.fetch_seconds >= 4 * batches * 0.002 > loader.fetch_cpu_seconds
    assert loader.collate_seconds >= batches * 0.003 > loader.collate_cpu_seconds
    # It sleeps, and needs no CPU for that.
    assert loader.batch_asleep_seconds >= loader.batch_seconds / 2
    assert loader.collate == "collate"
    # All of it is waited for, step by step.
    assert all(seconds >= 4 * 0.002 + 0.003 for _, seconds, _ in known.waits)
    assert [step for step, *_ in known.waits] == [0, 0, *range(1, batches - 1)]
    assert [batch for batch, (*_, first) in enumerate(known.waits) if first] == [0, 8, 16]
    assert min(ran.phase("loader")) >= 4 * 0.002 + 0.003
    assert (loader.epoch_batches, loader.unended) == ((8, 8), 3)
    assert len(loader.starts) == len(loader.first_waits) == 3
    assert loader.batch_bytes == 4 * 4 * 4 + 4 * 8
    assert loader.randomness == ()


@pytest.mark.ward
def test_a_pause_within_a_batch_is_waited_for_too(record: Record) -> None:
    ran = record(
        IN_MAIN.replace("x, y = zip", "gc.collect(); x, y = zip").replace(
            "import ", "import gc, ", 1
        )
    )
    (known,) = ran.known.loaders
    assert min(ran.phase("gc")[:-1]) > 0
    assert all(seconds >= 4 * 0.002 + 0.003 for _, seconds, _ in known.waits)


def test_the_same_items_have_the_same_fingerprints(record: Record) -> None:
    ran = record(IN_MAIN)
    (known,) = ran.known.loaders
    found = {(one.epoch, one.by): one for one in known.epochs}
    assert set(found) == {(e, by) for e in range(3) for by in ("indices", "values", "labels")}
    for by in ("indices", "values", "labels"):
        first, second, third = (found[epoch, by] for epoch in range(3))
        assert len(set(first.batches)) == 8
        assert first.batches == second.batches
        assert third.batches == first.batches[:3]
        assert (first.taken, third.taken, first.workers) == (8, 3, ())


WITH_WORKERS = (
    BEGIN
    + """
class Random(Items):
    def __getitem__(self, number):
        time.sleep(0.002)
        self.generator.random()
        return torch.rand(4), random.random(), number
def same(worker):
    random.seed(1)
loader = DataLoader(
    Random(24), batch_size=2, num_workers=2, prefetch_factor=3, worker_init_fn=same,
    sampler=DistributedSampler(Items(24), num_replicas=1, rank=0, shuffle=True),
    persistent_workers=False,
)
for epoch in range(3):
    for x, y, number in loader:
        step(x)
"""
)


def test_a_loader_with_workers(record: Record) -> None:
    ran = record(WITH_WORKERS)
    assert ran.exit_code == 0, ran.stderr
    (known,) = ran.known.loaders
    loader = known.loader
    assert (loader.num_workers, loader.prefetch_factor, loader.context) == (2, 3, "fork")
    assert (loader.sampler, loader.shuffle, loader.replicas) == ("DistributedSampler", True, 1)
    # Nobody calls set_epoch.
    assert loader.seeded_by_epoch is False
    assert (loader.fetched, loader.collated, loader.epoch_batches) == (72, 36, (12, 12, 12))
    assert loader.item_seconds >= 0.002
    assert loader.collate_seconds > 0
    # Each epoch begins with workers that are started.
    assert len(loader.starts) == 3
    assert min(loader.starts) > 0
    assert min(loader.first_waits) > 0
    epochs = {(one.epoch, one.by): one for one in known.epochs}
    assert epochs[0, "indices"].batches == epochs[2, "indices"].batches
    assert epochs[0, "labels"].batches == epochs[2, "labels"].batches
    assert epochs[0, "values"].batches != epochs[2, "values"].batches
    assert epochs[0, "values"].workers == (0, 1, 0, 1, 0, 1, 0, 1)


def test_the_random_states_of_workers(record: Record) -> None:
    (known,) = record(WITH_WORKERS).known.loaders
    states = {(one.source, one.worker): one for one in known.loader.randomness}
    sources = {source for source, _ in states}
    assert sources == {"numpy.random", "random", "torch", "dataset.generator"}
    used = {source for (source, _), one in states.items() if one.used}
    assert used == {"random", "torch", "dataset.generator"}
    same = {source for source in sources if states[source, 0].first == states[source, 1].first}
    # What worker_init_fn seeds alike, and what every worker has a copy of.
    assert same == {"random", "dataset.generator"}


PERSISTENT = (
    BEGIN
    + """
class Stream(IterableDataset):
    def __iter__(self):
        for number in range(6):
            time.sleep(0.002)
            yield torch.full((4,), float(number)), number
class Mine(DataLoader):
    def __init__(self, dataset, **settings):
        super().__init__(dataset, batch_size=2, **settings)
    def __iter__(self):
        for x, y in super().__iter__():
            yield x + 1, y
    def __len__(self):
        raise TypeError("nobody knows")
loader = Mine(Stream(), num_workers=2, persistent_workers=True)
for epoch in range(4):
    for x, y in loader:
        step(x)
"""
)


def test_an_iterable_dataset_in_persistent_workers_of_a_subclass(record: Record) -> None:
    ran = record(PERSISTENT)
    assert ran.exit_code == 0, ran.stderr
    (known,) = ran.known.loaders
    loader = known.loader
    assert (loader.name, loader.dataset, loader.kind) == (
        line(PERSISTENT, "loader = Mine("),
        "Stream",
        "iterable",
    )
    assert (loader.items, loader.batches, loader.persistent_workers) == (None, None, True)
    # Both workers give all of it.
    assert loader.epoch_batches == (6, 6, 6, 6)
    assert len(known.waits) == 24
    assert (len(loader.starts), len(loader.first_waits)) == (4, 4)
    # Workers are started once.
    assert max(loader.starts[1:]) < loader.starts[0]
    assert loader.collated == 24
    assert loader.collate_seconds > 0
    assert loader.fetch_seconds >= 4 * 2 * 6 * 0.002
    assert {one.by for one in known.epochs} == {"values", "labels"}


VALIDATED = (
    BEGIN
    + """
training = DataLoader(Items(16), batch_size=4, shuffle=True)
validation = DataLoader(Items(8, seconds=0.005), batch_size=4)
never = DataLoader(Items(8))
def validate():
    model.eval()
    with torch.no_grad():
        for x, y in validation:
            time.sleep(0.01)
            model(x)
    model.train()
for epoch in range(3):
    for x, y in training:
        step(x)
    validate()
"""
)


def test_a_loader_for_validation_is_none_of_the_training(record: Record) -> None:
    ran = record(VALIDATED)
    assert ran.exit_code == 0, ran.stderr
    (known,) = ran.known.loaders
    assert known.loader.name == line(VALIDATED, "training = DataLoader(")
    assert known.loader.sampler == "RandomSampler"
    assert known.loader.epoch_batches == (4, 4, 4)
    # Eight items are loaded between the fourth step and the fifth, and once more.
    evaluation = ran.phase("evaluation")
    slow = [number for number, seconds in enumerate(evaluation) if seconds >= 8 * 0.005]
    assert slow == [3, 7]
    assert sum(ran.counted("forwards")) == ran.done - 1
    first = [one for one in known.epochs if one.by == "indices"]
    assert len({one.batches for one in first}) == 3


ALONE = (
    BEGIN
    + """
loader = DataLoader(Items(64, seconds=0.004), batch_size=4, shuffle=True)
while True:
    for x, y in loader:
        time.sleep(0.012)
        # Soon its weights are no numbers any more.
        step(x * 1e30)
"""
)


@pytest.mark.ward
def test_the_loader_alone_is_none_of_the_trainings(record: Record) -> None:
    ran = record(ALONE, stop_at=40, environment={recorded.ISOLATE: "1"})
    assert ran.exit_code == 0, ran.stderr
    (known,) = ran.known.loaders
    assert (known.loader.num_workers, len(known.waits)) == (0, 41)
    assert known.loader.fetched == 41 * 4
    assert [wrapper.checksum for wrapper in ran.known.wrappers] == [()]
    assert ran.stderr == ""
    points = {point.num_workers: point for point in ran.known.curve}
    assert points
    assert {point.name for point in points.values()} == {known.loader.name}
    for workers, point in points.items():
        # Each worker needs that long for a batch of four.
        assert point.seconds_per_batch >= 0.8 * 4 * 0.004 / workers
        assert point.batches >= 6


ODD = (
    BEGIN
    + """
class Held:
    def __init__(self, x):
        self.x = x
class Odd(Items):
    def __getitem__(self, number):
        if number % 3 == 0:
            return torch.eye(4).to_sparse()
        if number % 3 == 1:
            return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
        return {"held": Held(torch.ones(4)), "none": None, "empty": torch.empty(0)}
class Equal(DataLoader):
    def __eq__(self, other):
        return True  # and so it has no hash
odd = DataLoader(Odd(6), batch_size=None)
equal = Equal(Items(6), batch_size=2)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = model
    def forward(self, odd, x):
        return self.inner(x)
net = Net()
def odd_step(odd):
    net(odd, torch.ones(1, 4)).sum().backward()
    optimizer.step()
for epoch in range(2):
    print([odd_step(one) for one in odd])
    print([odd_step(x) for x, y in equal])
"""
)


def test_batches_and_loaders_of_every_kind_pass(bare: Run, record: Record) -> None:
    ran = record(ODD)
    assert (ran.exit_code, ran.stdout) == (0, bare(ODD).stdout), ran.stderr
    assert ran.done == 2 * (6 + 3) - 1
    known = {one.loader.name: one for one in ran.known.loaders}
    assert len(known[line(ODD, "odd = DataLoader")].waits) == 12
    assert len(known[line(ODD, "equal = Equal(")].waits) == 6


SLOW_WORKERS = (
    BEGIN
    + """
class Slow(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, number):
        time.sleep(0.05)  # decodes
        return torch.full((4,), float(number)), number
if __name__ == "__main__":
    loader = DataLoader(Slow(), batch_size=2, num_workers=2, multiprocessing_context=CONTEXT)
    for epoch in range(2):
        for x, y in loader:
            step(x)
"""
)


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.ward)])
def test_the_lines_of_workers(record: Record, context: str) -> None:
    ran = record(SLOW_WORKERS.replace("CONTEXT", repr(context)))
    assert ran.exit_code == 0, ran.stderr
    (known,) = ran.known.loaders
    found = known.loader.lines
    if context == "spawn":
        # Its workers share no memory with the process that writes this down.
        assert found == ()
        return
    assert found[0].text == "time.sleep(0.05)  # decodes"
    assert found[0].function == "__getitem__"
    assert f"{found[0].file}:{found[0].line}" == line(SLOW_WORKERS, "# decodes")
    # Samples of the last epoch: 12 items of 0.05 s on each of two workers, one each 0.05 s.
    assert 6 <= found[0].samples <= 40


KEPT = (
    BEGIN
    + """
import atexit, multiprocessing
loader = DataLoader(Items(256), batch_size=2, num_workers=3, persistent_workers=True)
atexit.register(lambda: print("at exit", len(multiprocessing.active_children())))
for _ in range(2):
    for x, number in loader:
        step(x)
"""
)


def test_a_run_that_is_stopped_ends_the_workers_that_its_loaders_keep(record: Record) -> None:
    stopped = record(KEPT, stop_at=8)
    assert stopped.left
    assert stopped.stdout == "at exit 0\n"


@pytest.mark.ward
def test_a_run_that_ends_by_itself_keeps_them(bare: Run, record: Record) -> None:
    assert record(KEPT).stdout == bare(KEPT).stdout == "at exit 3\n"


DRAWN = """
import time
import torch
from torch.utils.data import DataLoader, TensorDataset
class Slow:
    def __len__(self):
        return 60
    def __iter__(self):
        for number in range(60):
            time.sleep(SECONDS)
            yield number
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.ones(60, 4))
for (x,) in DataLoader(data, batch_size=4, sampler=Slow(), num_workers=WORKERS):
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("seconds", [0.0, 0.01])
def test_the_sampler_takes_its_time(record: Record, workers: int, seconds: float) -> None:
    ran = record(DRAWN.replace("WORKERS", str(workers)).replace("SECONDS", str(seconds)))
    assert ran.exit_code == 0, ran.stderr
    (known,) = ran.known.loaders
    assert 4 * seconds <= known.loader.sampler_seconds < 4 * seconds + 0.03
