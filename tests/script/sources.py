"""Parts of training scripts that the tests compose."""

from __future__ import annotations

from textwrap import dedent, indent

HEAD = """\
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

class Images(Dataset):
    def __getitem__(self, index):
        return self.images[index]
"""
SET_UP = """\
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")
model = DDP(Net().to(local_rank))
data = Images()
"""
LOADER = """\
sampler = DistributedSampler(data)
loader = DataLoader(data, sampler=sampler, num_workers=4, persistent_workers=True)
"""
STEP = """\
optimizer.zero_grad()
loss = model(batch).sum()
loss.backward()
optimizer.step()
"""


def ddp(
    *,
    head: str = "",
    set_up: str = SET_UP,
    loader: str = LOADER,
    before: str = "",
    step: str = STEP,
    epoch: str = "",
    each_epoch: str = "sampler.set_epoch(epoch)",
) -> str:
    """A script of plain DDP whose parts can be replaced: a loop over epochs, and one over batches.

    ``before`` comes before the loop over batches, and ``epoch`` after it.
    """
    loop = f"for batch in loader:\n{indent(dedent(step), '    ')}"
    body = "\n".join([each_epoch, dedent(before), loop, dedent(epoch)])
    loops = f"for epoch in range(10):\n{indent(body, '    ')}"
    end = "dist.destroy_process_group()"
    return "\n".join([HEAD, dedent(head), dedent(set_up), dedent(loader), loops, end])


def in_functions(text: str) -> str:
    """The same code in a function ``main``, below the classes and imports."""
    head, body = text.replace("local_rank =", "\0local_rank =", 1).split("\0")
    return (
        f"{head}\ndef main():\n{indent(body, '    ')}\n\nif __name__ == '__main__':\n    main()\n"
    )


ACCELERATE = """\
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

def main(args):
    accelerator = Accelerator(gradient_accumulation_steps=4)
    loader = DataLoader(load(args), shuffle=True, num_workers=4, persistent_workers=True)
    model, optimizer, loader = accelerator.prepare(net(), adam(), loader)
    for epoch in range(args.epochs):
        total = 0
        for step, batch in enumerate(loader):
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            total += loss.detach().float()
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            accelerator.unwrap_model(model).save_pretrained(args.output)
    accelerator.end_training()

main(parse())
"""
LIGHTNING = """\
import torch
import lightning as L
from torch.utils.data import DataLoader

class Module(L.LightningModule):
    def training_step(self, batch, index):
        loss = self(batch)
        self.log("loss", loss)
        return loss

trainer = L.Trainer(devices=2, strategy="ddp", max_epochs=10)
trainer.fit(Module(), DataLoader(data(), batch_size=8, num_workers=4, persistent_workers=True))
"""
TRAINER = """\
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

def main():
    arguments = TrainingArguments("out", per_device_train_batch_size=8, num_train_epochs=3)
    trainer = Trainer(model=AutoModelForCausalLM.from_pretrained("gpt2"), args=arguments,
                      train_dataset=load())
    trainer.train()
    trainer.save_model()

if __name__ == "__main__":
    main()
"""
CLASSES = """\
import argparse, os
import torch
from torch import distributed
from torch.nn import parallel
from torch.utils import data

class Trainer:
    def __init__(self, options):
        self.rank = int(os.environ["RANK"])
        self.local_rank = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(self.local_rank)
        distributed.init_process_group(backend="nccl")
        self.model = parallel.DistributedDataParallel(net().cuda(), device_ids=[self.local_rank])
        self.sampler = data.distributed.DistributedSampler(images(options))
        self.loader = data.DataLoader(images(options), sampler=self.sampler, num_workers=8,
                                      persistent_workers=True, pin_memory=True)
        if options.resume:
            state = torch.load(options.resume, map_location=f"cuda:{self.local_rank}")
            self.model.load_state_dict(state)

    @property
    def is_main(self):
        return self.rank == 0

    def train(self, epochs):
        for epoch in range(epochs):
            self.sampler.set_epoch(epoch)
            self.epoch()
            distributed.barrier()
            self.save()
        distributed.destroy_process_group()

    def epoch(self):
        for batch in self.loader:
            self.step(batch)

    def step(self, batch):
        loss = self.model(batch.cuda(non_blocking=True)).mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def save(self):
        if not self.is_main:
            return
        torch.save(self.model.module.state_dict(), "model.pt")

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--resume")
    Trainer(parser.parse_args()).train(10)
"""
SOUND = {
    "ddp": ddp(),
    "ddp-in-functions": in_functions(ddp()),
    "accelerate": ACCELERATE,
    "lightning": LIGHTNING,
    "trainer": TRAINER,
    "classes": CLASSES,
}
"""Scripts without a fault, in the styles that there are."""
