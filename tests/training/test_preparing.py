"""Work on the batches: in the training loop it costs every step, in the workers it need not."""

from __future__ import annotations

import pytest

from ddoctor.evidence.loading import Loading
from tests.training.conftest import MakeTraining

TRAIN = """
    import sys
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, Dataset

    where, workers = sys.argv[1], int(sys.argv[2])
    dist.init_process_group("gloo")

    class Texts(Dataset):
        def __len__(self):
            return 100_000

        def __getitem__(self, number):
            return "a text of some words " * 40

    def tokenise(texts):
        rows = [[sum(map(ord, word)) % 1000 for word in text.split()] for text in texts]
        return torch.tensor(rows)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(1000, 4)

        def forward(self, x):
            return self.embed(x[:, :8]).square().mean()

    model = DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    collate = tokenise if where == "collate" else list
    for batch in DataLoader(Texts(), batch_size=64, num_workers=workers, collate_fn=collate):
        tokens = tokenise(batch) if where == "loop" else batch
        loss = model(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.ward
@pytest.mark.parametrize("workers", [0, 2])
def test_a_tokeniser_in_the_training_loop(training: MakeTraining, workers: int) -> None:
    trained = training(TRAIN, "loop", str(workers)).recorded("--no-prove", "--steps=40")
    found = [one for one in trained.told["findings"] if one["cause"] == "collate-bottleneck"]
    (finding,) = found
    assert "between the loader of" in finding["because"]
    assert "train.py:" in finding["because"]
    (section,) = trained.evidence.all(Loading)
    assert all(one.collate_in_main > 0 for one in section.loaders)
    # One batch in each step, all of one epoch.
    assert all(one.wait_steps == tuple(range(one.taken)) for one in section.loaders)
    assert all(one.first_batches == () for one in section.loaders)


@pytest.mark.ward
def test_the_same_tokeniser_in_the_workers(training: MakeTraining) -> None:
    trained = training(TRAIN, "collate", "2").recorded("--no-prove", "--steps=40")
    told = [one["because"] for one in trained.told["findings"]]
    assert not [one for one in told if "between the loader of" in one]
    (section,) = trained.evidence.all(Loading)
    assert [one.collate_in_main for one in section.loaders] == [0.0, 0.0]
