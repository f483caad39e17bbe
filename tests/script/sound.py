"""A sound training script: plain DDP with all that it needs. It is read and never run."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def train_epoch(
    model: DistributedDataParallel,
    loader: DataLoader[tuple[torch.Tensor, ...]],
    optimizer: torch.optim.Optimizer,
    device: torch.device,
) -> float:
    total = torch.zeros((), device=device)
    for step, (batch,) in enumerate(loader):
        optimizer.zero_grad()
        loss = model(batch.to(device, non_blocking=True)).sum()
        loss.backward()
        optimizer.step()
        total += loss.detach()
        if step % 100 == 0 and dist.get_rank() == 0:
            print(step, loss.item())
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def main() -> None:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    data = TensorDataset(torch.rand(10_000, 8))
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data)
    loader = DataLoader(
        data,
        batch_size=32,
        sampler=sampler,
        num_workers=4,
        pin_memory=True,
        persistent_workers=True,
    )
    model = DistributedDataParallel(torch.nn.Linear(8, 1).to(device))
    optimizer = torch.optim.AdamW(model.parameters())
    for epoch in range(10):
        sampler.set_epoch(epoch)
        loss = train_epoch(model, loader, optimizer, device)
        if dist.get_rank() == 0:
            print(epoch, loss)
            torch.save(model.module.state_dict(), "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
