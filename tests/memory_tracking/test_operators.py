"""Operator by operator: what is held, and the end of it where there is no more."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch

from ddoctor.memory_sweep.training import out_of_memory
from ddoctor.memory_tracking.operators import LimitedTracker
from tests.forecast import truth
from tests.forecast.model_set import SET
from tests.memory_sweep import exhaustive, workloads

MIB = 2**20


def held(make_limit: int, samples: int = 64) -> list[int]:
    model, optimizer, loss = workloads.dense()
    for _ in range(2):
        tracker = LimitedTracker(model, optimizer, (), make_limit)
        with tracker:
            value = loss(model, samples)
            value.backward()  # type: ignore[no-untyped-call]
            del value
            optimizer.step()
            optimizer.zero_grad()
    return tracker.held


@pytest.mark.ward
def test_the_peak_is_that_of_the_allocator() -> None:
    case = SET["dense"]
    model, optimizer = case.build().train(), torch.optim.AdamW
    batch = case.batch()
    steps = optimizer(model.parameters())
    for _ in range(2):
        tracker = LimitedTracker(model, steps, batch.values(), 2**40)
        with tracker:
            outputs = model(**batch)
            outputs.loss.backward()
            del outputs
            steps.step()
            steps.zero_grad()
    real = truth.peak(case.build, case.batch, optimizer)
    assert max(tracker.held) == pytest.approx(real, rel=0.01)


def test_as_many_operators_whatever_the_samples() -> None:
    assert len(held(2**40, 8)) == len(held(2**40, 64))


def test_it_ends_at_the_operator_that_needs_more() -> None:
    whole = held(2**40)
    with pytest.raises(torch.cuda.OutOfMemoryError, match=r"out of memory\. \d+ bytes") as error:
        held(max(whole) - 1)
    assert out_of_memory(error.value)
    accelerate = import_module("accelerate.utils.memory")
    assert accelerate.should_reduce_batch_size(error.value)
    assert max(held(max(whole))) == max(whole)


def test_what_is_no_lack_of_memory() -> None:
    assert not out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    # Libraries beside the allocator have words of their own.
    assert out_of_memory(RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED."))


@pytest.mark.ward
def test_trying_every_size_finds_the_largest() -> None:
    most = exhaustive.largest(workloads.dense, 9 * MIB, ranks=1)
    assert max(held(2**40, most)) <= 9 * MIB < max(held(2**40, most + 1))
