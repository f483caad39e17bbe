"""Mistakes in weights: frozen ones in flat parameters, and ones that differ between ranks."""

from __future__ import annotations

from tests.script.sources import HEAD, ddp
from tests.script.twins.parts import FSDP, SHARDED

TUNED = """
import functools
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, transformer_auto_wrap_policy
from models import Block

class Side(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.narrow = torch.nn.Linear(width, 8)
        self.wide = torch.nn.Linear(8, width)

def with_sides(net):
    {freeze}
    for block in net.blocks:
        {insert}
    {after}
    return net

def policy():
    {policy}
"""
BY_CLASS = "return functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})"
INSERT = "block.side = Side(net.width)"
WRAPPED = SHARDED.format("with_sides(Net()), auto_wrap_policy=policy()")
FREEZES = "net.requires_grad_(False)"


def tuned(
    *,
    freeze: str = FREEZES,
    insert: str = INSERT,
    after: str = "",
    policy: str = BY_CLASS,
    set_up: str = WRAPPED,
) -> str:
    head = TUNED.format(freeze=freeze, insert=insert, after=after or "pass", policy=policy)
    return ddp(head=FSDP + head, set_up=set_up)


ORIGINAL = SHARDED.format("with_sides(Net()), auto_wrap_policy=policy(), use_orig_params=True")


def everywhere(*, freeze: str = FREEZES, set_up: str = WRAPPED) -> str:
    insert = "setattr(block, 'up', Side(block.up.in_features))"
    text = tuned(freeze=freeze, insert=insert, set_up=set_up)
    return text.replace("in net.blocks:", "in list(net.modules()):")


CHOSEN = """
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

class Tuner:
    def __init__(self, net, rank):
        for name, weight in net.named_parameters():
            {choose}
        units = {policy}
        self.net = FSDP(net, auto_wrap_policy=units{more})

model = Tuner(load(), 8).net
"""
OF_CHOSEN = SHARDED.replace("model = FSDP({})\n", "")
UNITS = "ModuleWrapPolicy({Block})"
ADDED = """
def freeze(net):
    for weight in net.parameters():
        weight.requires_grad = False

def extended(net):
    for layer in net.encoder.layers:
        layer.register_module("side", Side(net.width))

class Side(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mix = torch.nn.Conv1d(width, width, 1)

def prepared():
    net = load()
    {first}(net)
    {second}(net)
    return FSDP(net, auto_wrap_policy=size_based_auto_wrap_policy)

model = prepared()
"""
BY_HAND = """
import argparse, os, random
import torch
import torch.distributed as dist

class Field(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(3, 3)

def averaged(net):
    for weight in net.parameters():
        dist.all_reduce(weight.grad)
        weight.grad /= dist.get_world_size()

def alike(net):
    for weight in net.parameters():
        {alike}

def prepare(seed):
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    {seed}

def main(args):
    prepare(args.seed)
    net = Field().cuda()
    {after}
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for batch in batches():
        loss = net(batch).sum()
        optimizer.zero_grad()
        loss.backward()
        averaged(net)
        optimizer.step()
    dist.destroy_process_group()

main(argparse.ArgumentParser().parse_args())
"""


def by_hand(seed: str, after: str = "", alike: str = "pass") -> str:
    return BY_HAND.format(seed=seed, after=after or "pass", alike=alike)


REDUCER = """
class World:
    def __init__(self):
        dist.init_process_group("gloo")
        self.index, self.size = dist.get_rank(), dist.get_world_size()

class Reducer:
    def __init__(self, weights):
        self.weights = list(weights)

    def __call__(self):
        flat = torch.cat([one.grad.flatten() for one in self.weights])
        dist.all_reduce(flat, op=dist.ReduceOp.AVG)
        place(flat, self.weights)

world = World()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed({seed})
net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 1))
reduce = Reducer(net.parameters())
{before}
for batch in batches(world):
    loss = net(batch).mean()
    loss.backward()
    reduce()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


def reducer(seed: str, before: str = "") -> str:
    head = HEAD.replace("from torch.nn.parallel import DistributedDataParallel as DDP\n", "")
    return head + REDUCER.format(seed=seed, before=before)


HELD = """
{before}
with {context}:
    loss = model(batch).sum() / 4
    loss.backward()
{after}
if {step}:
    optimizer.step()
    optimizer.zero_grad()
