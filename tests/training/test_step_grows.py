"""Whole runs whose steps take longer and longer, and twins whose steps do not."""

from __future__ import annotations

import pytest

from tests.training.conftest import MakeTraining

SCRIPT = """
    import sys
    from collections import deque
    import numpy as np
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    kind = sys.argv[1]
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scores = deque(maxlen=4 if kind == "bounded" else None)
    for step in range(600):
        inputs = torch.randn(256, 64)
        outputs = model(inputs)
        loss = nn.functional.cross_entropy(outputs, inputs[:, :8].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if kind in ("metric", "bounded"):
            scores.append(outputs.detach().numpy().ravel())
            quantile = np.sort(np.concatenate(scores))[-10]  # over all so far
    dist.destroy_process_group()
"""
CAUSE = "step-time-grows"


@pytest.mark.ward
def test_it_is_named_with_its_line(training: MakeTraining) -> None:
    trained = training(SCRIPT, "metric").recorded("--no-prove", "--steps", "all")
    assert trained.first["cause"] == CAUSE
    assert "quantile = np.sort" in trained.first["because"]


@pytest.mark.ward
@pytest.mark.parametrize("kind", ["bounded", "none"])
def test_quiet(training: MakeTraining, kind: str) -> None:
    trained = training(SCRIPT, kind).recorded("--no-prove", "--steps", "all")
    assert CAUSE not in {one["cause"] for one in trained.told["findings"]}
