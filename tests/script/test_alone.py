"""Scripts whose ranks join each other, and exchange no gradients."""

from __future__ import annotations

import pytest

from tests.script.conftest import Read

SCRIPT = """
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
{imports}

def mean_over_ranks(value):
    dist.all_reduce(value)
    return value / dist.get_world_size()

def together(tensor):
    {helper}

def work(rank, args):
    dist.init_process_group("gloo", rank=rank, world_size=2)
    model = torch.nn.Linear(8, 2)
    {wrap}
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    loader = DataLoader(data, sampler=DistributedSampler(data))
    for epoch in range(args.epochs):
        loader.sampler.set_epoch(epoch)
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            {step}
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        shown = mean_over_ranks(loss.detach())
        if rank == 0:
            print(epoch, shown)
        dist.barrier()
    {after}
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(work, args=(parse(),), nprocs=2)
"""
EMPTY = {
    **{"imports": "", "helper": "return tensor", "wrap": "pass", "step": "pass"},
    "after": "torch.save(model.state_dict(), 'model.pt')",
}


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"after": "losses = [None] * 2; dist.all_gather_object(losses, loss.item())"},
        {"imports": "import numpy, json\nfrom tqdm import tqdm"},
        {"wrap": "model = torch.compile(model)"},
        {"step": "dist.all_reduce(loss.detach())"},
        {"step": "pair = torch.tensor([1.0, 2.0]); dist.all_reduce(pair)"},
        {"step": "pair = loss.detach() + 1; dist.all_reduce(pair)"},
    ],
)
def test_each_rank_trains_its_own(script: Read, changed: dict[str, str]) -> None:
    one = script(SCRIPT.format(**EMPTY | changed)).trains_alone
    assert one is not None
    assert one.at.text == "for x, y in loader:"
    assert one.joins.text.startswith("dist.init_process_group(")


@pytest.mark.parametrize(
    "changed",
    [
        {"wrap": "model = DDP(model)"},
        {
            "imports": "from torch.nn.parallel import DistributedDataParallel as Native",
            "wrap": "model = Native(model)",
        },
        {"wrap": "model = DDP(model) if args.distributed else model"},
        {"wrap": "wrapped = torch.nn.parallel.DistributedDataParallel(model)"},
        {"wrap": "torch.distributed.fsdp.fully_shard(model)"},
        {"imports": "from accelerate import Accelerator"},
        {"imports": "import horovod.torch as hvd"},
        {"imports": "from mylib import wrap"},
        {"step": "for p in model.parameters(): dist.all_reduce(p.grad)"},
        {"step": "for p in model.parameters(): together(p.grad)", "helper": "dist.reduce(tensor)"},
        {"step": "together(model)", "helper": "for p in tensor.parameters(): dist.broadcast(p, 0)"},
        {"step": "flat = gather(model); dist.all_reduce(flat)"},
        {"step": "dist.batch_isend_irecv(operations)"},
        # Not known to be a number for the log.
        {"step": "delta = anchor - vector(model); dist.all_reduce(delta)"},
        {"step": "together(delta)", "helper": "dist.all_reduce(tensor)"},
        {
            "after": "together(list(model.parameters()))",
            "helper": "[dist.reduce(t) for t in tensor]",
        },
        {"after": "average_of_folds = 0.0"},
        {"after": "torch.distributed.nn.all_reduce(loss)"},
    ],
)
def test_quiet_where_something_may_keep_them_equal(script: Read, changed: dict[str, str]) -> None:
    assert script(SCRIPT.format(**EMPTY | changed)).trains_alone is None


@pytest.mark.parametrize(
    "rest",
    [
        "import torch\nmodel = torch.nn.Linear(8, 2)\n",
        "import torch.distributed as dist\ndist.init_process_group('gloo')\n",
    ],
)
def test_quiet_without_ranks_or_training(script: Read, rest: str) -> None:
    assert script(rest).trains_alone is None


def test_quiet_where_one_rank_trains(script: Read) -> None:
    served = SCRIPT.format(**EMPTY).replace(
        "    loader = DataLoader", "    if rank:\n        return serve()\n    loader = DataLoader"
    )
    assert script(served).trains_alone is None


def test_a_trainer_of_the_script(script: Read) -> None:
    source = """
        import torch, torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        class Trainer:
            def __init__(self, model, loader):
                self.model, self.loader = model, loader
                self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            def step(self, x, y):
                loss = self.model(x, y)
                loss.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
            def fit(self, epochs):
                for epoch in range(epochs):
                    for x, y in self.loader:
                        self.step(x, y)

        def main():
            dist.init_process_group()
            Trainer({model}, loader).fit(3)

        main()
    """
    assert script(source.format(model="Net()")).trains_alone is not None
    wrapped = source.format(model="DistributedDataParallel(Net())")
    assert script(wrapped).trains_alone is None
