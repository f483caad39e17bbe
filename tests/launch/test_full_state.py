"""Checkpoints that gather a model of known size on the GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddoctor.models import Severity
from tests.launch.reviewed import reviewed

CAUSE = "fsdp-full-state-dict-oom"
SCRIPT = """
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import FullStateDictConfig, StateDictType
from transformers import AutoModelForCausalLM

dist.init_process_group("nccl")
KEEP = FullStateDictConfig({config})
model = FSDP(AutoModelForCausalLM.from_pretrained("{model}"), use_orig_params=True)

def keep(path):
    options = StateDictOptions({options})
    {state}
    if dist.get_rank() == 0:
        torch.save(state, path)

keep("model.pt")
dist.destroy_process_group()
"""
OLD = "with FSDP.state_dict_type(model, StateDictType.{}):\n        state = model.state_dict()"
NEW = "state = get_model_state_dict(model, options=options)"
LARGE, SMALL = "meta-llama/Llama-2-70b-hf", "meta-llama/Llama-2-7b-hf"
LINE = "torchrun --standalone --nproc-per-node 4 train.py"
OFFLOADED = "offload_to_cpu=True, rank0_only=True"


def severity(
    folder: Path, state: str, *, model: str = LARGE, config: str = "", options: str = ""
) -> Severity | None:
    source = SCRIPT.format(state=state, model=model, config=config, options=options)
    found = [one for one in reviewed(folder, LINE, source) if one.cause == CAUSE]
    return found[0].severity if found else None


@pytest.mark.parametrize(
    ("kind", "config", "told"),
    [
        ("FULL_STATE_DICT", "", True),
        ("FULL_STATE_DICT, KEEP", "rank0_only=True", True),
        ("FULL_STATE_DICT, KEEP", "offload_to_cpu=False", True),
        ("FULL_STATE_DICT, KEEP", OFFLOADED, False),
        ("FULL_STATE_DICT, state_dict_config=KEEP", OFFLOADED, False),
        ("FULL_STATE_DICT, args.config", "", False),
        ("SHARDED_STATE_DICT", "", False),
    ],
)
def test_fsdp1(tmp_path: Path, kind: str, config: str, told: bool) -> None:
    # 70 billion parameters in fp32 are more than the GPUs of the test have.
    found = severity(tmp_path, OLD.format(kind), config=config)
    assert found is (Severity.ERROR if told else None)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("full_state_dict=True", True),
        ("full_state_dict=True, cpu_offload=False", True),
        ("full_state_dict=True, cpu_offload=True", False),
        ("full_state_dict=True, cpu_offload=args.offload", False),
        ("", False),
    ],
)
def test_torch_checkpoints(tmp_path: Path, options: str, told: bool) -> None:
    found = severity(tmp_path, NEW, options=options)
    assert found is (Severity.ERROR if told else None)


@pytest.mark.parametrize("model", [SMALL, "own/model"])
def test_small_models_and_unknown_ones(tmp_path: Path, model: str) -> None:
    assert severity(tmp_path, OLD.format("FULL_STATE_DICT"), model=model) is None
