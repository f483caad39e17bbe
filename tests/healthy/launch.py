"""What a sound launch on one host with 8 GPUs says."""

from __future__ import annotations

from ddoctor.evidence.section import Section
from tests.launched import launch

SECTIONS: tuple[Section, ...] = (
    launch(
        "accelerate",
        "train.py",
        {
            "ranks": "8",
            "hosts": "1",
            "host-rank": "0",
            "strategy": "fsdp",
            "fsdp.auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp.transformer_layer_cls_to_wrap": "LlamaDecoderLayer",
            "fsdp.cpu_ram_efficient_loading": "true",
            "fsdp.sync_module_states": "true",
            "precision": "bf16",
            "env.NCCL_DEBUG": "WARN",
            "arg.per_device_train_batch_size": "4",
            "arg.learning_rate": "2e-5",
        },
    ),
)
