"""`run --memory`: scripts whose own training is grown until it does not fit."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor, nn

from ddoctor.evidence.memory_headroom import MemoryHeadroom
from ddoctor.recorder import recorded
from tests.forecast import truth
from tests.training.conftest import MakeTraining, Trained

MIB = 2**20
WIDTH, CLASSES = 256, 10

TRAIN = """
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(4096, 256), torch.randint(0, 10, (4096,)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16, sampler=sampler, num_workers=1)
    layers = nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU()
    model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(1024, 10)))
    optimizer = torch.optim.AdamW(model.parameters())
    for epoch in range(100):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
"""
FSDP = """
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import fully_shard
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    dist.init_process_group("gloo")
    data = TensorDataset(torch.randn(4096, 256), torch.randint(0, 10, (4096,)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    blocks = [
        nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)) for _ in range(4)
    ]
    model = nn.Sequential(*blocks, nn.Linear(256, 10))
    for block in model:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for epoch in range(100):
        sampler.set_epoch(epoch)
        for x, y in loader:
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
"""
# A device that says so itself, as CUDA's allocator does.
ENDS = """
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset

    dist.init_process_group("gloo")
    data = TensorDataset(torch.randn(4096, 64))
    loader = DataLoader(data, batch_size=16)
    model = DistributedDataParallel(nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    for epoch in range(100):
        for (x,) in loader:
            if dist.get_rank() and len(x) > 20:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
"""
TRAINER = """
    import torch
    from torch.utils.data import Dataset
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    class Texts(Dataset):
        def __len__(self):
            return 4000
        def __getitem__(self, index):
            tokens = torch.randint(0, 512, (32,))
            return {"input_ids": tokens, "labels": tokens}

    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4,
    ))
    arguments = TrainingArguments(
        "out", per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=1000,
        report_to=[], save_strategy="no", use_cpu=True,
    )
    Trainer(model, arguments, train_dataset=Texts()).train()
"""
# One batch size stands in its code, and an epoch has few samples.
FIXED = """
    import sys
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    samples, rows = map(int, sys.argv[1:])
    loader = DataLoader(TensorDataset(torch.randn(samples, 10, 32)), batch_size=16)
    model = nn.GRU(32, 64, batch_first=True)
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(2000):
        for (x,) in loader:
            out, _ = model(x, torch.zeros(1, rows or len(x), 64))
            out.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
