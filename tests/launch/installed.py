"""Packages that a test installs: the parts of libraries that say which keys they know."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

DEEPSPEED = {
    "deepspeed/__init__.py": "",
    "deepspeed/runtime/__init__.py": "",
    "deepspeed/runtime/config.py": """
        TENSORBOARD = "tensorboard"
        def get_fp16(param_dict):
            return param_dict.get("fp16", {})
    """,
    "deepspeed/runtime/constants.py": """
        TRAIN_BATCH_SIZE = "train_batch_size"
        TRAIN_MICRO_BATCH_SIZE_PER_GPU = "train_micro_batch_size_per_gpu"
        GRADIENT_ACCUMULATION_STEPS = "gradient_accumulation_steps"
        OPTIMIZER, SCHEDULER = "optimizer", "scheduler"
        ZERO_OPTIMIZATION = "zero_optimization"
        COMET = "comet"
        ACT_CHKPT_PARTITION_ACTIVATIONS = "partition_activations"
    """,
    "deepspeed/runtime/config_utils.py": """
        from pydantic import BaseModel, ConfigDict
        class DeepSpeedConfigModel(BaseModel):
            model_config = ConfigDict(extra="forbid")
    """,
    "deepspeed/runtime/precision_config.py": """
        from deepspeed.runtime.config_utils import DeepSpeedConfigModel
        class DeepSpeedBF16Config(DeepSpeedConfigModel):
            enabled: bool = False
    """,
    "deepspeed/runtime/zero/config.py": """
        from pydantic import Field
        from deepspeed.runtime.config_utils import DeepSpeedConfigModel
        from .offload_config import DeepSpeedZeroOffloadOptimizerConfig
        class DeepSpeedZeroConfig(DeepSpeedConfigModel):
            stage: int = 0
            overlap_comm: bool = None
            offload_optimizer: DeepSpeedZeroOffloadOptimizerConfig = None
            prefetch_bucket_size: int = Field(5, alias="stage3_prefetch_bucket_size")
    """,
    "deepspeed/runtime/zero/offload_config.py": """
        from deepspeed.runtime.config_utils import DeepSpeedConfigModel
        class DeepSpeedZeroOffloadOptimizerConfig(DeepSpeedConfigModel):
            device: str = "none"
            pin_memory: bool = False
    """,
    "deepspeed/runtime/lr_schedules.py": """
        class WarmupLR(object):
            def __init__(self, optimizer, warmup_min_lr=0.0, warmup_num_steps=1000):
                self.steps = warmup_num_steps
    """,
}
TRL = {
    "trl/__init__.py": """
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from .scripts import ScriptArguments, TrlParser
            from .trainer import SFTConfig
    """,
    "trl/trainer/__init__.py": "from .sft_config import SFTConfig",
    "trl/trainer/sft_config.py": """
        from dataclasses import dataclass, field
        from transformers import TrainingArguments
        @dataclass
        class SFTConfig(TrainingArguments):
            learning_rate: float = field(default=2e-5)
            max_length: int = field(default=1024)
            packing: bool = field(default=False)
    """,
    "trl/scripts/__init__.py": "from .utils import ScriptArguments, TrlParser",
    "trl/scripts/utils.py": """
        from dataclasses import dataclass
        from transformers import HfArgumentParser
        @dataclass
        class ScriptArguments:
            dataset_name: str = None
        class TrlParser(HfArgumentParser):
            pass
    """,
    "trl/scripts/sft.py": """
        def make_parser(prog=None):
            from trl import ScriptArguments, SFTConfig, TrlParser
            dataclass_types = (ScriptArguments, SFTConfig)
            return TrlParser(dataclass_types, prog=prog)
    """,
}
LEROBOT = {
    "draccus/__init__.py": "from .choice_types import ChoiceRegistry",
    "draccus/choice_types.py": "class ChoiceRegistry:\n    pass\n",
    "lerobot/__init__.py": "",
    "lerobot/configs/__init__.py": "",
    "lerobot/envs/__init__.py": "from .configs import EnvConfig",
    "lerobot/envs/configs.py": """
        import draccus
        class EnvConfig(draccus.ChoiceRegistry):
            fps: int = 30
    """,
    "lerobot/configs/policies.py": """
        import draccus
        from abc import ABC
        class PreTrainedConfig(draccus.ChoiceRegistry, ABC):
            device: str | None = None
    """,
    "lerobot/configs/train.py": """
        from dataclasses import dataclass, field
        from lerobot import envs
        from lerobot.configs.policies import PreTrainedConfig
        @dataclass
        class DatasetConfig:
            repo_id: str
            episodes: list[int] | None = None
        @dataclass
        class TrainPipelineConfig:
            dataset: DatasetConfig
            policy: PreTrainedConfig | None = None
            env: envs.EnvConfig | None = None
            batch_size: int = 8
            steps: int = 100_000
            checkpoint_path: str | None = field(init=False, default=None)
    """,
    "lerobot/policies/act/configuration_act.py": """
        from dataclasses import dataclass
        from lerobot.configs.policies import PreTrainedConfig
        @PreTrainedConfig.register_subclass("act")
        @dataclass
        class ACTConfig(PreTrainedConfig):
            chunk_size: int = 100
    """,
}


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> None:
    """Put a package where Python finds it before any other."""
    site = folder / "site"
    for name, text in files.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text).lstrip("\n"))
    monkeypatch.syspath_prepend(str(site))
