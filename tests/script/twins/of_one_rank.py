"""What one rank does alone, or each by itself, and what all must do alike."""

from __future__ import annotations

from textwrap import indent

from tests.script.sources import SET_UP, STEP, ddp
from tests.script.twins.parts import FSDP

FIRST = "if dist.get_rank() == 0:\n    {}\n"
OPTIMIZER = """\
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
"""
CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
LOAD = "{}.load_state_dict(torch.load('start.pt', map_location='cpu'))"
WRAP = "model = DDP(Net().to(local_rank))\n"
CLOCK = "if time.time() - began > 3600:\n    break\n"
TOGETHER = """\
late = torch.tensor(float(time.time() - began > 3600))
dist.all_reduce(late)
if late.item():
    break
"""
CHANCE = "if random.random() < 0.1:\n    continue\n"
OWN_CHANCE = "if chance.random() < 0.1:\n    continue\n"
SEEDED = "random.seed(3{})\n"
NORMED = """
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.{}(8))
    def forward(self, x):
        return self.layers(x)

def evaluate(net, rows):
    with torch.no_grad():
        return sum(net(row).sum() for row in rows)
"""
EVALUATE = "print(evaluate({}, held))"
IN_NET = """
class Net(torch.nn.Module):
    def forward(self, batch):
        return self.layers(batch)
    def objective(self, batch):
        return self(batch).sum()
"""
FSDP2 = "from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard\n"
DIVIDED = SET_UP.replace(WRAP, "model = Net()\nfully_shard(model{})\n")
POLICY = ", mp_policy=MixedPrecisionPolicy(param_dtype=torch.{})"
SCALED = "scaler.scale(model(batch).sum()).backward()\nscaler.step(optimizer)\nscaler.update()"
SAVE = "torch.save(model.state_dict(), {})"
WHOLE = """\
state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
if dist.get_rank() == 0:
    torch.save(state, 'model.pt')
"""
AVERAGED = """\
optimizer.zero_grad()
loss = model(batch).sum()
{}
optimizer.step()
"""
SUM = "dist.all_reduce({0})\n{0} = {0} / dist.get_world_size()\n"
SHARDED = SET_UP.replace(WRAP, "model = FSDP(Net())\n")
SUMMON = "with FSDP.summon_full_params(model):\n    {}print(model.weight.norm())\n"
PLAYS = """
def updates(model, optimizer, played):
    for _ in range(4):
        for part in played.chunk(4):
            optimizer.zero_grad()
            model(part).sum().backward()
            optimizer.step()
        with torch.no_grad():
            kl = (played.before - model.module(played)).mean()
            {}
        if {}:
            break
"""
OWN_SEED = "generator = torch.Generator().manual_seed({})\n"


def plays(
    test: str = "kl > 1.5 * TARGET_KL", agree: str = "", seed: str = "7 + dist.get_rank()"
) -> str:
    return ddp(
        head=PLAYS.format(agree or "pass", test),
        set_up=SET_UP + OPTIMIZER + OWN_SEED.format(seed),
        loader="",
        each_epoch="pass",
        step=STEP,
        epoch="updates(model, optimizer, play(model, generator))",
    ).replace("    for batch in loader:\n" + indent(STEP, "        "), "")


def trains(step: str = STEP, epoch: str = "", set_up: str = SET_UP, head: str = "") -> str:
    return ddp(set_up=set_up + OPTIMIZER, step=step, epoch=epoch, head=head)


def evaluates(epoch: str, layer: str = "BatchNorm1d", set_up: str = SET_UP, head: str = "") -> str:
    return ddp(head=NORMED.format(layer) + head, epoch=epoch, set_up=set_up)


