"""Steps that compute or send what nothing uses: what the report names first, and twins."""

from __future__ import annotations

import pytest

from tests.training.conftest import MakeTraining

BEGIN = """
    import sys
    from contextlib import nullcontext
    from functools import partial
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, Dataset

    sick = sys.argv[1] == "sick"
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    torch.set_num_threads(1)

    def layers(width, depth):
        return nn.Sequential(*[
            part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU())
        ])
"""
SCRIPTS = {
    "gradients-discarded": """
    maker, critic = (DistributedDataParallel(layers(256, depth)) for depth in (12, 2))
    of_maker = torch.optim.SGD(maker.parameters(), lr=0.01)
    of_critic = torch.optim.SGD(critic.parameters(), lr=0.01)
    for step in range(120):
        for _ in range(2):
            made = maker(torch.randn(1024, 256))
            of_critic.zero_grad()
            critic(made if sick else made.detach()).square().mean().backward()
            of_critic.step()
        of_maker.zero_grad()
        critic.module(maker(torch.randn(1024, 256))).square().mean().backward()
        of_maker.step()
""",
    "padding-beyond-longest": """
    class Texts(Dataset):
        def __len__(self):
            return 4000
        def __getitem__(self, index):
            return torch.arange(5, 5 + 20 + index % 30)

    def collate(rows):
        longest = 256 if sick else max(map(len, rows))
        ids = torch.zeros(len(rows), longest, dtype=torch.long)
        for row, one in zip(ids, rows):
            row[:len(one)] = one
        return ids

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.body = nn.Embedding(300, 128), layers(128, 4)
        def forward(self, ids):
            return self.body(self.table(ids))

    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for ids in DataLoader(Texts(), batch_size=32, collate_fn=collate):
        loss = model(ids).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    "lengths-mixed-in-batches": """
    drawn = torch.rand(4000, generator=torch.manual_seed(0))
    lengths = [16 + int(400 * part ** 4) for part in drawn]
    if not sick:
        lengths.sort()

    class Texts(Dataset):
        def __len__(self):
            return len(lengths)
        def __getitem__(self, index):
            return torch.arange(5, 5 + lengths[index])

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.body = nn.Embedding(500, 128), layers(128, 4)
        def forward(self, ids):
            return self.body(self.table(ids))

    collate = partial(nn.utils.rnn.pad_sequence, batch_first=True)
    order = torch.randperm(250, generator=torch.manual_seed(0)).tolist()
    batches = [range(16 * one, 16 * one + 16) for one in order]
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for ids in DataLoader(Texts(), batch_sampler=batches, collate_fn=collate):
        loss = model(ids).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    "optimizer-step-slow": """
    class Descent(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {"lr": 0.01})
        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                for one in group["params"]:
                    average = self.state[one].setdefault("average", torch.zeros_like(one))
                    if sick:
                        for row in range(len(one)):
                            average[row].mul_(0.9).add_(one.grad[row], alpha=0.1)
                            one[row].sub_(average[row], alpha=group["lr"])
                    else:
                        average.mul_(0.9).add_(one.grad, alpha=0.1)
                        one.sub_(average, alpha=group["lr"])

    model = DistributedDataParallel(layers(128, 16))
    optimizer = Descent(model.parameters())
    for step in range(120):
        loss = model(torch.randn(512, 128)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    "hooks-added-each-step": """
    body = layers(256, 4)
    model = DistributedDataParallel(body)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def features(found):
        def hook(module, inputs, output):
            found.append(output.square().mean(1))
        return body[0].register_forward_hook(hook)

    for step in range(2000):
        found = []
        handle = features(found)
        loss = model(torch.randn(256, 256)).square().mean() + found[-1].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not sick:
            handle.remove()
""",
    "gradient-sync-every-microstep": """
    model = DistributedDataParallel(layers(768, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(100):
        for part in range(4):
            hold = model.no_sync if part < 3 else nullcontext
            with nullcontext() if sick else hold():
                loss = model(torch.randn(16, 768)).square().mean()
                with hold() if sick else nullcontext():
                    loss.backward()
        optimizer.step()
        optimizer.zero_grad()
""",
    "embedding-gradients-dense": """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(60_000, 64, sparse=not sick)
            self.body = layers(64, 2)
        def forward(self, ids):
            return self.body(self.table(ids))

    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(100):
        loss = model(torch.randint(60_000, (64,))).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
}


@pytest.mark.ward
@pytest.mark.parametrize("cause", SCRIPTS)
def test_what_is_wasted_is_named_first(training: MakeTraining, cause: str) -> None:
    trained = training(BEGIN + SCRIPTS[cause], "sick").recorded("--no-prove")
    assert trained.first["cause"] == cause
    assert trained.first["severity"] in ("warning", "error")


@pytest.mark.ward
@pytest.mark.parametrize("cause", SCRIPTS)
def test_its_twin_is_quiet(training: MakeTraining, cause: str) -> None:
    trained = training(BEGIN + SCRIPTS[cause], "sound").recorded("--no-prove")
    assert cause not in [one["cause"] for one in trained.told["findings"]]
