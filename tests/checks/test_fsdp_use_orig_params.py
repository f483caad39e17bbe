from __future__ import annotations

from pathlib import Path

import pytest

from ddoctor.models import Severity
from tests.launch.files import FSDP
from tests.launch.reviewed import causes, reviewed

CAUSE = "fsdp-use-orig-params"
LINE = "torchrun --nproc-per-node 4 train.py"
BEFORE = """
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard

    torch.distributed.init_process_group()
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    model = FSDP(model)
    for batch in batches():
        model(batch).backward()
        optimizer.step()
    torch.distributed.destroy_process_group()
"""
AFTER = BEFORE.replace("FSDP(model)", "FSDP(model)\n    optimizer = torch.optim.AdamW(x(model))")
PREPARED = """
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator()
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer = accelerator.prepare(model, optimizer)
"""
ACCELERATE = "accelerate launch --config_file fsdp.yaml train.py"
WITHOUT = FSDP.replace("orig_params: true", "orig_params: false")


@pytest.mark.parametrize("wrap", ["model = FSDP(model)", "fully_shard(model)"])
def test_the_optimizer_comes_first(tmp_path: Path, wrap: str) -> None:
    source = BEFORE.replace("model = FSDP(model)", wrap)
    (found,) = [one for one in reviewed(tmp_path, LINE, source) if one.cause == CAUSE]
    assert found.severity is Severity.ERROR
    assert f"train.py:7 (`{wrap}`) replaces them afterwards" in found.because
    assert found.fixes[0].paste.splitlines()[0] == wrap


def test_accelerate_prepares_both_together(tmp_path: Path) -> None:
    found = reviewed(tmp_path, ACCELERATE, PREPARED, gpus=8, fsdp_yaml=WITHOUT)
    assert [one.cause for one in found if one.severity > Severity.NOTE] == [CAUSE]


@pytest.mark.parametrize(
    "source",
    [
        AFTER,
        BEFORE.replace("FSDP(model)", "FSDP(model, use_orig_params=True)"),
        BEFORE.replace("FSDP(model)", "FSDP(model, **options)"),
        BEFORE.replace("FSDP(model)", "FSDP(other)"),
        BEFORE.replace("model.parameters()", "groups(model)"),
        BEFORE.replace("    model = FSDP", "    if large:\n        model = FSDP"),
    ],
)
def test_it_is_quiet(tmp_path: Path, source: str) -> None:
    assert CAUSE not in causes(tmp_path, LINE, source)


@pytest.mark.parametrize(
    ("source", "config"),
    [
        (PREPARED, FSDP),
        (PREPARED, WITHOUT.replace("fsdp_auto", "fsdp_version: 2\n      fsdp_auto")),
        (PREPARED.replace("prepare(model, optimizer)", "prepare(model), optimizer"), WITHOUT),
    ],
)
def test_it_is_quiet_with_accelerate(tmp_path: Path, source: str, config: str) -> None:
    assert CAUSE not in causes(tmp_path, ACCELERATE, source, gpus=8, fsdp_yaml=config)