TWINS = {
    "a loss that a method of the model inside DDP makes": (
        "replicas-diverged",
        trains(STEP.replace("model(batch).sum()", "model.module.objective(batch)"), head=IN_NET),
        trains(head=IN_NET),
        trains(
            STEP.replace("loss.backward()", "loss.backward()\nmodel.module.objective(held)"),
            head=IN_NET,
        ),
    ),
    "a rate that one rank changes": (
        "replicas-diverged",
        trains(epoch=FIRST.format("scheduler.step()")),
        trains(epoch="scheduler.step()"),
        trains(epoch=FIRST.format("print(scheduler.get_last_lr())") + "scheduler.step()"),
    ),
    "gradients that one rank clips": (
        "replicas-diverged",
        trains(STEP.replace("optimizer.step()", f"{FIRST.format(CLIP)}optimizer.step()")),
        trains(STEP.replace("optimizer.step()", f"{CLIP}\noptimizer.step()")),
        trains(STEP.replace("optimizer.step()", f"norm = {CLIP}\n{FIRST.format('print(norm)')}")),
    ),
    "weights that one rank loads into the wrapped model": (
        "replicas-diverged",
        trains(set_up=SET_UP + FIRST.format(LOAD.format("model.module"))),
        trains(set_up=f"{SET_UP}{LOAD.format('model.module')}\n"),
        trains(
            set_up=SET_UP.replace(
                WRAP,
                f"net = Net().to(local_rank)\n{FIRST.format(LOAD.format('net'))}model = DDP(net)\n",
            )
        ),
    ),
    "a clock that ends the training": (
        "rank-dependent-control-flow",
        trains(STEP + CLOCK, head="import time\nbegan = time.time()"),
        trains(STEP + TOGETHER, head="import time\nbegan = time.time()"),
        trains(STEP + "if count > 3600:\n    break\n", head="import time\nbegan = time.time()"),
    ),
    "steps that a rank skips by chance": (
        "rank-dependent-control-flow",
        trains(CHANCE + STEP, head="import random\ntorch.manual_seed(0)"),
        trains(CHANCE + STEP, head="import random\nrandom.seed(0)"),
        trains(CHANCE + STEP, head="import random\nfrom seeds import seed_all\nseed_all(0)"),
        trains(CHANCE.replace("continue", "batch = -batch") + STEP, head="import random"),
        trains(STEP + CHANCE, head="import random"),
    ),
    "steps that a rank skips by chance, seeded by the rank": (
        "rank-dependent-control-flow",
        trains(
            CHANCE + STEP, head="import random", set_up=SET_UP + SEEDED.format(" + dist.get_rank()")
        ),
        trains(CHANCE + STEP, head="import random", set_up=SET_UP + SEEDED.format("")),
        trains(OWN_CHANCE + STEP, head="import random\nchance = random.Random(7)"),
    ),
    "a root that each rank names for itself": (
        "rank-dependent-control-flow",
        trains(set_up=f"{SET_UP}rank = dist.get_rank()\ndist.broadcast(seed, src=rank)\n"),
        trains(set_up=f"{SET_UP}rank = dist.get_rank()\ndist.broadcast(seed, src=0)\n"),
        trains(
            set_up=f"{SET_UP}for rank in range(dist.get_world_size()):\n"
            "    dist.broadcast(seed, src=rank)\n"
        ),
    ),
    "an evaluation of the wrapped model on one rank": (
        "rank0-only-collective",
        evaluates(FIRST.format(EVALUATE.format("model"))),
        evaluates(FIRST.format(EVALUATE.format("model.module"))),
        evaluates(f"value = {EVALUATE.format('model')}\n{FIRST.format('print(value)')}"),
        evaluates(FIRST.format(EVALUATE.format("model")), layer="LayerNorm"),
        evaluates(
            FIRST.format(EVALUATE.format("model")),
            set_up=SET_UP.replace("(local_rank))", "(local_rank), broadcast_buffers=False)"),
        ),
    ),
    "a pass of a divided model on one rank": (
        "rank0-only-collective",
        evaluates(
            FIRST.format("print(model(held[0]).sum())"),
            set_up=DIVIDED.format(""),
            head=FSDP2,
        ),
        evaluates(
            f"value = model(held[0]).sum()\n{FIRST.format('print(value)')}",
            set_up=DIVIDED.format(""),
            head=FSDP2,
        ),
        evaluates(FIRST.format("print(other(held[0]))"), set_up=DIVIDED.format(""), head=FSDP2),
    ),
    "parameters that one rank summons": (
        "rank0-only-collective",
        ddp(head=FSDP, set_up=SHARDED, epoch=FIRST.format(SUMMON.format("    "))[:-1]),
        ddp(head=FSDP, set_up=SHARDED, epoch=SUMMON.format("")),
        ddp(head=FSDP, set_up=SHARDED, epoch=FIRST.format("print(len(loader))")),
    ),
    "a divided model in float16 without a scaler": (
        "gradients-not-scaled",
        ddp(head=FSDP2, set_up=DIVIDED.format(POLICY.format("float16"))),
        ddp(head=FSDP2, set_up=DIVIDED.format(POLICY.format("bfloat16"))),
        ddp(head=FSDP2, set_up=DIVIDED.format(POLICY.format("float16")), step=SCALED),
    ),
    "parts of a model that one rank saves": (
        "checkpoint-of-one-shard",
        ddp(head=FSDP2, set_up=DIVIDED.format(""), epoch=FIRST.format(SAVE.format("'model.pt'"))),
        ddp(head=FSDP2, set_up=DIVIDED.format(""), epoch=SAVE.format("f'part-{local_rank}.pt'")),
        ddp(
            head=f"{FSDP2}from torch.distributed.checkpoint.state_dict import *\n",
            set_up=DIVIDED.format(""),
            epoch=WHOLE,
        ),
    ),
    "a loss that is averaged before its backward pass": (
        "effective-batch-lr-mismatch",
        trains(AVERAGED.format(f"{SUM.format('loss')}loss.backward()")),
        trains(AVERAGED.format(f"loss.backward()\nmean = loss.detach()\n{SUM.format('mean')}")),
        trains(AVERAGED.format("dist.all_reduce(loss, op=dist.ReduceOp.AVG)\nloss.backward()")),
    ),
    "a policy whose updates end by its own divergence": (
        "rank-dependent-control-flow",
        plays(),
        plays(agree="dist.all_reduce(kl, op=dist.ReduceOp.AVG)"),
        plays("ARGS.target_kl is not None and kl > ARGS.target_kl"),
        plays(seed="7"),
    ),
    "one number for all epochs": (
        "missing-set-epoch",
        ddp(each_epoch="sampler.set_epoch(0)"),
        ddp(each_epoch="sampler.set_epoch(epoch)"),
        ddp(each_epoch="sampler.set_epoch(epoch + 1)"),
    ),
}
