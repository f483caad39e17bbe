"""Scripts that join a process group only with an option of theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch.reviewed import causes

SCRIPT = """
    import argparse, torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    parser = argparse.ArgumentParser()
    parser.add_argument("--ddp", {kind})
    args = parser.parse_args()
    {more}
    if args.ddp:
        dist.init_process_group("nccl")
        model = DistributedDataParallel(model)
    for batch in loader:
        model(batch).sum().backward()
        optimizer.step()
"""
SWITCH = 'action="store_true"'


@pytest.mark.parametrize(
    ("command", "kind", "more", "wrong"),
    [
        ("torchrun --nproc-per-node 2 train.py", SWITCH, "", True),
        ("torchrun --nproc-per-node 2 train.py", "type=int, default=0", "", True),
        ("torchrun --nproc-per-node 2 train.py --ddp", SWITCH, "", False),
        ("torchrun --nproc-per-node 2 train.py", "type=int, default=1", "", False),
        ("torchrun --nproc-per-node 1 train.py", SWITCH, "", False),
        ("python train.py", SWITCH, "", False),
        ("torchrun --nproc-per-node 2 train.py", SWITCH, "args.ddp = several()", False),
    ],
)
def test_an_option_that_is_off(
    tmp_path: Path, command: str, kind: str, more: str, wrong: bool
) -> None:
    found = causes(tmp_path, command, SCRIPT.format(kind=kind, more=more))
    assert ("not-launched-distributed" in found) is wrong


OTHERWISE = """
    if args.ddp:
        device = "cpu"
    else:
        dist.init_process_group("nccl")
"""
EARLY = """
    def join(args):
        if args.ddp:
            return
        dist.init_process_group("nccl")

    join(args)
"""


@pytest.mark.parametrize("join", [OTHERWISE, EARLY])
def test_an_option_that_keeps_it_from_joining(tmp_path: Path, join: str) -> None:
    begin, _, rest = SCRIPT.format(kind=SWITCH, more="").partition("    if args.ddp:")
    source = begin + join.lstrip("\n") + rest[rest.index("    for batch") :]
    found = causes(tmp_path, "torchrun --nproc-per-node 2 train.py", source)
    assert "not-launched-distributed" not in found


ENCODES = """
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from transformers import AutoModel, {model}

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = {made}
        def forward(self, ids, mask):
            return self.body(ids, mask).{takes}

    teacher = AutoModel.from_pretrained("google-bert/bert-base-uncased").eval()
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    model = DistributedDataParallel(Encoder().cuda(){options})
    for ids, mask in loader:
        model(ids, mask).mean().backward()
        optimizer.step()
"""
BY_NAME = 'AutoModel.from_pretrained("google-bert/bert-base-uncased")'
STATES = "last_hidden_state.mean(1)"


@pytest.mark.parametrize(
    ("made", "takes", "options", "wrong"),
    [
        (BY_NAME, STATES, "", True),
        ('AutoModel.from_pretrained("xlm-roberta-large")', STATES, "", True),
        ('BertModel.from_pretrained("./mine")', STATES, "", True),
        (BY_NAME.replace('")', '", add_pooling_layer=False)'), STATES, "", False),
        (BY_NAME, "pooler_output", "", False),
        (BY_NAME, STATES, ", find_unused_parameters=True", False),
        (BY_NAME.replace("google-bert/bert", "distilbert"), STATES, "", False),
        (BY_NAME.replace("google-bert/bert", "microsoft/deberta"), STATES, "", False),
        (BY_NAME + ".requires_grad_(False)", STATES, "", False),
        ("teacher", STATES, "", False),
        ("AutoModel.from_pretrained(name)", STATES, "", False),
    ],
)
def test_a_pooler_that_nothing_takes(
    tmp_path: Path, made: str, takes: str, options: str, wrong: bool
) -> None:
    source = ENCODES.format(model="BertModel", made=made, takes=takes, options=options)
    found = causes(tmp_path, "torchrun --nproc-per-node 2 train.py", source)
    assert ("ddp-unused-parameters" in found) is wrong
