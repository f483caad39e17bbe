"""The parameters of a script's own model, against those of torch, and what they need."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from ddoctor.analysis.launch_plan import LaunchPlan
from ddoctor.analysis.named_models import NamedModel
from ddoctor.analysis.own_models import own_models
from ddoctor.evidence.launch import Launch
from ddoctor.evidence.script import Script
from ddoctor.launch.review import review
from tests.launch.reviewed import causes

BLOCKS = """
    import dataclasses
    from torch import nn

    class Mix(nn.Module):
        def __init__(self, width, wider=4):
            super().__init__()
            inner = int(width * wider)
            self.norm = nn.LayerNorm(width)
            self.up, self.down = nn.Linear(width, inner, bias=False), nn.Linear(inner, width)

    class Block(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.width = c["width"]
            self.attends = nn.MultiheadAttention(self.width, 4)
            self.mix = Mix(self.width)
            self.small = Mix(self.width, wider=2)

    class Net(nn.Module):
        def __init__(self, c):
            super().__init__()
            self.words = nn.Embedding(c["words"], c["width"])
            self.blocks = nn.ModuleList([Block(c) for _ in range(c["depth"])])
            self.head = nn.Linear(c["width"], c["words"], bias=False)
            {more}
"""
IMAGES = """
    from torch import nn

    class Net(nn.Module):
        def __init__(self, c):
            super().__init__()
            layers = []
            self.stem = nn.Conv2d(3, c["width"], 7)
            for _ in range(c["depth"]):
                layers.append(nn.Conv2d(c["width"], c["width"], kernel_size=3))
            self.body = nn.Sequential(*layers)
            layer = nn.TransformerEncoderLayer(c["width"], 4, 8 * c["width"])
            self.first, self.second = layer, nn.TransformerEncoderLayer(d_model=c["width"], nhead=4)
            {more}
"""
STARTS = """
    import yaml, torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    def main():
        with open("size.yaml") as file:
            sizes = yaml.safe_load(file)
        {before}
        dist.init_process_group("nccl")
        torch.cuda.set_device(dist.get_rank())
        net = {made}
        model = DistributedDataParallel(net)
        optimizer = torch.optim.{optimizer}(model.parameters())
        for batch in loader:
            model(batch).sum().backward()
            optimizer.step()
        dist.destroy_process_group()

    if __name__ == "__main__":
        main()
"""
SIZES = {"width": 64, "depth": 5, "words": 1000}
FILE = "width: {width}\ndepth: {depth}\nwords: {words}\n"


def starts(before: str = "pass", made: str = "Net(sizes)", optimizer: str = "AdamW") -> str:
    return STARTS.format(before=before, made=made, optimizer=optimizer)


def models(folder: Path) -> list[NamedModel]:
    told = [*review(["torchrun", "--nproc-per-node=2", "train.py"], folder)]
    launch = next(one for one in told if isinstance(one, Launch))
    script = next(one for one in told if isinstance(one, Script))
    return [*own_models(LaunchPlan(launch=launch), script)]


@pytest.mark.parametrize("net", [BLOCKS, IMAGES])
@pytest.mark.parametrize(
    ("more", "least"),
    [
        ("pass", 0.9),
        ("self.head = nn.Linear(c['width'], sum(c.values()))", 0.5),
        ("if c['depth'] > 3: self.more = nn.Linear(c['width'], 4000)", 0.4),
    ],
)
def test_it_counts_as_torch_does_or_less(tmp_path: Path, net: str, more: str, least: float) -> None:
    source = dedent(net).format(more=more)
    known: dict[str, object] = {}
    exec(source, known)
    real = sum(one.numel() for one in known["Net"](SIZES).parameters())  # type: ignore[operator]
    (tmp_path / "train.py").write_text(source + dedent(starts()))
    (tmp_path / "size.yaml").write_text(FILE.format(**SIZES))
    (model,) = models(tmp_path)
    assert real * least <= model.billions * 1e9 <= real


LARGE = FILE.format(width=6656, depth=60, words=32000)
TIED = "self.head.weight = self.words.weight"


@pytest.mark.parametrize(
    ("source", "sizes", "wrong"),
    [
        (starts(), LARGE, True),
        (starts(), FILE.format(width=768, depth=12, words=50304), False),
        # Each of them may make it smaller, or need less for each parameter.
        (starts(optimizer="SGD"), LARGE, False),
        (starts(before="sizes['width'] = 64"), LARGE, False),
        (starts(made="Net({key: value // 32 for key, value in sizes.items()})"), LARGE, False),
        (starts().replace("DistributedDataParallel(net)", "shard(net)"), LARGE, False),
    ],
)
def test_a_model_that_fits_no_gpu(tmp_path: Path, source: str, sizes: str, wrong: bool) -> None:
    whole = dedent(BLOCKS).format(more="pass") + dedent(source)
    found = causes(tmp_path, "torchrun --nproc-per-node 4 train.py", whole, size_yaml=sizes)
    assert ("model-does-not-fit" in found) is wrong


def test_weights_of_two_layers_count_once(tmp_path: Path) -> None:
    counts = []
    for more in ("pass", TIED):
        source = dedent(BLOCKS).format(more=more) + dedent(starts())
        (tmp_path / "train.py").write_text(source)
        (tmp_path / "size.yaml").write_text(FILE.format(**SIZES))
        (model,) = models(tmp_path)
        counts.append(round(model.billions * 1e9))
    assert counts[0] - counts[1] == SIZES["words"] * SIZES["width"]
