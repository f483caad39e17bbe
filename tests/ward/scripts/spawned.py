"""mp.spawn of the training function, as in the DDP tutorial: `python spawned.py`."""

import os
import tempfile
import time
from argparse import ArgumentParser

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.optim as optim
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


def setup(rank, world_size, port):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = str(port)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world_size)


def cleanup():
    dist.destroy_process_group()


class Digits(Dataset):
    def __init__(self, opt):
        self.opt = opt

    def __len__(self):
        return 20000

    def __getitem__(self, idx):
        g = torch.Generator().manual_seed(idx)
        img = torch.rand(1, 28, 28, generator=g)
        if self.opt.augment_ms:
            img = self.augment(img)
        return img, idx % 10

    def augment(self, img):
        t = time.perf_counter()
        while time.perf_counter() - t < self.opt.augment_ms / 1e3:
            img = img.flip(2)
        return img


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, 1)
        self.conv2 = nn.Conv2d(16, 16, 3, 1)
        self.fc1 = nn.Linear(2304, 64)
        self.fc2 = nn.Linear(64, 10)
        self.aux = nn.Linear(64, 4)

    def forward(self, x):
        x = torch.relu(self.conv1(x))
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2)
        x = torch.relu(self.fc1(x.flatten(1)))
        return self.fc2(x), self.aux(x)


def test(model, device, loader):
    model.eval()
    correct = 0
    with torch.no_grad():
        for data, target in loader:
            out, _ = model(data.to(device))
            correct += (out.argmax(1) == target).sum().item()
    model.train()
    return correct


def read_command(console):
    return os.read(console, 100)


def worker(rank, world_size, port, opt):
    setup(rank, world_size, port)
    device = torch.device("cpu")
    torch.manual_seed(0)
    model = DDP(Net().to(device))
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    ds = Digits(opt)
    sampler = DistributedSampler(ds, num_replicas=world_size, rank=rank)
    loader = DataLoader(ds, batch_size=32, sampler=sampler, num_workers=opt.workers)
    test_loader = DataLoader(Digits(opt), batch_size=32, sampler=range(320))
    it, tic = 0, time.time()
    for epoch in range(10**6):
        sampler.set_epoch(epoch)
        for data, target in loader:
            data, target = data.to(device), target.to(device)
            optimizer.zero_grad()
            out, coarse = model(data)
            loss = nn.functional.cross_entropy(out, target)
            if not opt.forget_aux:
                loss = loss + nn.functional.cross_entropy(coarse, target % 4)
            if opt.bad_label and rank == 1 and it == opt.bad_label:
                raise IndexError("Target 11 is out of bounds.")
            if opt.debugger and rank == 1 and it == opt.debugger:
                read_command(os.pipe()[0])
            loss.backward()
            optimizer.step()
            it += 1
            if rank == 0 and opt.test_every and it % opt.test_every == 0:
                test(model.module, device, test_loader)
            if rank == 0 and it % 10 == 0:
                toc = time.time()
                print(
                    f"step {it} epoch {epoch} loss {loss.item():.4f} {10 / (toc - tic):.2f} steps/s"
                )
                tic = toc
            if it >= opt.steps:
                if rank == 0:
                    torch.save(model.state_dict(), os.path.join(tempfile.gettempdir(), "mnist.pt"))
                cleanup()
                return


def main():
    parser = ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--augment-ms", type=float, default=0)
    parser.add_argument("--forget-aux", action="store_true")
    parser.add_argument("--bad-label", type=int, default=0)
    parser.add_argument("--debugger", type=int, default=0)
    parser.add_argument("--test-every", type=int, default=0)
    parser.add_argument("--port", type=int, default=29731)
    opt = parser.parse_args()
    mp.spawn(worker, args=(2, opt.port, opt), nprocs=2, join=True)


if __name__ == "__main__":
    main()
