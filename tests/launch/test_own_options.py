"""What a script takes from its own options, against what the launch starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch.reviewed import causes

SCRIPT = """
import os, sys
import torch, yaml
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

class Part:
    def __init__(self, length, shard, num_shards):
        self.length, self.shard, self.num_shards = length, shard, num_shards

    def __iter__(self):
        return iter(range(self.length)[self.shard % self.num_shards :: self.num_shards])

def read(path):
    with open(path) as file:
        return yaml.safe_load(file)

def part(rows, hardware):
    {part}

def main():
    run = read(sys.argv[1])
    {before}
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(Net().cuda())
    for batch in DataLoader(part(rows, run["hardware"]), num_workers=4):
        model(batch).sum().backward()
        optimizer.step()
    dist.destroy_process_group()

main()
"""
CONFIG = """
    hardware:
      cards: 4
      shown: "0,1"
    data: train.csv
"""
OWN = "return Part(len(rows), dist.get_rank(), {})"
SLICE = "rank = int(os.environ['RANK'])\n    return rows[rank::{}]"
SAMPLER = "return DistributedSampler(rows, num_replicas={}, rank=dist.get_rank())"
EVERY = "return DistributedSampler(rows)"
CARDS = "hardware['cards']"


def told(
    folder: Path, part: str, before: str = "", ranks: int = 8, config: str = CONFIG
) -> tuple[str, ...]:
    source = SCRIPT.format(part=part, before=before)
    command = f"torchrun --nproc-per-node {ranks} train.py run.yaml"
    return tuple(causes(folder, command, source, gpus=8, run_yaml=config))


@pytest.mark.parametrize("part", [OWN, SLICE, SAMPLER])
@pytest.mark.parametrize("number", [CARDS, "4", "int(hardware.get('cards', 1))"])
def test_a_number_of_ranks_that_is_not_started(tmp_path: Path, part: str, number: str) -> None:
    assert "world-size-mismatch" in told(tmp_path, part.format(number))
    assert "world-size-mismatch" not in told(tmp_path, part.format(number), ranks=4)


@pytest.mark.parametrize(
    ("part", "before"),
    [
        (OWN.format("dist.get_world_size()"), ""),
        (SAMPLER.format("hardware.get('replicas') or dist.get_world_size()"), ""),
        # The option is set to what was started.
        (OWN.format(CARDS), "run['hardware']['cards'] = int(os.environ['WORLD_SIZE'])"),
        # Groups of ranks share a part.
        (SLICE.format(CARDS), "mesh = torch.distributed.device_mesh.init_device_mesh('cuda', 4)"),
        # The number of a part is not the rank.
        ("return Part(len(rows), dist.get_rank() // 2, hardware['cards'])", ""),
        ("return rows[:: hardware['cards']]", ""),
    ],
)
def test_a_number_that_may_be_meant(tmp_path: Path, part: str, before: str) -> None:
    assert "world-size-mismatch" not in told(tmp_path, part, before)


SHOWS = "os.environ['CUDA_VISIBLE_DEVICES'] = {}"
SHOWN = "run['hardware']['shown']"


@pytest.mark.parametrize(
    ("shows", "ranks", "config", "wrong"),
    [
        (SHOWS.format(SHOWN), 4, CONFIG, True),
        (SHOWS.format(f"str({SHOWN})"), 4, CONFIG, True),
        (SHOWS.format(SHOWN), 2, CONFIG, False),
        (SHOWS.format(SHOWN), 4, CONFIG.replace("0,1", "0,1,2,3"), False),
        (f"if {SHOWN}:\n        {SHOWS.format(SHOWN)}", 4, CONFIG, False),
        (f"{SHOWN} = os.environ['SLOTS']\n    {SHOWS.format(SHOWN)}", 4, CONFIG, False),
    ],
)
def test_gpus_that_the_options_show(
    tmp_path: Path, shows: str, ranks: int, config: str, wrong: bool
) -> None:
    found = told(tmp_path, EVERY, shows, ranks, config)
    assert ("nproc-exceeds-visible-gpus" in found) is wrong


ALONE = """
    import json, os, sys
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    {more}

    with open(sys.argv[1]) as file:
        cfg = json.load(file)
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    dist.init_process_group("nccl", rank=rank, world_size=world)
    model = DistributedDataParallel(Net().cuda())
    for batch in loader:
        model(batch).sum().backward()
        optimizer.step()
    dist.destroy_process_group()
"""
SPAWNS = "torch.multiprocessing.spawn(train, nprocs=8)"


@pytest.mark.parametrize(
    ("command", "more", "gpus", "wrong"),
    [
        ("python train.py run.json", "", '"num_gpus": 8', True),
        ("python train.py run.json", "", '"num_gpus": 1', False),
        ("python train.py run.json", "", '"images": 8', False),
        ("python train.py run.json", SPAWNS, '"num_gpus": 8', False),
        ("torchrun --nproc-per-node 8 train.py run.json", "", '"num_gpus": 8', False),
        ("srun --ntasks=8 python train.py run.json", "", '"num_gpus": 8', False),
    ],
)
def test_one_process_for_the_gpus_of_the_options(
    tmp_path: Path, command: str, more: str, gpus: str, wrong: bool
) -> None:
    source = ALONE.format(more=more)
    found = causes(tmp_path, command, source, gpus=8, run_json=f'{{{gpus}, "batch": 128}}')
    assert ("not-launched-distributed" in found) is wrong
