"""DataLoaders that a function or a method makes again in each epoch; tensors in parts."""

from __future__ import annotations

from tests.script.sources import HEAD, SET_UP, STEP, ddp

MAKES = """
{decorator}
def batches(rows, sampler):
    {before}
    return DataLoader(rows, sampler=sampler, num_workers={workers})
"""
SAMPLER = "sampler = DistributedSampler(data)\n"
STAYS = "4, persistent_workers=True"
ONCE = "loader = batches(data, sampler)\n"
HELD_OUT = "val_loader = batches(held_out(), DistributedSampler(held_out(), shuffle=False))\n"


def made(
    once: str,
    each: str = "",
    *,
    decorator: str = "",
    before: str = "pass",
    workers: str = STAYS,
) -> str:
    head = MAKES.format(decorator=decorator, before=before, workers=workers)
    return ddp(head=f"import functools\n{head}", loader=f"{SAMPLER}{once}", before=each)


RUNS = """
class Loop:
    def __init__(self, rows, sampler):
        self.rows, self.sampler = rows, sampler
        {kept}

    def loader(self):
        return DataLoader(self.rows, sampler=self.sampler, num_workers=4, persistent_workers=True)

    def epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        for batch in {taken}:
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()

    def run(self):
        for epoch in range(10):
            self.epoch(epoch)

loop = Loop(data, DistributedSampler(data))
loop.run()
{later}
dist.destroy_process_group()
"""


def runs(kept: str, taken: str, later: str = "") -> str:
    return f"{HEAD}\n{SET_UP}\n{RUNS.format(kept=kept, taken=taken, later=later)}"


PARTS = """
from torch.distributed.fsdp import fully_shard

class Keeper:
    def __init__(self, model):
        self.model, self.rank = model, dist.get_rank()

    def state(self):
        return {{key: {value} for key, value in self.model.state_dict().items()}}

    def keep(self, path):
        {before}
        torch.save({state}, path)
"""
FULL = "value.full_tensor()"
ON_FIRST = "if dist.get_rank() == 0:\n    keeper.keep('model.pt')"


def parts(
    epoch: str, *, value: str = FULL, before: str = "pass", state: str = "self.state()"
) -> str:
    head = PARTS.format(value=value, before=before, state=state)
    set_up = SET_UP.replace("DDP(Net().to(local_rank))", "Net().to(local_rank)\nfully_shard(model)")
    return ddp(head=head, set_up=f"{set_up}keeper = Keeper(model)\n", step=STEP, epoch=epoch)


TWINS = {
    "a loader that a function makes in each epoch": (
        "worker-restart-each-epoch",
        made(HELD_OUT, ONCE),
        made(HELD_OUT + ONCE),
        made(HELD_OUT + ONCE, "if epoch == 0:\n    loader = batches(data, sampler)\n"),
        made(HELD_OUT, ONCE, decorator="@functools.cache"),
        made(HELD_OUT, ONCE, workers="0"),
        made(HELD_OUT, "loader = loaders(data, sampler)\n"),
        made(ONCE, HELD_OUT),
    ),
    "a loader that a method makes in each epoch": (
        "worker-restart-each-epoch",
        runs("pass", "self.loader()", "print(len(loop.loader()))"),
        runs("self.batches = self.loader()", "self.batches", "print(len(loop.loader()))"),
        runs("self.batches = self.loader()", "self.batches"),
    ),
    "tensors in parts that one rank gathers": (
        "rank0-only-collective",
        parts(ON_FIRST),
        parts(ON_FIRST, value="value.cpu()"),
        parts(ON_FIRST, value=f"{FULL} if isinstance(value, DTensor) else value"),
        parts(ON_FIRST, value=f"{FULL} if hasattr(value, 'full_tensor') else value"),
        parts(
            "state = keeper.state()\nif dist.get_rank() == 0:\n    torch.save(state, 'model.pt')"
        ),
        parts(
            "keeper.keep('model.pt')",
            before="state = self.state()\n        if self.rank != 0:\n            return",
            state="state",
        ),
    ),
}
"""Each: the cause, a script with it, and sound scripts that are nearly the same."""
