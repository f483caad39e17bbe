"""Values and keys of accelerate's file that accelerate refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddoctor.models import Severity
from tests.launch.files import SCRIPT, told

SHARDED = """
    distributed_type: FSDP
    fsdp_config:
      {}
      fsdp_version: 1
    mixed_precision: bf16
    num_machines: 1
    num_processes: 2
"""
BY_DEEPSPEED = """
    distributed_type: DEEPSPEED
    deepspeed_config:
      deepspeed_config_file: ds.json
      {}
    {}
    num_machines: 1
    num_processes: 2
"""
DS = '{"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}}'


def errors(folder: Path, config: str, more: str = "") -> list[str]:
    command = f"accelerate launch --config_file own.yaml {more} train.py"
    found = told(folder, command, train_py=SCRIPT, own_yaml=config, ds_json=DS)
    return [one.because for one in found if one.severity is Severity.ERROR]


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        ("fsdp_sharding_strategy: FULL_SHARDS", "fsdp_sharding_strategy is FULL_SHARDS"),
        ("fsdp_state_dict_type: SHARDED", "accelerate knows FULL_STATE_DICT, LOCAL_STATE_DICT"),
        ("fsdp_auto_wrap_policy: TRANSFORMER", "TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP"),
        ("fsdp_sharding_strategy: full_shard", ""),
        ("fsdp_sharding_strategy: 1", ""),
        ("fsdp_backward_prefetch: null", ""),
        ("fsdp_state_dict_type: SHARDED_STATE_DICT", ""),
    ],
)
def test_values_that_are_none_of_its_own(tmp_path: Path, key: str, wrong: str) -> None:
    found = errors(tmp_path, SHARDED.format(key))
    assert [wrong in one for one in found] == [True] if wrong else found == []


@pytest.mark.parametrize(
    ("key", "other", "more", "wrong"),
    [
        ("zero_stage: 3", "", "", "zero_stage (own.yaml:4) stands next to"),
        ("zero3_init_flag: false", "mixed_precision: bf16", "", "mixed_precision (own.yaml:5)"),
        ("zero3_init_flag: false", "", "", ""),
        # The line replaces it.
        ("zero3_init_flag: false", "mixed_precision: bf16", "--mixed_precision bf16", ""),
    ],
)
def test_keys_beside_a_file_of_deepspeed(
    tmp_path: Path, key: str, other: str, more: str, wrong: str
) -> None:
    found = errors(tmp_path, BY_DEEPSPEED.format(key, other), more)
    assert [wrong in one for one in found] == [True] if wrong else found == []
