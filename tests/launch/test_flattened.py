"""Models that accelerate cannot divide into the units of FSDP1."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch.files import FSDP
from tests.launch.reviewed import causes, reviewed

COMMAND = "accelerate launch --config_file fsdp.yaml train.py"
FLATTENS = "fsdp-mixed-params-flatten"
SOURCE = """
    import torch
    from accelerate import Accelerator
    from transformers import AutoModelForCausalLM
    accelerator = Accelerator()
    model = AutoModelForCausalLM.from_pretrained("a/b", dtype=torch.bfloat16)
    {line}
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer = accelerator.prepare(model, optimizer)
"""
FREEZES = """for name, weight in model.named_parameters():
        if {test}:
            weight.requires_grad = False"""
FLAT = FSDP.replace("use_orig_params: true", "use_orig_params: false")
HEAD = "model.lm_head.to(torch.float32)"


@pytest.mark.parametrize(
    ("test", "config", "wrong"),
    [
        ('"self_attn" in name', FLAT, True),
        ('"embed" in name or "mlp" in name', FLAT, True),
        ('"self_attn" in name', FSDP, False),
        # Whole layers.
        ('"layers.3." in name', FLAT, False),
        ('"self_attn" in name', FLAT.replace("TRANSFORMER_BASED", "SIZE_BASED"), False),
        ('"self_attn" in name', FLAT.replace("DecoderLayer", "Attention"), False),
        ('"self_attn" in name', f"{FLAT}    fsdp_version: 2\n".replace(": FSDP", ": DDP"), False),
    ],
)
def test_parts_of_blocks_that_are_frozen(
    tmp_path: Path, test: str, config: str, wrong: bool
) -> None:
    source = SOURCE.format(line=FREEZES.format(test=test))
    found = causes(tmp_path, COMMAND, source, fsdp_yaml=config)
    assert (FLATTENS in found) is wrong
    # One fix for both.
    assert not wrong or "fsdp-use-orig-params" not in found


@pytest.mark.parametrize(
    ("line", "config", "wrong"),
    [
        (HEAD, FSDP, True),
        (HEAD, FSDP.replace("TRANSFORMER_BASED_WRAP", "NO_WRAP"), True),
        (HEAD, FSDP.replace("fsdp_config:", "fsdp_config:\n      fsdp_version: 2"), False),
        (HEAD, FSDP.replace("type: FSDP", "type: MULTI_GPU"), False),
        ("model.lm_head.requires_grad_(True)", FSDP, False),
    ],
)
def test_parts_of_another_type(tmp_path: Path, line: str, config: str, wrong: bool) -> None:
    found = causes(tmp_path, COMMAND, SOURCE.format(line=line), fsdp_yaml=config)
    assert (FLATTENS in found) is wrong


@pytest.mark.parametrize(
    ("model", "policy", "wrong"),
    [
        ("Qwen/Qwen2.5-7B", "TRANSFORMER_BASED_WRAP", True),
        ("meta-llama/Llama-3.1-8B", "TRANSFORMER_BASED_WRAP", False),
        ("org/of-our-own", "TRANSFORMER_BASED_WRAP", False),
        # accelerate does not read the class then.
        ("Qwen/Qwen2.5-7B", "SIZE_BASED_WRAP", False),
    ],
)
def test_a_block_of_another_family(tmp_path: Path, model: str, policy: str, wrong: bool) -> None:
    source = SOURCE.format(line="").replace("a/b", model)
    config = FSDP.replace("TRANSFORMER_BASED_WRAP", policy)
    found = reviewed(tmp_path, COMMAND, source, fsdp_yaml=config)
    told = [one for one in found if one.cause == "fsdp-wrap-policy-wrong"]
    assert bool(told) is wrong
    assert all("accelerate raises ValueError" in one.because for one in told)
