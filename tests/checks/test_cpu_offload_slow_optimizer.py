from __future__ import annotations

from pathlib import Path

import pytest

from ddoctor.models import Severity
from tests.launch.files import FSDP
from tests.launch.reviewed import causes, reviewed

CAUSE = "cpu-offload-slow-optimizer"
LINE = "deepspeed --num_gpus 4 train.py --deepspeed_config ds.json"
OFFLOADED = '{"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}'
ENGINE = """
    import deepspeed
    import torch

    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer)
"""


def test_a_note_that_it_costs_time(tmp_path: Path) -> None:
    (note,) = reviewed(tmp_path, LINE, "", ds_json=OFFLOADED)
    assert (note.cause, note.severity) == (CAUSE, Severity.NOTE)
    assert "(ds.json:1)" in note.because


def test_fsdp_offloads(tmp_path: Path) -> None:
    config = FSDP.replace("fsdp_config:", "fsdp_config:\n      fsdp_offload_params: true")
    line = "accelerate launch --config_file fsdp.yaml train.py"
    assert causes(tmp_path, line, "", gpus=8, fsdp_yaml=config) == [CAUSE]


def test_deepspeed_refuses_the_optimizer(tmp_path: Path) -> None:
    found = reviewed(tmp_path, LINE, ENGINE, ds_json=OFFLOADED)
    assert {one.cause for one in found} == {CAUSE}
    assert found[0].severity is Severity.ERROR
    assert "passes torch.optim.AdamW, which DeepSpeed refuses there" in found[0].because


@pytest.mark.parametrize(
    "config",
    [
        '{"zero_optimization": {"stage": 2}}',
        OFFLOADED.replace("cpu", "none"),
        OFFLOADED.replace('"zero_opt', '"zero_force_ds_cpu_optimizer": false, "zero_opt'),
    ],
)
def test_nothing_is_refused(tmp_path: Path, config: str) -> None:
    found = reviewed(tmp_path, LINE, ENGINE, ds_json=config)
    assert [one for one in found if one.severity > Severity.NOTE] == []


@pytest.mark.parametrize("optimizer", ["DeepSpeedCPUAdam(model.parameters())", "None"])
def test_its_own_optimizer_is_right(tmp_path: Path, optimizer: str) -> None:
    source = ENGINE.replace("torch.optim.AdamW(model.parameters())", optimizer)
    found = reviewed(tmp_path, LINE, source, ds_json=OFFLOADED)
    assert [one.severity for one in found] == [Severity.NOTE]
