"""Parts of a model in 16 bits that get another type before FSDP1 flattens them."""

from __future__ import annotations

from tests.script.sources import ddp
from tests.script.twins.parts import FSDP, SHARDED

HEAD = f"""{FSDP}
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2RMSNorm
"""
LOADS = "AutoModelForCausalLM.from_pretrained('a/b', torch_dtype=torch.bfloat16)"
BLOCKS = "auto_wrap_policy=ModuleWrapPolicy({Qwen2DecoderLayer})"
NORMS = "for layer in net.model.layers:\n    layer.input_layernorm.float()"
BY_NAME = """
for name, module in net.named_modules():
    if {test}:
        module.to(torch.float32)
"""


def cast(line: str, policy: str = BLOCKS, loads: str = LOADS) -> str:
    wrap = SHARDED.format(f"net, {policy}, use_orig_params=True")
    set_up = wrap.replace("model = FSDP", f"net = {loads}\n{line}\nmodel = FSDP")
    return ddp(head=HEAD, set_up=set_up)


TWINS = {
    "a head in float32": (
        "fsdp-mixed-params-flatten",
        cast("net.lm_head.to(torch.float32)"),
        cast("net.lm_head.to(torch.bfloat16)"),
        cast("net.lm_head.to(local_rank)"),
        cast("net.lm_head.to(torch.float32)", loads=LOADS.replace("bfloat16", "float32")),
        cast("net.lm_head.to(torch.float32)", policy=f"{BLOCKS}, ignored_modules=[net.lm_head]"),
        cast("net.lm_head.to(torch.float32)\nnet.to(torch.bfloat16)"),
        cast("if args.whole: net.lm_head.to(torch.float32)"),
        cast("scores = net.lm_head(hidden).float()"),
    ),
    "a head in float32 of a model that is moved": (
        "fsdp-mixed-params-flatten",
        cast("net.lm_head.to(torch.float32)\nnet.to(local_rank)"),
        cast("net.lm_head.to(torch.float32)\nnet.float()"),
    ),
    "norms in float32 within blocks": (
        "fsdp-mixed-params-flatten",
        cast(NORMS),
        cast(NORMS, policy="auto_wrap_policy=ModuleWrapPolicy({Qwen2DecoderLayer, Qwen2RMSNorm})"),
        cast(NORMS.replace(".input_layernorm", "")),
        cast(NORMS, policy="auto_wrap_policy=policy_of(net)"),
        cast(NORMS.replace("net.model", "teacher.model")),
    ),
    "norms in float32 by their names": (
        "fsdp-mixed-params-flatten",
        cast(BY_NAME.format(test="'norm' in name")),
        cast(BY_NAME.format(test="args.whole")),
        cast(BY_NAME.format(test="'norm' in name").replace("module.to", "tensor.to")),
    ),
}
"""Each: the cause, a script with it, and sound scripts that are nearly the same."""
