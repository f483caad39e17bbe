"""Loaders that the script does not keep: what they did is known when they are gone."""

from __future__ import annotations

import pytest

from ddoctor.recorder.timeline import EVERY, IN_A_ROW
from tests.recorder.conftest import Record

TRAIN = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(40, 4))

    def train(loader):
        for (batch,) in loader:
            model(batch).sum().backward()
            optimizer.step()

    for epoch in range(3):
        train(DataLoader(data, batch_size=8))
    train(DataLoader(data, batch_size=4))
"""


def test_one_for_each_epoch_is_one_loader(record: Record) -> None:
    ran = record(TRAIN)
    assert ran.exit_code == 0, ran.stderr
    loaders = [one.loader for one in ran.known.loaders]
    assert [one.epoch_batches for one in loaders] == [(5, 5, 5), (10,)], loaders
    epochs, other = loaders
    assert epochs.batch_size == 8
    assert (epochs.fetched, epochs.dataset) == (120, "TensorDataset")
    assert other.batch_size == 4


@pytest.mark.ward
def test_of_many_batches_in_the_main_process_some_are_timed(record: Record) -> None:
    # All of the steps are recorded where they are no short ones.
    ran = record(
        TRAIN.replace("batch_size=4", "batch_size=1")
        .replace("randn(40", "randn(80")
        .replace("optimizer.step()", "optimizer.step(), __import__('time').sleep(0.025)")
    )
    (_, other) = (one.loader for one in ran.known.loaders)
    assert other.epoch_batches == (80,)
    assert other.collated == other.fetched == 64 + (80 - 64) / 4


def test_epochs_are_counted_while_the_recorder_rests(record: Record) -> None:
    ran = record(
        TRAIN.replace("randn(40", "randn(400")
        .replace("range(3)", "range(20)")
        .replace("batch_size=4", "batch_size=400")
    )
    assert ran.exit_code == 0, ran.stderr
    (epochs, *_) = (one.loader for one in ran.known.loaders)
    assert epochs.epoch_batches == (50,) * 20
    assert ran.done == 1000
    assert all(seconds > 0 for seconds in ran.phase("forward")[10:])
    # The first 32, 16 in a row of each 127, and those where the machine was slower for a while.
    regular = {number for number in range(1000) if number < 32 or number % EVERY < IN_A_ROW}
    recorded = {row.number for row in ran.rows}
    assert regular <= recorded
    assert len(recorded) <= 2 * len(regular)
