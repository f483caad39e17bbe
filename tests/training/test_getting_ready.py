"""What the ranks of FSDP2 hold before they train: real models, on CPUs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ddoctor import engine
from ddoctor.evidence import bundle
from ddoctor.evidence.section import Evidence
from ddoctor.evidence.training import Starts
from ddoctor.evidence.wrapping import Wrapping
from tests.conftest import Findings
from tests.test_cli import ddoctor
from tests.training.conftest import MakeTraining, Trained

CAUSE = "every-rank-loads-full-model"
TRAIN = """
import os, signal, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
kind, first, begun = sys.argv[1], dist.get_rank() == 0, time.monotonic()
def make():
    # What is frozen is gathered, and no gradient of it exchanged: short steps.
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(80)))
    model[:-1].requires_grad_(False)
    return model
alone = kind == "rank-0" and not first
with torch.device("meta" if kind == "meta" or alone else "cpu"):
    model = make()
weights = model.state_dict() if kind == "rank-0" and first else {}
if kind == "rank-0":
    model = model.to("meta")
time.sleep(0.3)
if kind == "killed":
    while True:
        nn.init.normal_(model[0].weight)
        if first and time.monotonic() > begun + 4:
            os.kill(os.getpid(), signal.SIGKILL)
for layer in model:
    fully_shard(layer)
fully_shard(model)
if kind in ("meta", "rank-0"):
    model.to_empty(device="cpu")
if kind == "rank-0":
    how = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, weights, options=how)
    del weights
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for _ in range(15):
    model(torch.randn(4, 1024)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
MODEL = 80 * 4 * (1024 + 1) * 1024


def on_a_small_host(trained: Trained) -> Evidence:
    """As if there were just enough for two such models."""
    (starts,) = trained.evidence.all(Starts)
    ranks = tuple(replace(row, memory=round(2.4 * MODEL)) for row in starts.ranks)
    return trained.evidence.with_sections(replace(starts, ranks=ranks))


@pytest.mark.ward
def test_each_rank_makes_all_of_it(training: MakeTraining, findings: Findings) -> None:
    script = training(TRAIN, "every")
    trained = script.recorded("--no-prove", "--steps=5")
    assert CAUSE not in trained.alarms
    (wrapping,) = trained.evidence.all(Wrapping)
    assert {(one.parameter_bytes, one.sharding) for one in wrapping.wrappers} == {(MODEL, "all")}
    (finding,) = findings(CAUSE, *on_a_small_host(trained))
    assert "2 ranks" in finding.because
    path = script.script.with_name("measured.json")
    bundle.write(path, trained.evidence)
    words = ("--params", "84M", "--trainable", "1M", "--device-memory", "4GiB", "--gpus", "1,2")
    told = ddoctor("plan", *words, "--measured", path)
    assert told.returncode == 0, told.stderr
    assert "FSDP, all sharded, 2 ranks, 4 samples each" in " ".join(told.stdout.split())


@pytest.mark.ward
@pytest.mark.parametrize("kind", ["meta", "rank-0"])
def test_not_each_rank_makes_all_of_it(
    training: MakeTraining, findings: Findings, kind: str
) -> None:
    trained = training(TRAIN, kind).recorded("--no-prove", "--steps=5")
    assert CAUSE not in [one["cause"] for one in trained.told["findings"]]
    assert findings(CAUSE, *on_a_small_host(trained)) == ()


@pytest.mark.ward
def test_one_is_killed_while_each_makes_it(training: MakeTraining) -> None:
    trained = training(TRAIN, "killed").recorded("--no-prove")
    assert CAUSE not in trained.alarms
    finding = engine.examine(on_a_small_host(trained), "run").findings[0]
    assert finding.cause == CAUSE
    assert "host-ram-oom" in finding.consequences
    assert "loaded a model into host memory, at train.py:" in finding.because
