"""Mistakes with accelerate, Fabric and Lightning, which do what a script would do by hand."""

from __future__ import annotations

from tests.script.sources import LIGHTNING, STEP, ddp

ACCUMULATES = """\
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

def main(args):
    accelerator = Accelerator({accelerator})
    loader = DataLoader(load(args), shuffle=True, num_workers=4, persistent_workers=True)
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    {prepare}
    for epoch in range(args.epochs):
        for batch in loader:
            {context}:
                loss = criterion(model(batch))
                {back}
                optimizer.step()
                optimizer.zero_grad()
    accelerator.end_training()

main(parse())
"""
PREPARE = "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)"
BACK = "accelerator.backward(loss)"
ACCUMULATE = "with accelerator.accumulate(model)"


def accumulates(
    prepare: str = PREPARE,
    back: str = BACK,
    context: str = ACCUMULATE,
    accelerator: str = "gradient_accumulation_steps=4",
) -> str:
    return ACCUMULATES.format(prepare=prepare, back=back, context=context, accelerator=accelerator)


FABRIC = """\
import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader

fabric = Fabric(devices=2, strategy="ddp")
fabric.launch()
model = net()
model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters()))
loader = DataLoader(load(), shuffle=True, num_workers=4, persistent_workers=True)
loader = fabric.setup_dataloaders(loader)
for epoch in range(10):
    for batch in loader:
        optimizer.zero_grad()
        fabric.backward(model(batch).sum())
        optimizer.step()
    {saves}
"""
HOOK = """\
    def on_train_epoch_end(self):
        {gathers}

trainer = """
TO_FIRST = STEP.replace("model(batch)", 'model(batch.to("cuda:0"))')
EVALUATED = """\
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

def main(args):
    accelerator = Accelerator()
    loader = DataLoader(load(args), shuffle=True, num_workers=4, persistent_workers=True)
    valid = DataLoader(load(args), num_workers=4, persistent_workers=True)
    model, optimizer = net(), adam()
    model, optimizer, loader, valid = accelerator.prepare(model, optimizer, loader, valid)
    for epoch in range(args.epochs):
        for batch in loader:
            accelerator.backward(model(batch).loss)
            optimizer.step()
            optimizer.zero_grad()
        {evaluation}
    accelerator.end_training()

main(parse())
"""
RIGHT = """right = 0
        with torch.no_grad():
            for batch in valid:
                right += score({})
        accelerator.print(right)"""


def gathers(line: str) -> str:
    return LIGHTNING.replace("trainer = ", HOOK.format(gathers=line), 1)


TWINS = {
    "a model that accelerate does not get": (
        "replicas-diverged",
        accumulates("optimizer, loader = accelerator.prepare(optimizer, loader)"),
        accumulates(),
        accumulates(
            "optimizer, loader = accelerator.prepare(optimizer, loader)\n"
            "    model = accelerator.prepare_model(model)"
        ),
        accumulates("parts = [model, optimizer, loader]\n    accelerator.prepare(*parts)"),
    ),
    "an optimizer that accelerate does not get": (
        "grad-accum-loss-scaling",
        accumulates("model, loader = accelerator.prepare(model, loader)"),
        accumulates(),
        accumulates(
            "model, loader = accelerator.prepare(model, loader)\n"
            "    optimizer = accelerator.prepare_optimizer(optimizer)"
        ),
        accumulates("model, loader = accelerator.prepare(model, loader)", accelerator=""),
    ),
    "accumulation that no line enters": (
        "grad-accum-loss-scaling",
        accumulates(context="with torch.enable_grad()"),
        accumulates(
            context="with torch.enable_grad()", accelerator="gradient_accumulation_steps=1"
        ),
        accumulates(context="with accelerator.no_sync(model)"),
        accumulates(context="with torch.enable_grad()", accelerator='log_with="wandb"'),
    ),
    "a backward pass without accelerate": (
        "grad-accum-loss-scaling",
        accumulates(back="loss.backward()"),
        accumulates(back="(loss / accelerator.gradient_accumulation_steps).backward()"),
        accumulates(back="loss = loss / args.accumulation_steps\n                loss.backward()"),
        accumulates(back="loss.backward()", accelerator=""),
    ),
    "a checkpoint that Fabric saves on one rank": (
        "rank0-only-collective",
        FABRIC.format(saves='if fabric.global_rank == 0:\n        fabric.save("a", {"m": model})'),
        FABRIC.format(saves='fabric.save("a", {"m": model})'),
        FABRIC.format(saves='if fabric.global_rank == 0:\n        print("saved")'),
    ),
    "what a LightningModule gathers on one rank": (
        "rank0-only-collective",
        gathers("if self.global_rank == 0:\n            print(self.all_gather(self.seen))"),
        gathers("print(self.all_gather(self.seen))"),
        gathers("if self.global_rank == 0:\n            print(self.seen)"),
    ),
    "a barrier of Lightning's strategy on one rank": (
        "rank0-only-collective",
        gathers("if self.global_rank == 0:\n            self.trainer.strategy.barrier()"),
        gathers("self.trainer.strategy.barrier()"),
        gathers("if self.global_rank == 0:\n            self.gate.barrier()"),
    ),
    "batches on GPU 0 of all ranks": (
        "wrong-device-binding",
        ddp(step=TO_FIRST),
        ddp(step=STEP),
        ddp(step=STEP.replace("model(batch)", "model(batch.to(local_rank))")),
    ),
    "a prepared evaluation that nothing gathers": (
        "per-rank-metrics-or-logging",
        EVALUATED.format(evaluation=RIGHT.format("model(batch)")),
        EVALUATED.format(evaluation=RIGHT.format("accelerator.gather_for_metrics(model(batch))")),
        # A loader that nothing reads.
        EVALUATED.format(evaluation="pass"),
    ),
}
