"""CUDA in forked processes and in the workers of loaders."""

from __future__ import annotations

from tests.script.sources import LOADER, ddp

COLLATES = """
def collate(items):
    images, labels = zip(*items)
    return torch.stack(images){}, torch.tensor(labels)
"""
OF_COLLATE = LOADER.replace("num_workers", "collate_fn=collate, num_workers")
IN_A_CLASS = """
class Batches:
    def __init__(self, length):
        self.length = length

    def __call__(self, items):
        batch = torch.zeros(len(items), self.length, device={})
        return batch
"""
ON_GPU = """
class OnGpu(Dataset):
    def __getitem__(self, index):
        return self.images[index].cuda()
"""
OF_ON_GPU = ON_GPU + LOADER.replace("(data,", "(OnGpu(),").replace(
    "=4, persistent_workers=True", "=0"
)
COPIED = "batch = batch.to(local_rank, non_blocking=True)\nmodel(batch).sum().backward()\n"
STARTS = """
import os
import torch
import torch.multiprocessing as mp

def train(rank):
    torch.cuda.set_device(rank)
    model = torch.nn.Linear(8, 8).cuda()

def main():
    {first}
    processes = mp.get_context("{method}")
    for rank in range(torch.cuda.device_count()):
        processes.Process(target={target}, args=(rank,)).start()

if __name__ == "__main__":
    main()
"""


def starts(
    first: str = "free = torch.cuda.mem_get_info()", method: str = "fork", target: str = "train"
) -> str:
    return STARTS.format(first=first, method=method, target=target)


FORKED = "{}\nif os.fork() == 0:\n    torch.ones(2, device='cuda')\n"
UNSAFE = "dataloader-fork-unsafe"
TWINS = {
    "a collate function that copies to the GPU": (
        UNSAFE,
        ddp(head=COLLATES.format(".cuda()"), loader=OF_COLLATE),
        ddp(head=COLLATES.format(""), loader=OF_COLLATE),
        ddp(
            head=COLLATES.format(".cuda()"),
            loader=OF_COLLATE.replace("=4, persistent_workers=True", "=0"),
        ),
        ddp(
            head=COLLATES.format(".cuda()"),
            loader=OF_COLLATE.replace("=4", "=4, multiprocessing_context='spawn'"),
        ),
    ),
    "an object that collates on the GPU": (
        UNSAFE,
        ddp(
            head=IN_A_CLASS.format("torch.device('cuda', 0)"),
            loader=OF_COLLATE.replace("=collate", "=Batches(9)"),
        ),
        ddp(
            head=IN_A_CLASS.format("torch.device('cpu')"),
            loader=OF_COLLATE.replace("=collate", "=Batches(9)"),
        ),
        ddp(
            head=IN_A_CLASS.format("'cuda' if args.there else 'cpu'"),
            loader=OF_COLLATE.replace("=collate", "=Batches(9)"),
        ),
    ),
    "processes that are forked after a look at the GPU": (
        UNSAFE,
        starts(),
        starts(method="spawn"),
        starts(method="forkserver"),
        starts(first="many = torch.cuda.device_count()"),
        starts(first="if args.shows:\n        torch.cuda.mem_get_info()"),
    ),
    "processes that are forked after a tensor on the GPU": (
        UNSAFE,
        starts(first="device = 'cuda'\n    one = torch.zeros(1, device=device)"),
        starts(first="device = 'cpu'\n    one = torch.zeros(1, device=device)"),
        starts(first="one = torch.zeros(1)"),
    ),
    "fork by hand": (
        UNSAFE,
        ddp(loader=LOADER + FORKED.format("torch.cuda.synchronize()")),
        ddp(loader=LOADER, set_up=FORKED.format("import torch") + "model = DDP(Net().cuda())\n"),
        ddp(loader=LOADER + "if args.watches:\n    os.fork()\n"),
    ),
    "memory of the GPU cannot be pinned": (
        "collate-bottleneck",
        ddp(step=COPIED + "optimizer.step()\n"),
        ddp(step=COPIED + "optimizer.step()\n", loader=OF_ON_GPU),
        ddp(
            head=COLLATES.format(".cuda()"),
            step=COPIED + "optimizer.step()\n",
            loader=OF_COLLATE.replace("=4, persistent_workers=True", "=0"),
        ),
    ),
}
