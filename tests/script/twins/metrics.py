"""Results of one rank's part of an evaluation that are reported as those of the whole."""

from __future__ import annotations

from tests.script.sources import ACCELERATE, LOADER, ddp

VAL = "val_loader = DataLoader(held_out(), {}num_workers=4)\n"
SHARED = "sampler=DistributedSampler(held_out(), shuffle=False), "
OTHER = "seen = torch.ones(1).cuda()\ndist.all_reduce(seen)\n"
"""A collective of the training, which has nothing to do with the evaluation."""
EVALUATES = """
@torch.no_grad()
def accuracy(model, rows):
    right, seen = 0, 0
    for images, labels in rows:
        right += (model(images).argmax(1) == labels).sum().item()
        seen += len(labels)
    {before}
    return right / seen

def average(value):
    value = torch.tensor(value).cuda()
    dist.all_reduce(value, dist.ReduceOp.AVG)
    return value.item()
"""
CALLED = "score = accuracy(model, val_loader)\n"
TELLS = 'if dist.get_rank() == 0:\n    print("accuracy", round(100 * score, 2))\n'
INLINE = """
right, seen = 0, 0
with torch.no_grad():
    for images, labels in val_loader:
        right += (model(images).argmax(1) == labels).sum().item()
        seen += len(labels)
{before}
if dist.get_rank() == 0:
    logger.info(f"accuracy {{right / seen:.3f}}")
"""


def evaluated(epoch: str, *, before: str = "pass", options: str = SHARED) -> str:
    loader = LOADER + VAL.format(options)
    return ddp(head=EVALUATES.format(before=before), loader=loader, epoch=OTHER + epoch)


PREPARED = (
    ACCELERATE.replace("loader = accelerator.prepare", "loader, val_loader = accelerator.prepare")
    .replace("adam(), loader)", "adam(), loader, val_loader)")
    .replace(
        "    model, opt", "    val_loader = DataLoader(load(args), num_workers=4)\n    model, opt"
    )
)
READS = """\
        with torch.no_grad():
            for rows in val_loader:
                total += model(**rows).loss
        {}accelerator.wait_for_everyone()
"""


def prepared(reads: str) -> str:
    return PREPARED.replace("        accelerator.wait_for_everyone()\n", reads, 1)


GATHERED = "total = accelerator.gather_for_metrics(total).mean()\n        "
SUMS = "right, seen = average(right), average(seen)"
REDUCED_BY_LIGHTNING = """
import lightning as L

class Model(L.LightningModule):
    def training_step(self, batch, index):
        loss = self.net(batch)
        {}
        return loss

L.Trainer(devices=4, strategy="ddp").fit(Model(), loader())
"""


def logs(call: str, test: str = "if self.trainer.is_global_zero:\n            ") -> str:
    return REDUCED_BY_LIGHTNING.format(f"{test}self.log('loss', loss, {call})")


ALONE = EVALUATES.format(before="pass").partition("def average")[0]
MADE = """
def batches(data):
    return DataLoader(data, sampler=DistributedSampler(data), num_workers=4)
"""
BOTH = "sampler = DistributedSampler(data)\nloader, rest = batches(data), batches(held_out())\n"


def of_the_rest(head: str, loader: str) -> str:
    return ddp(head=ALONE + head, loader=loader, epoch="score = accuracy(model, rest)\n" + TELLS)


UPDATES = """
class Descent(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for one in group["params"]:
                one.sub_(one.grad)
"""
FOLLOWS = """
@torch.no_grad()
def follow(average, model):
    for mine, its in zip(average.parameters(), model.parameters()):
        mine.lerp_(its, 0.01)
    for name, one in model.named_buffers():
        average.get_buffer(name).copy_(one)
"""
COUNTED = """
@torch.no_grad()
def accuracy(model, loader, device):
    right, seen = torch.zeros((), device=device), 0
    for images, labels in loader:
        right += (model(images).argmax(1) == labels).sum()
        seen += len(labels)
    {adds}
    return {result}
"""


def counted(adds: str, result: str = "right.item() / seen") -> str:
    head = COUNTED.format(adds=adds, result=result)
    return ddp(head=head, epoch="score = accuracy(model, loader, 0)\n")


BOTH_COUNTS = "both = torch.tensor([right, seen])\n    dist.all_reduce(both)\n    "
OF_COUNT = "count = torch.tensor(seen, device=device)\n    dist.all_reduce(count)\n    "


TWINS = {
    "a sum of all ranks by the count of one": (
        "per-rank-metrics-or-logging",
        counted("dist.all_reduce(right)"),
        counted("dist.all_reduce(right, op=dist.ReduceOp.AVG)"),
        counted("dist.all_reduce(right)", "right.item() / (seen * dist.get_world_size())"),
        counted("dist.all_reduce(right)", "right.item() / len(loader.dataset)"),
        counted(BOTH_COUNTS + "right, seen = both.tolist()"),
        counted(f"{OF_COUNT}dist.all_reduce(right)", "right.item() / count.item()"),
        counted(f"{OF_COUNT}dist.all_reduce(right)\n    seen = count.item()"),
        counted("seen = everywhere(seen)\n    dist.all_reduce(right)"),
    ),
    "a sum of all ranks by the larger of the count and one": (
        "per-rank-metrics-or-logging",
        counted("dist.all_reduce(right)", "right.item() / max(1, seen)"),
        counted("share = right / seen\n    dist.all_reduce(right)", "share"),
    ),
    "an accuracy of batches that a function of the script makes": (
        "per-rank-metrics-or-logging",
        of_the_rest(MADE, BOTH),
        of_the_rest("", LOADER + "rest = [load(path) for path in paths()]\n"),
        of_the_rest("", LOADER + "rest = torch.load('held_out.pt', weights_only=True)\n"),
        ddp(head=UPDATES),
        ddp(head=FOLLOWS),
    ),
    "a value that Lightning reduces, logged by one rank": (
        "rank0-only-collective",
        logs("sync_dist=True"),
        logs("sync_dist=True", ""),
        logs("rank_zero_only=True"),
        logs("sync_dist=self.shares"),
    ),
    "an accuracy of a function that the ranks do not add up": (
        "per-rank-metrics-or-logging",
        evaluated(CALLED + TELLS),
        evaluated(CALLED + TELLS, before=SUMS),
        evaluated(CALLED + "score = average(score)\n" + TELLS),
        evaluated(CALLED + "score = agreed_by_all(score)\n" + TELLS),
        evaluated(CALLED + TELLS, options=""),
        evaluated(CALLED + TELLS, options="sampler=choose(held_out()), "),
        evaluated(CALLED + "print(f'rank {dist.get_rank()}: {score}')"),
        evaluated(CALLED + "history.append(score)"),
    ),
    "a loss of a part of the data under accelerate": (
        "per-rank-metrics-or-logging",
        prepared(READS.format("")),
        prepared(READS.format(GATHERED)),
    ),
    "an accuracy that a loop counts and the ranks do not add up": (
        "per-rank-metrics-or-logging",
        evaluated(INLINE.format(before="")),
        evaluated(INLINE.format(before=SUMS)),
        evaluated(INLINE.format(before="")[: INLINE.index("{before}")]),
    ),
}
"""Each: the cause, a script with it, and sound scripts that are nearly the same."""
