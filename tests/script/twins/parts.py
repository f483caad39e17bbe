"""Parts of scripts that several twins have in common."""

from __future__ import annotations

from tests.script.sources import SET_UP

FSDP = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from transformers import AutoModelForCausalLM
"""
SHARDED = SET_UP.replace("DDP(Net().to(local_rank))", "FSDP({})")
DEVICE = 'device = torch.device("cuda:0")\n'
ON_ONE = (
    f"{DEVICE}dist.init_process_group('nccl')\nmodel = DDP(Net().to(device))\ndata = Images()\n"
)
