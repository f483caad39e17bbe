"""Mistakes that a source spreads over modules, and sound ones that look alike."""

from __future__ import annotations

import pytest

from ddoctor.models import Severity
from tests.script.conftest import Review
from tests.script.sources import SET_UP, ddp

LOADING = """
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler

class Groups(BatchSampler):
    pass

def order_of(data, split, world):
    if split != "train":
        return DistributedSampler(data, shuffle=False)
    {order}

def loaders(data, split, world=1):
    order = order_of(data, split, world)
    return DataLoader(data, batch_sampler=BatchSampler(order, 8, {drop}), num_workers=2,
                      persistent_workers=True)
"""
OF_LOADING = "loader = loaders(data, 'train')\nsampler = loader.batch_sampler.sampler\n"
ASKS = "from loading import loaders"


@pytest.mark.parametrize(
    ("order", "wrong"),
    [
        ("return RandomSampler(data)", True),
        ("return DistributedSampler(data)", False),
        ("return RandomSampler(data) if world == 1 else DistributedSampler(data)", False),
        ("return own_sampler(data)", False),
    ],
)
def test_a_sampler_of_another_module(review: Review, order: str, wrong: bool) -> None:
    module = LOADING.format(order=order, drop="True")
    found = review(ddp(head=ASKS, loader=OF_LOADING), {"loading.py": module})
    assert found.keys() == ({"duplicate-data-across-ranks"} if wrong else set())
    if wrong:
        finding = found["duplicate-data-across-ranks"]
        assert finding.severity is Severity.WARNING
        assert "loading.py:10 (`return RandomSampler(data)`)" in finding.because


STREAM = """
import random
from torch.utils.data import IterableDataset
from parts import own_part

class Speech(IterableDataset):
    def __init__(self, config):
        self.config = config
        self.rng = None

    def __iter__(self):
        self.rng = random.Random(self.config["seed"])
        takes = list(self.config["takes"])
        self.rng.shuffle(takes)
        yield from own_part(takes)
"""
OF_SPEECH = """
loader = DataLoader(Speech(config), num_workers=2, persistent_workers=True)
sampler = loader
"""
ALL = "def own_part(items):\n    return items\n"
SHARE = (
    "import torch\n\ndef own_part(items):\n    info = torch.utils.data.get_worker_info()\n"
    "    index = torch.distributed.get_rank() * info.num_workers + info.id\n"
    "    return items[index :: torch.distributed.get_world_size() * info.num_workers]\n"
)


@pytest.mark.parametrize(("part", "wrong"), [(ALL, True), (SHARE, False)])
def test_a_stream_whose_part_another_module_takes(review: Review, part: str, wrong: bool) -> None:
    modules = {"speech.py": STREAM, "parts.py": part}
    found = review(ddp(head="from speech import Speech", loader=OF_SPEECH), modules)
    assert found.keys() == ({"iterable-dataset-not-sharded"} if wrong else set())
    if wrong:
        because = found["iterable-dataset-not-sharded"].because
        assert "in the order of one seed (speech.py:12)" in because


SEEDING = """
import random
import torch
import torch.distributed as dist

def start(options):
    dist.init_process_group("nccl")
    everything(options.seed{shift})

def everything(number):
    random.seed(number)
    torch.manual_seed(number)
    torch.cuda.manual_seed_all(number)
"""
DRAWING = """
import torch

class Corrupts:
    def __init__(self, model, levels):
        self.model, self.levels = model, levels

    def __call__(self, clean):
        return self._at(clean, self._levels(len(clean)))

    def _levels(self, count):
        return torch.randint(self.levels, (count,))

    def _at(self, clean, level):
        return self.model(clean, level)
"""
STEP = """
loss = corrupts(batch).sum()
optimizer.zero_grad()
loss.backward()
optimizer.step()
"""


@pytest.mark.parametrize(("shift", "wrong"), [("", True), (" + dist.get_rank()", False)])
def test_a_seed_and_noise_of_other_modules(review: Review, shift: str, wrong: bool) -> None:
    source = ddp(
        head="from drawing import Corrupts\nfrom seeding import start",
        set_up=SET_UP.replace("dist.init_process_group('nccl')", "").replace(
            'dist.init_process_group("nccl")', "start(options)"
        ),
        before="corrupts = Corrupts(model, 100)",
        step=STEP,
    )
    modules = {"seeding.py": SEEDING.format(shift=shift), "drawing.py": DRAWING}
    found = review(source, modules)
    assert found.keys() == ({"identical-rng-across-workers"} if wrong else set())
    if wrong:
        assert "drawing.py:12" in found["identical-rng-across-workers"].because


@pytest.mark.parametrize(
    ("change", "wrong"),
    [("pass", True), ("x = jitter(x)", True), ("x = plain(x)", False)],
)
def test_augmentation_of_a_batch_on_the_gpu(review: Review, change: str, wrong: bool) -> None:
    head = (
        "from torchvision.transforms import v2\n"
        "import kornia.augmentation\n"
        "flip = v2.RandomHorizontalFlip()\n"
        "jitter = kornia.augmentation.ColorJitter(0.1)\n"
    )
    step = f"x = batch.cuda()\n{change}\nloss = model(x).sum()\n" + STEP.split("\n", 2)[2]
    if change == "pass":
        step = step.replace("pass", "x = flip(x)")
    found = review(ddp(head=head, set_up=f"{SET_UP}torch.manual_seed(3)\n", step=step))
    assert ("identical-rng-across-workers" in found) is wrong