"""


def held(sync: str, step: str = "(i + 1) % 4 == 0", after: str = "", before: str = "") -> str:
    """Accumulation in which these turns exchange gradients, and those make a step."""
    context = f"contextlib.nullcontext() if {sync} else model.no_sync()"
    return ddp(
        head="import contextlib",
        before="optimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
        step=HELD.format(context=context, step=step, after=after, before=before),
    ).replace("for batch in loader", "for i, batch in enumerate(loader)")


TWINS = {
    "gradients that are averaged in the first turn": (
        "replicas-diverged",
        held("i % 4 == 0"),
        held("(i + 1) % 4 == 0"),
        held("i % 4 == 4 - 1"),
        held("i % 4 == 3 or i == len(loader) - 1", "(i + 1) % 4 == 0 or i + 1 == len(loader)"),
        held("i % 2 == 1"),
    ),
    "gradients that are averaged in the first turn, by a variable": (
        "replicas-diverged",
        held("sync", before="sync = i % args.parts == 0", step="(i + 1) % args.parts == 0"),
        held("sync", before="sync = (i + 1) % args.parts == 0", step="sync"),
        held("sync", before="sync = (turn + 1) % 4 == 0", after="turn += 1", step="turn % 4 == 0"),
        held("not hold", before="hold = (i + 1) % 4 != 0"),
        held("last", before="last = not last", step="last"),
    ),
    "modules that are added to frozen blocks": (
        "fsdp-mixed-params-flatten",
        tuned(),
        tuned(set_up=WRAPPED.replace("policy())", "policy(), use_orig_params=True)")),
        tuned(policy="return ModuleWrapPolicy({Block, Side})"),
        tuned(policy="return functools.partial(lambda_policy, lambda_fn=trained)"),
        tuned(freeze="pass", after=FREEZES),
        tuned(after="net.requires_grad_(True)"),
        tuned(freeze="net.vision.requires_grad_(False)"),
        tuned(freeze="if args.sides: net.requires_grad_(False)"),
        tuned(insert="block.cache = Cache(net.width)"),
    ),
    "weights of LoRA that a name selects": (
        "fsdp-mixed-params-flatten",
        ddp(
            head=FSDP
            + CHOSEN.format(choose="weight.requires_grad = 'lora_' in name", policy=UNITS, more=""),
            set_up=OF_CHOSEN,
        ),
        ddp(
            head=FSDP
            + CHOSEN.format(
                choose="weight.requires_grad = 'lora_' in name",
                policy=UNITS,
                more=", use_orig_params=True",
            ),
            set_up=OF_CHOSEN,
        ),
        ddp(
            head=FSDP
            + CHOSEN.format(choose="weight.requires_grad = mode != 'lora'", policy=UNITS, more=""),
            set_up=OF_CHOSEN,
        ),
        ddp(
            head=FSDP
            + CHOSEN.format(
                choose="weight.requires_grad = 'lora_' in name",
                policy="_or_policy(by_trained, by_block)",
                more="",
            ),
            set_up=OF_CHOSEN,
        ),
    ),
    "modules that a helper adds after another froze the rest": (
        "fsdp-mixed-params-flatten",
        ddp(head=FSDP + ADDED.format(first="freeze", second="extended"), set_up=OF_CHOSEN),
        ddp(head=FSDP + ADDED.format(first="extended", second="freeze"), set_up=OF_CHOSEN),
        ddp(
            head=FSDP
            + ADDED.format(first="freeze", second="extended").replace(
                "policy)", "policy, ignored_states=sides(net))"
            ),
            set_up=OF_CHOSEN,
        ),
    ),
    "weights by the seed of each rank": (
        "replicas-diverged",
        by_hand("torch.manual_seed(seed + dist.get_rank())"),
        by_hand("torch.manual_seed(seed)"),
        by_hand("torch.manual_seed(seed + dist.get_rank())\n    torch.manual_seed(seed)"),
        by_hand("torch.manual_seed(seed + dist.get_rank())").replace(
            "    net =", "    torch.manual_seed(args.seed)\n    net ="
        ),
        by_hand(
            "torch.manual_seed(seed + dist.get_rank())",
            after="alike(net)",
            alike="dist.broadcast(weight.data, 0)",
        ),
        by_hand(
            "torch.manual_seed(seed + dist.get_rank())",
            after="alike(net)",
            alike="dist.all_reduce(weight.data, op=dist.ReduceOp.AVG)",
        ),
        by_hand(
            "torch.manual_seed(seed + dist.get_rank())",
            after="net.load_state_dict(torch.load('net.pt', map_location='cpu'))",
        ),
        by_hand("random.seed(seed + dist.get_rank())\n    torch.manual_seed(seed)"),
    ),
    "adapters in place of layers, in a loop over a list of all modules": (
        "fsdp-mixed-params-flatten",
        everywhere(),
        everywhere(freeze="pass"),
        everywhere(set_up=ORIGINAL),
    ),
    "weights by the number of the process, and an own reducer": (
        "replicas-diverged",
        reducer("17 + world.index"),
        reducer("17 + world.size"),
        reducer("17 + world.index", before="from torch.nn import parallel").replace(
            "reduce = Reducer", "net = parallel.DistributedDataParallel(net)\nreduce = Reducer"
        ),
        reducer("17 + world.index", before="send(net.state_dict()); dist.broadcast(flat(net), 0)"),
    ),
    "weights that nothing seeds": (
        "replicas-diverged",
        by_hand("pass"),
        by_hand("np.random.seed(seed)"),
        by_hand("pass", after="for weight in net.parameters(): dist.broadcast(weight, 0)"),
    ),
}
"""Each: the cause, a script with it, and sound scripts that are nearly the same."""