"""
NO_LOADER = """
    import torch
    from torch import nn

    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(3000):
        model(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


class Scripted(nn.Module):
    """The model of the first script, with its loss."""

    def __init__(self) -> None:
        super().__init__()
        layers = nn.Linear(WIDTH, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU()
        self.layers = nn.Sequential(*layers, nn.Linear(1024, CLASSES))

    def forward(self, x: Tensor, y: Tensor) -> SimpleNamespace:
        return SimpleNamespace(loss=nn.functional.cross_entropy(self.layers(x), y))


def batch(samples: int) -> Mapping[str, Tensor]:
    return {"x": torch.randn(samples, WIDTH), "y": torch.randint(0, CLASSES, (samples,))}


def headroom(trained: Trained) -> MemoryHeadroom:
    found = trained.evidence.all(MemoryHeadroom)
    assert found, (trained.told, trained.stderr)
    return found[0]


def grown(training: Any, *options: str) -> Trained:
    trained: Trained = training.recorded("--no-prove", "--steps=10", "--memory", *options)
    assert trained.left == []
    return trained


@pytest.mark.ward
def test_the_allocator_says_the_same(training: MakeTraining) -> None:
    trained = grown(training(TRAIN), "--device-memory=48MiB,44MiB")
    found = headroom(trained)

    def needed(samples: int) -> int:
        return truth.peak(Scripted, lambda: batch(samples), torch.optim.AdamW, replicated=True)

    assert found.too_large == found.largest + 1
    assert needed(found.largest) <= 44 * MIB < needed(found.too_large)
    assert found.current == 16
    assert found.played
    last = next(one for one in found.trials if one.micro_batch == found.too_large)
    assert (last.outcome, last.ranks) == ("out-of-memory", (1,))
    assert [one.limit for one in found.ranks] == [48 * MIB, 44 * MIB]
    assert {one.micro_batch for one in found.rates} == {16, found.safe}
    assert not trained.told["crashed"]


@pytest.mark.ward
def test_fsdp_is_grown_as_it_is(training: MakeTraining) -> None:
    found = headroom(grown(training(FSDP), "--device-memory=40MiB"))
    assert found.too_large == found.largest + 1
    assert found.safe < found.largest
    for rank in found.ranks:
        used = rank.use(found.largest)
        assert used is not None
        assert 0.99 * rank.limit < used.allocated <= rank.limit


@pytest.mark.ward
def test_a_device_that_ends_the_script(training: MakeTraining) -> None:
    trained = grown(training(ENDS), "--device-memory=1GiB")
    found = headroom(trained)
    assert 16 <= found.largest <= 20
    assert found.too_large is not None
    assert found.too_large > 20
    assert all(one.ranks == (1,) for one in found.trials if one.outcome != "fits")
    assert any(one.micro_batch == 16 for one in found.rates)
    assert "OutOfMemoryError" not in trained.stderr


@pytest.mark.ward
def test_a_framework_that_accumulates(training: MakeTraining) -> None:
    found = headroom(grown(training(TRAINER), "--device-memory=40MiB"))
    assert found.current == 4
    assert found.too_large == found.largest + 1
    slow, fast = (found.samples_per_second(size) or 0 for size in (4, found.safe))
    assert fast > 1.5 * slow


@pytest.mark.ward
def test_a_script_that_takes_one_size_only(training: MakeTraining) -> None:
    found = headroom(grown(training(FIXED, "4096", "16"), "--device-memory=60MiB"))
    assert (found.largest, found.too_large, found.stopped) == (16, None, "script")
    (unseen,) = found.unseen
    assert unseen.what == "more than 16 samples at a time"
    assert "Expected hidden size" in unseen.why


@pytest.mark.ward
def test_no_more_than_an_epoch_has(training: MakeTraining) -> None:
    found = headroom(grown(training(FIXED, "160", "0"), "--device-memory=1GiB"))
    # Each rank reads all of it.
    assert (found.largest, found.too_large, found.stopped) == (160, None, "data")


@pytest.mark.ward
def test_a_script_that_fails_by_itself_is_not_started_again(training: MakeTraining) -> None:
    broken = NO_LOADER.replace("optimizer.zero_grad()", "assert step < 40")
    trained = grown(training(broken), "--device-memory=1GiB")
    assert trained.report is not None
    assert trained.report["findings"]
    assert not [one for one in trained.report["crashed"] if "memory" in one["check"]]


@pytest.mark.ward
def test_batches_that_no_loader_gives(training: MakeTraining) -> None:
    trained = grown(training(NO_LOADER), "--device-memory=1GiB")
    assert trained.report is not None
    (crashed,) = trained.report["crashed"]
    assert "no torch DataLoader delivered the batches" in crashed["error"]
    assert "--workload package.module:factory" in crashed["error"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--memory"], "--memory finds no GPU: give the memory limit of one"),
        *(
            pytest.param(*case, marks=pytest.mark.ward)
            for case in (
                (["--device-memory=3GiB"], "--device-memory needs --memory"),
                (["--memory", "--device-memory=3"], "--device-memory 3: give it as 10GB or 24GiB"),
                (
                    ["--memory", "--device-memory=3GiB,3GiB,3GiB"],
                    "has 3 sizes, but 2 ranks run on a",
                ),
            )
        ),
    ],
)
def test_what_makes_no_sense(training: MakeTraining, options: list[str], told: str) -> None:
    trained = training(NO_LOADER).recorded(*options)
    assert trained.report is None
    assert sum(told in one for one in trained.complaints) == 1


@pytest.mark.ward
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_ended_in_its_midst_it_leaves_nothing(training: MakeTraining, how: signal.Signals) -> None:
    one = training(TRAIN)
    command = one.under("--no-prove", "--steps=10", "--memory", "--device-memory=48MiB")
    with one.started(*command) as process:
        while not growing(process.pid):
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.send_signal(how)
        trained = one.outcome(process)
    deadline = time.monotonic() + 20
    while (left := one.running()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []
    assert trained.exit_code != 0


def growing(pid: int) -> bool:
    return any(recorded.GROW in environment(one) for one in psutil.Process(pid).children(True))


def environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}
