"""Files of accelerate that wrap blocks, and models that the script itself makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch.files import FSDP
from tests.launch.reviewed import reviewed

SOURCE = """
    {head}
    import torch
    from torch import nn
    from accelerate import Accelerator

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.layer = nn.Linear(width, width)

    class {decoder}(Block):
        pass

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([{decoder}(512) for _ in range(12)])

    accelerator = Accelerator()
    model = accelerator.prepare(Net())
"""
COMMAND = "accelerate launch --config_file fsdp.yaml train.py"
CAUSE = "fsdp-wrap-policy-wrong"


@pytest.mark.parametrize(
    ("wraps", "head", "wrong"),
    [
        ("LlamaDecoderLayer", "", True),
        ("Decoder", "", True),
        ("DecoderBlock,GPTBlock", "import numpy as np, tqdm", True),
        ("DecoderBlock", "", False),
        ("DecoderBlock, Block", "", False),
        ("TransformerEncoderLayer", "", True),
        ("TransformerEncoderLayer", "import torch.nn\n    torch.nn.Transformer(512)", False),
        # Another package may bring the layer.
        ("LlamaDecoderLayer", "from transformers import LlamaModel", False),
        ("Decoder", "import timm", False),
        ("Decoder", "from elsewhere import *", False),
    ],
)
def test_the_block_that_is_wrapped(tmp_path: Path, wraps: str, head: str, wrong: bool) -> None:
    source = SOURCE.format(head=head, decoder="DecoderBlock")
    config = FSDP.replace("LlamaDecoderLayer", wraps)
    found = reviewed(tmp_path, COMMAND, source, gpus=8, fsdp_yaml=config)
    told = [one for one in found if one.cause == CAUSE]
    assert bool(told) is wrong
    if told:
        assert told[0].fixes[0].paste == "fsdp_transformer_layer_cls_to_wrap: DecoderBlock"
        assert "its repeated block is train.py:" in told[0].because


def test_a_block_of_another_module(tmp_path: Path) -> None:
    source = """
        from accelerate import Accelerator
        from net import Net
        model = Accelerator().prepare(Net())
    """
    net = SOURCE.format(head="", decoder="DecoderBlock")
    config = FSDP.replace("LlamaDecoderLayer", "DecoderBlock")
    assert CAUSE not in {
        one.cause
        for one in reviewed(tmp_path, COMMAND, source, gpus=8, net_py=net, fsdp_yaml=config)
    }
    (tmp_path / "net.py").unlink()
    config = FSDP.replace("LlamaDecoderLayer", "Nothing")
    # The layers of a module that is not here are unknown.
    assert CAUSE not in {
        one.cause for one in reviewed(tmp_path, COMMAND, source, gpus=8, fsdp_yaml=config)
    }


@pytest.mark.parametrize(
    ("wraps", "more", "wrong"),
    [
        ("TransformerEncoderLayer", "", True),
        ("DecoderBlock", "", False),
        ("DecoderBlock, TransformerEncoderLayer", "", False),
        ("TransformerEncoderLayer", "other = nn.TransformerEncoderLayer(512, 8)", False),
        ("TransformerEncoderLayer", "import timm", False),
    ],
)
def test_a_policy_of_the_script(tmp_path: Path, wraps: str, more: str, wrong: bool) -> None:
    source = SOURCE.format(head="", decoder="DecoderBlock").replace(
        "    model = accelerator.prepare(Net())",
        f"""
    import functools
    from torch.nn import TransformerEncoderLayer
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={{{wraps}}})
    {more}
    model = FullyShardedDataParallel(Net(), auto_wrap_policy=policy)
    """,
    )
    command = "torchrun --standalone --nproc-per-node 8 train.py"
    found = {one.cause for one in reviewed(tmp_path, command, source, gpus=8)}
    assert (CAUSE in found) is wrong
